"""TorchElastic's @record around main; with an argument, that rank fails."""

import os
import sys

import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record


@record
def main() -> None:
    dist.init_process_group("gloo")
    if os.environ["RANK"] in sys.argv[1:]:
        raise LookupError("no such batch")
    dist.barrier()
    print("done", os.path.basename(sys.argv[0]), main.__name__)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
