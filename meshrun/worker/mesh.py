"""Owns: from the plan's mesh to torch groups and DeviceMesh objects: dims, views, factorings; equal groups are shared.
Must not: make the world group, read the environment, or keep anything it built.
Called by: groups."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import device_mesh
from torch.distributed.device_mesh import DeviceMesh

from meshrun.dataclass import dataclass, field
from meshrun.spec.grid import Partition, split_ranks
from meshrun.worker.options import make_options

Options = tuple[tuple[str, Any], ...]


@dataclass(slots=True)
class Built:
    """All that was made: the meshes by name ("" is the main one), and the groups with the default time-out."""

    meshes: dict[str, DeviceMesh] = field(default_factory=dict)
    plain_groups: list[dist.ProcessGroup] = field(default_factory=list)


@dataclass(slots=True)
class Groups:
    """Makes process groups, each rank set once. Every rank calls in the same order, so that the names agree."""

    world_size: int
    default_timeout_s: float
    settings: Mapping[str, Any]  # the mesh's backend and timeout_s, by dim
    alone: bool = False  # a rank makes its own group of a partition only
    made: dict[tuple[Partition, str, float, Options], dist.ProcessGroup] = field(default_factory=dict)

    def timeout_s(self, name: str) -> float:
        """A sub-group does not inherit the world's time-out (torch-facts 0.2), so there is always a number."""
        table = self.settings.get("timeout_s") or {}
        return float(table.get(name, table.get("default", self.default_timeout_s)))

    def get(self, partition: Partition, name: str) -> dist.ProcessGroup:
        """This rank's group of `partition`, made now unless an equal one exists."""
        backend = (self.settings.get("backend") or {}).get(name, "")
        options = tuple(((self.settings.get("options") or {}).get(name) or {}).items())
        key = (partition, backend, self.timeout_s(name), options)
        if key not in self.made:
            self.made[key] = self._make(*key, name)
        return self.made[key]

    def _make(
        self, partition: Partition, backend: str, timeout_s: float, asked: Options, name: str
    ) -> dist.ProcessGroup:
        if len(partition) == 1 and not (backend or asked) and timeout_s == self.default_timeout_s:
            world: dist.ProcessGroup = dist.group.WORLD
            return world
        options = make_options(dict(asked), backend or dist.get_backend_config(), timeout_s, name)
        how: dict[str, Any] = {
            "timeout": timedelta(seconds=timeout_s),
            "pg_options": options,
            "group_desc": f"mesh_{name}",
        }
        if can_split(backend):
            split = dist.split_group(dist.group.WORLD, [list(ranks) for ranks in partition], **how)
            assert split is not None  # every partition covers the world
            return split
        rank, mine = dist.get_rank(), None
        with side_groups(backend):
            for ranks in partition:
                if self.alone and rank not in ranks:
                    continue
                local = self.alone
                group = dist.new_group(list(ranks), backend=backend or None, use_local_synchronization=local, **how)
                if rank in ranks:
                    mine = group
        assert mine is not None  # every partition covers the world
        return mine

    def plain(self) -> list[dist.ProcessGroup]:
        """The groups whose time-out nobody set, the world's included: a script's own time-out applies to them."""
        chosen = [group for (_, _, seconds, _), group in self.made.items() if seconds == self.default_timeout_s]
        return list({id(group): group for group in [dist.group.WORLD, *chosen]}.values())


def check_grids(mesh: Mapping[str, Any], world_size: int) -> None:
    """Raises ValueError if a grid does not cover the world exactly (torch accepts a smaller one silently)."""
    for dims in (mesh["dims"], *(mesh.get("factorings") or {}).values()):
        if torch.Size(tuple(dims.values())).numel() != world_size:
            asked = ",".join(f"{name}={size}" for name, size in dims.items())
            raise ValueError(f"the mesh {asked} does not have {world_size} places, one for each worker")


def build_meshes(mesh: Mapping[str, Any], device: str, world_size: int, timeout_s: float) -> Built:
    """Build what the plan's `mesh` object asks, in its order: dims, factorings, views. The world group must exist.

    Raises ValueError as `check_grids`, and whatever torch raises; then group names differ between ranks and the process
    must end."""
    check_grids(mesh, world_size)
    groups = Groups(world_size, timeout_s, mesh, alone=can_make_alone(mesh))
    built = Built()
    built.meshes[""] = _make_grid(mesh["dims"], device, groups)
    for name, dims in (mesh.get("factorings") or {}).items():
        built.meshes[name] = _make_grid(dims, device, groups)
    grids = list(built.meshes.values())
    for name, dims in (mesh.get("views") or {}).items():
        root = next(grid for grid in grids if set(dims) <= set(grid.mesh_dim_names or ()))
        built.meshes[name] = _make_view(root, name, dims, groups)
    built.plain_groups = groups.plain()
    return built


def can_make_alone(mesh: Mapping[str, Any]) -> bool:
    """Whether a rank can leave the groups that it is not in to others: at 2,048 ranks nearly all of a mesh's cost.

    torch then names a group by its ranks and by how many groups this process has, so that must be the same everywhere:
    true while there is none but the world. Not for a world that is bound to a device (a group is then a split of its
    communicator, in which all take part), nor for MPI and torchcomms, which cannot do it."""
    from torch.distributed import distributed_c10d as c10d

    backends = {str(dist.get_backend_config()), *(mesh.get("backend") or {}).values()}
    by_split = getattr(c10d, "_use_torchcomms_enabled", lambda: False)()
    bound = getattr(dist.group.WORLD, "bound_device_id", None) is not None
    return len(c10d._world.pg_names) == 1 and not (bound or by_split or any("mpi" in name for name in backends))


def can_split(backend: str) -> bool:
    """Whether all groups of a partition can be made in one step, as splits of the world's communicator.

    As `init_device_mesh` itself decides: the script has bound the world to an accelerator (`device_id`) whose backend
    can split (NCCL, XCCL), and the dim has no other one. Made one by one, every group would take every rank's time."""
    accelerator: Any = getattr(torch, "accelerator", None)  # torch 2.6 and later
    bound = getattr(dist.group.WORLD, "bound_device_id", None) is not None
    if not bound or accelerator is None or not accelerator.is_available():
        return False
    device: Any = accelerator.current_accelerator()
    parent: Any = dist.group.WORLD
    own = parent._get_backend(device)
    return bool(own.supports_splitting) and backend in ("", own.name())


@contextmanager
def side_groups(backend: str) -> Iterator[None]:
    """While groups of a backend other than NCCL are made beside a world that is bound to a device (`device_id`).

    Bound, torch lets every rank that is not in a new group take part in a split of the world's communicator; the
    members, whose gloo group splits nothing, would never come: a hang. Without the bond nobody splits."""
    world: Any = dist.group.WORLD
    bound = getattr(world, "bound_device_id", None)
    if bound is None or not backend or "nccl" in backend:
        yield
        return
    world.bound_device_id = None
    try:
        yield
    finally:
        world.bound_device_id = bound


def _make_grid(dims: Mapping[str, int], device: str, groups: Groups) -> DeviceMesh:
    sizes, names = tuple(dims.values()), tuple(dims)
    ranks = torch.arange(groups.world_size, dtype=torch.int, device="cpu")
    made = [groups.get(split_ranks(sizes, (i,)), name) for i, name in enumerate(names)]
    if len(made) == 1:
        return DeviceMesh.from_group(made[0], device, mesh_dim_names=names)
    return DeviceMesh.from_group(made, device, ranks.view(sizes), mesh_dim_names=names)


def _make_view(root: DeviceMesh, name: str, dims: Sequence[str], groups: Groups) -> DeviceMesh:
    names = root.mesh_dim_names or ()
    ordered = tuple(dim for dim in names if dim in dims)
    if len(ordered) == 1:
        return root[ordered[0]]
    chosen = [at for at, dim in enumerate(names) if dim in dims]
    group = groups.get(split_ranks(tuple(root.shape), chosen), name)
    return _flatten(root, ordered, name, group)


def _flatten(root: DeviceMesh, dims: tuple[str, ...], name: str, group: dist.ProcessGroup) -> DeviceMesh:
    """As `root[dims]._flatten(name)`, but with a group we made: torch's own ignores the time-out and never shares.

    The result keeps the root's rank map, without which FSDP over a view and TP over a dim do not combine."""
    try:
        part = root[dims]
        view = DeviceMesh(
            root.device_type,
            _layout=type(part._layout)([part._layout.collapse()]),
            _rank_map=root._rank_map,
            mesh_dim_names=(name,),
            _root_mesh=root,
            _init_backend=False,
        )
        view._dim_group_names = [group.group_name]
        root._pg_registry[group.group_name] = group
        root._flatten_mapping[name] = view
    except (AttributeError, TypeError):  # another torch: its private names moved
        return _flatten_in_tables(root, dims, name, group)
    return view


def _flatten_in_tables(root: DeviceMesh, dims: tuple[str, ...], name: str, group: dist.ProcessGroup) -> DeviceMesh:
    """As `_flatten` where torch has tables of which mesh is a part of which (2.5). Without them the view is a mesh for
    itself: it communicates, but FSDP over it and TP over a dim do not combine."""
    view: DeviceMesh = DeviceMesh.from_group(group, root.device_type, mesh_dim_names=(name,))
    tables: Any = getattr(device_mesh, "_mesh_resources", None)
    names = root.mesh_dim_names or ()
    with suppress(AttributeError):
        tables.child_to_root_mapping[view] = root
        tables.root_to_flatten_mapping.setdefault(root, {})[name] = view
        tables.flatten_name_to_root_dims.setdefault(root, {})[name] = tuple(map(names.index, dims))
    return view
