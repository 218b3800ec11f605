"""Written for torch.distributed.launch of old: insists on --local_rank."""

import argparse
import os
import sys

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", "--local-rank", type=int, required=True)
parser.add_argument("--lr", type=float)
args = parser.parse_args()
assert args.local_rank == int(os.environ["LOCAL_RANK"])
print(args.local_rank, args.lr, [word.replace("-", "_") for word in sys.argv[1:]])
