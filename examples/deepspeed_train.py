"""DeepSpeed with ZeRO, as one writes it for the `deepspeed` launcher. Needs `pip install deepspeed`.

meshrun --nproc-per-node 2 -x DS_ACCELERATOR=cpu examples/deepspeed_train.py --stage 2
meshrun --hostfile hosts --pass-local-rank examples/deepspeed_train.py

(DS_ACCELERATOR=cpu only where there is no GPU. It never puts --local_rank there by itself: see --pass-local-rank.)"""

import argparse
import os

import deepspeed
import torch


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", type=int, default=int(os.environ.get("LOCAL_RANK", "0")))
    parser.add_argument("--stage", type=int, default=1, choices=[0, 1, 2, 3])
    parser.add_argument("--steps", type=int, default=4)
    args = parser.parse_args()

    deepspeed.init_distributed()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 1))
    config = {
        "train_micro_batch_size_per_gpu": 8,
        "zero_optimization": {"stage": args.stage},
        "zero_allow_untested_optimizer": True,
    }
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    rank = deepspeed.comm.get_rank()
    inputs = torch.randn(8, 8, generator=torch.Generator().manual_seed(rank)).to(engine.device)
    for step in range(args.steps):
        loss = torch.nn.functional.mse_loss(engine(inputs), inputs.sum(1, keepdim=True))
        engine.backward(loss)
        engine.step()
        print(f"rank {rank} of {deepspeed.comm.get_world_size()}  step {step}  loss {loss.item():.5f}")


if __name__ == "__main__":
    main()
