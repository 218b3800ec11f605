"""Owns: what the worker does where another torch lacks a name or does a thing in another way, through stand-ins.
Must not: need another torch than the installed one; docs/reference/versions.md says with which it was tried.
Called by: pytest."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from meshrun.worker import groups, store
from tests.worker.player import Player
from tests.worker.probes import run

pytestmark = pytest.mark.torch


class OldStore:
    """As torch 2.5.1: its usual server refuses a socket that listens already."""

    def __init__(self, *place: Any, use_libuv: bool = True, **how: Any) -> None:
        if use_libuv and "master_listen_fd" in how:
            raise NotImplementedError("The libuv TCPStore backend does not support initialization with an listen fd.")
        self.place = place


def test_the_older_server_takes_the_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.distributed.TCPStore", OldStore)
    made: Any = store.make_server("127.0.0.1", 1, master_listen_fd=3)
    assert made.place == ("127.0.0.1", 1)


@pytest.mark.parametrize("name", ["set_timeout", "_set_pg_timeout"])
def test_the_public_name_is_used_where_there_is_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch 2.14 has one, and warns on the screen of whoever calls the other."""
    asked: list[Any] = []
    for other in ("set_timeout", "_set_pg_timeout"):
        monkeypatch.delattr(f"torch.distributed.distributed_c10d.{other}", raising=False)
    if name == "set_timeout":
        monkeypatch.setattr("torch.distributed.distributed_c10d._set_pg_timeout", pytest.fail, raising=False)
    monkeypatch.setattr(f"torch.distributed.distributed_c10d.{name}", lambda *given: asked.append(given), raising=False)
    group: Any = object()
    groups.set_timeout(timedelta(seconds=3), group)
    assert asked == [(timedelta(seconds=3), group)]


def test_without_torch_accelerator_nothing_is_split(player: Player) -> None:
    (end,) = run(
        player,
        """
        from meshrun.worker.mesh import can_split
        del torch.accelerator
        dist.group.WORLD.bound_device_id = torch.device("cuda", 0)
        print(can_split(""))
        dist.group.WORLD.bound_device_id = None
        """,
        1,
        {"dp": 1},
    )
    assert end.out == "False\n"


def test_a_view_is_entered_in_the_tables_of_an_older_torch(player: Player) -> None:
    (end, _) = run(
        player,
        """
        from types import SimpleNamespace
        from torch.distributed import device_mesh
        from meshrun.worker.mesh import _flatten_in_tables
        root, group = meshrun.mesh(), dist.group.WORLD
        alone = _flatten_in_tables(root, ("dp", "cp"), "dp_cp", group)
        tables = SimpleNamespace(child_to_root_mapping={}, root_to_flatten_mapping={}, flatten_name_to_root_dims={})
        device_mesh._mesh_resources = tables
        view = _flatten_in_tables(root, ("dp", "cp"), "dp_cp", group)
        print(alone.mesh_dim_names, view.mesh_dim_names, tables.child_to_root_mapping[view] is root)
        print(tables.root_to_flatten_mapping[root]["dp_cp"] is view, tables.flatten_name_to_root_dims[root])
        """,
        2,
        {"dp": 2, "cp": 1},
    )
    assert end.out.splitlines() == ["('dp_cp',) ('dp_cp',) True", "True {'dp_cp': (0, 1)}"], end
