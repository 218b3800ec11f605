"""DataLoader workers by fork, forkserver and spawn, in a process that is itself a rank."""

import os

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset, get_worker_info


class Squares(Dataset):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> tuple[int, int]:
        return index * index, get_worker_info().id


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    sampler = torch.utils.data.distributed.DistributedSampler(Squares(), shuffle=False)
    for method, workers in (("fork", 2), ("forkserver", 1), ("spawn", 1)):
        loader = DataLoader(
            Squares(), batch_size=2, num_workers=workers, sampler=sampler, multiprocessing_context=method
        )
        squares = [(square.tolist(), worker.tolist()) for square, worker in loader]
        total = torch.tensor(sum(sum(square) for square, _ in squares))
        dist.all_reduce(total)
        print(method, squares, int(total), os.environ["RANK"], world, rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
