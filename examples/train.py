"""Train a small byte-level transformer on the language reference that Python carries in `pydoc_data`.

    python examples/train.py                           one process
    meshrun --mesh dp=2,tp=2 examples/train.py         four: data parallel over dp, tensor parallel over tp
    meshrun --hostfile hosts --mesh dp=2,tp=4 examples/train.py

The weights of a block are split over `tp` (DTensor), the batch over `dp` (FSDP2, or DDP with --ddp). The data, the
initial weights and so the losses are the same for every mesh."""

import argparse
import json
import time
from pydoc_data import topics

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import meshrun


class Block(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.head_size = width // heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.proj = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm1(x)
        # under tensor parallelism this rank has some of the heads, hence -1
        q, k, v = (f(h).unflatten(-1, (-1, self.head_size)).transpose(1, 2) for f in (self.q, self.k, self.v))
        h = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(h.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    def __init__(self, width: int, heads: int, layers: int, context: int):
        super().__init__()
        self.bytes, self.places = nn.Embedding(256, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, 256)

    def forward(self, x: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
        """The mean loss of predicting `following`."""
        h = self.bytes(x) + self.places(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks:
            h = block(h)
        return F.cross_entropy(self.out(self.norm(h)).flatten(0, 1), following.flatten())


TENSOR_PARALLEL = {
    **{name: ColwiseParallel() for name in ("q", "k", "v", "up")},
    **{name: RowwiseParallel() for name in ("proj", "down")},
}


def parallelize(model: Transformer, mesh, ddp: bool) -> nn.Module:
    """Split the blocks over `tp`, then shard or replicate the whole over `dp`."""
    if "tp" in mesh.mesh_dim_names:
        for block in model.blocks:
            parallelize_module(block, mesh["tp"], TENSOR_PARALLEL)
    if "dp" not in mesh.mesh_dim_names:
        return model
    if ddp:
        return DistributedDataParallel(model, process_group=mesh.get_group("dp"))
    for block in model.blocks:
        fully_shard(block, mesh=mesh["dp"])
    return fully_shard(model, mesh=mesh["dp"])


def read_text() -> torch.Tensor:
    text = "\n".join(topics.topics[name] for name in sorted(topics.topics))
    return torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)


def make_batch(text: torch.Tensor, step: int, batch: int, context: int) -> torch.Tensor:
    """The whole batch of this step, the same on every rank."""
    generator = torch.Generator().manual_seed(step)
    starts = torch.randint(len(text) - context - 1, (batch,), generator=generator)
    return torch.stack([text[s : s + context + 1] for s in starts.tolist()]).long()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--batch", type=int, default=16, help="sequences per step, over all ranks")
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--ddp", action="store_true", help="DDP instead of FSDP2 over dp (not together with tp)")
    parser.add_argument("--json", metavar="FILE", help="write the losses there")
    args = parser.parse_args()

    mesh, device, place = meshrun.init(), meshrun.device(), meshrun.coords()
    sizes = dict(zip(mesh.mesh_dim_names, mesh.shape, strict=True))
    dp, tp = sizes.get("dp", 1), sizes.get("tp", 1)
    if set(sizes) - {"dp", "tp"} or args.batch % dp or args.heads % tp or (args.ddp and tp > 1):
        parser.error(f"this script cannot use the mesh {sizes} with --batch {args.batch} --heads {args.heads}")

    torch.manual_seed(0)  # every rank makes the same whole model, then keeps its part
    model = Transformer(args.width, args.heads, args.layers, args.context).to(device)
    model = parallelize(model, mesh, args.ddp)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, foreach=False)
    text, losses, began = read_text(), [], time.perf_counter()
    for step in range(args.steps):
        batch = make_batch(text, step, args.batch, args.context)
        batch = batch.chunk(dp)[place.get("dp", 0)].to(device)
        loss = model(batch[:, :-1], batch[:, 1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        loss = loss.detach()
        if dp > 1:
            dist.all_reduce(loss, dist.ReduceOp.SUM, mesh.get_group("dp"))
        losses.append(loss.item() / dp)
        if dist.get_rank() == 0 and (step % 10 == 0 or step == args.steps - 1):
            print(f"step {step:4d}  loss {losses[-1]:.4f}")

    if dist.get_rank() == 0:
        seconds = time.perf_counter() - began
        print(f"{args.steps * args.batch * args.context / seconds:,.0f} tokens/s on {sizes}, {device.type}")
        if args.json:
            with open(args.json, "w") as file:
                json.dump({"losses": losses, "mesh": sizes}, file)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
