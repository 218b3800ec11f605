"""Pipeline parallel, written for torchrun: a stage a rank, or two with --schedule Interleaved1F1B.

meshrun --mesh pp=4 examples/pipeline.py
meshrun --mesh pp=2 examples/pipeline.py --schedule Interleaved1F1B
torchrun --nproc-per-node 4 examples/pipeline.py

The losses are the same for every schedule and number of stages."""

import argparse
import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B

LAYERS, WIDTH = 8, 16
SINGLE = {"GPipe": ScheduleGPipe, "1F1B": Schedule1F1B}


def make_stages(layers: list[torch.nn.Module], mesh, per_rank: int, device: torch.device) -> list[PipelineStage]:
    """This rank's stages: with several a rank, stage i is on rank i % ranks."""
    group, ranks, rank = mesh.get_group("pp"), mesh.size(), mesh.get_local_rank("pp")
    count = ranks * per_rank
    stages = []
    for index in range(rank, count, ranks):
        part = layers[index * LAYERS // count : (index + 1) * LAYERS // count]
        stages.append(PipelineStage(torch.nn.Sequential(*part).to(device), index, count, device, group=group))
    return stages


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--schedule", default="1F1B", choices=[*SINGLE, "Interleaved1F1B"])
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--micro-batches", type=int, default=4)
    args = parser.parse_args()

    cuda = torch.cuda.is_available()
    local_rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local_rank) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    mesh = init_device_mesh(device.type, (dist.get_world_size(),), mesh_dim_names=("pp",))

    torch.manual_seed(0)
    layers = [torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh()) for _ in range(LAYERS)]
    stages = make_stages(layers, mesh, 2 if args.schedule == "Interleaved1F1B" else 1, device)
    loss_of = torch.nn.functional.mse_loss
    if args.schedule in SINGLE:
        schedule = SINGLE[args.schedule](stages[0], args.micro_batches, loss_fn=loss_of)
    else:
        schedule = ScheduleInterleaved1F1B(stages, args.micro_batches, loss_fn=loss_of)
    parameters = [parameter for stage in stages for parameter in stage.submod.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.5)
    inputs, target = torch.randn(2, 16, WIDTH, device=device).unbind()

    first, last = any(stage.is_first for stage in stages), any(stage.is_last for stage in stages)
    for step in range(args.steps):
        losses: list[torch.Tensor] = []
        ends = {"target": target, "losses": losses} if last else {}
        schedule.step(*([inputs] if first else []), **ends)
        optimizer.step()
        optimizer.zero_grad()
        if last:
            print(f"step {step}  loss {torch.stack(losses).mean().item():.5f}")
    total = sum(parameter.double().abs().sum().item() for parameter in parameters)
    print(f"rank {dist.get_rank()} has stages {[stage.stage_index for stage in stages]}, weights {total:.5f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
