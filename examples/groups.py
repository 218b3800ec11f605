"""Every group of a mesh does one all-reduce: which ranks share it, and that their sum is right.

meshrun --nproc-per-node 8 --mesh examples/mesh.yaml examples/groups.py
python examples/groups.py"""

import torch
import torch.distributed as dist

import meshrun


def main() -> None:
    mesh = meshrun.mesh()
    named = {name: mesh[name] for name in mesh.mesh_dim_names}
    for name in ("dp_tp", "edp", "ep", "moe"):  # of mesh.yaml; another mesh may not have them
        try:
            named[name] = meshrun.mesh(name)
        except KeyError:
            continue
    for name, part in named.items():
        group = part.get_group()
        ranks = dist.get_process_group_ranks(group)
        total = torch.tensor([float(dist.get_rank())], device=meshrun.device())
        dist.all_reduce(total, group=group)
        assert total.item() == sum(ranks), (name, ranks, total)
        if meshrun.is_first(name):
            print(f"{name}: ranks {ranks}")


if __name__ == "__main__":
    main()
