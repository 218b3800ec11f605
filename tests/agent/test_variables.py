"""Owns: the environment that a worker and the fork server get.
Must not: start a process.
Called by: pytest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from meshrun import wire
from meshrun.agent.variables import NodeValues, expand, make_base, make_server_env, make_worker_env
from meshrun.plan.environment import OURS
from tests.agent.driver import make_assign, make_brief

NODE = NodeValues(cores=16, interface="ib0", mask_name="CUDA_VISIBLE_DEVICES", tmp="/t", mark="m")
START = wire.Start(2, "10.0.0.1", 4711)


def worker_env(login: dict[str, str] | None = None, rank: int = 1, ranks: int = 4, **changes: Any) -> dict[str, str]:
    assign_names = {"device", "mesh", "workers", "node_rank", "nnodes", "world_size"}
    assign = make_assign(ranks, **{name: value for name, value in changes.items() if name in assign_names})
    rest = {name: value for name, value in changes.items() if name not in assign_names}
    brief = make_brief(Path("/w"), "a.py", **{"form": "script", **rest})
    return make_worker_env(make_base(login or {}, brief), brief, assign, assign.workers[rank], START, NODE)


def test_what_cannot_be_said_is_what_is_always_ours() -> None:
    env = worker_env(env=dict.fromkeys({*worker_env(), *OURS}, "theirs"))
    always = {name for name, value in env.items() if value != "theirs"}
    assert always == OURS | {"PYTHONUNBUFFERED", "TORCHELASTIC_USE_AGENT_STORE"}, (
        "these two are said in vain, and harmless"
    )


def test_the_complete_list_of_variables() -> None:
    env = worker_env(node_rank=1, nnodes=2, world_size=8)
    assert env == {
        "RANK": "1",
        "ROLE_RANK": "1",
        "WORLD_SIZE": "8",
        "ROLE_WORLD_SIZE": "8",
        "ROLE_NAME": "default",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "4",
        "LOCAL_SIZE": "4",
        "NODE_RANK": "1",
        "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "2",
        "CROSS_RANK": "1",
        "CROSS_SIZE": "2",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "4711",
        "OMP_NUM_THREADS": "4",
        "PYTHONUNBUFFERED": "1",
        "TORCHELASTIC_RUN_ID": "test-run",
        "TORCHELASTIC_RESTART_COUNT": "2",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_ERROR_FILE": "/t/error1-2.json",
        "GLOO_SOCKET_IFNAME": "ib0",
        "NCCL_SOCKET_IFNAME": "ib0",
        "TP_SOCKET_IFNAME": "ib0",
        "MESHRUN_RUN_ID": "test-run",
        "MESHRUN_MARK": "m",
        "MESHRUN_LOG_DIR": "/runs/x",
        "MESHRUN_COORDS": "dp=1",
        "MESHRUN_MESH": json.dumps({"dims": {"dp": 4}, "crosses_nodes": {"dp": False}}),
        "ACCELERATE_USE_CPU": "true",
    }


@pytest.mark.parametrize("source", ["login", "env"])
def test_the_user_keeps_threads_and_interfaces(source: str) -> None:
    mine = {"OMP_NUM_THREADS": "7", "GLOO_SOCKET_IFNAME": "eth9"}
    env = worker_env(mine) if source == "login" else worker_env(env=mine)
    assert (env["OMP_NUM_THREADS"], env["GLOO_SOCKET_IFNAME"]) == ("7", "eth9")
    assert env["NCCL_SOCKET_IFNAME"] == "ib0"


def test_what_comes_from_where() -> None:
    env = worker_env({"A": "login", "B": "login", "RANK": "9"}, env={"B": "exported"}, env_remote={"C": "$A:${B}:$NO."})
    assert (env["A"], env["B"], env["C"], env["RANK"]) == ("login", "exported", "login:login:.", "1")


def test_a_program_has_no_agent_store_even_inside_another_run() -> None:
    assert "TORCHELASTIC_USE_AGENT_STORE" not in worker_env({"TORCHELASTIC_USE_AGENT_STORE": "True"}, form="program")


@pytest.mark.parametrize(("devices", "mask"), [((), "4,5,6,7"), (("6", "4"), "6,4")])
def test_the_mask_is_set_only_when_devices_were_named(devices: tuple[str, ...], mask: str) -> None:
    slots = tuple(
        wire.WorkerSlot(rank, rank, device, {"dp": rank}) for rank, device in enumerate(devices or ("4", "5"))
    )
    env = worker_env({"CUDA_VISIBLE_DEVICES": "4,5,6,7"}, ranks=2, workers=slots, device="cuda", devices=devices)
    assert env["CUDA_VISIBLE_DEVICES"] == mask


@pytest.mark.parametrize(
    ("dims", "there"), [({"dp_shard": 2, "tp": 2}, True), ({"tp": 2, "cp": 2}, False), ({"dp": 4}, False)]
)
def test_accelerates_names_only_in_accelerates_order(dims: dict[str, int], there: bool) -> None:
    env = worker_env(mesh={"dims": dims, "crosses_nodes": {}, "views": {}}, device="cuda")
    sizes = {name: value for name, value in env.items() if name.startswith("PARALLELISM_CONFIG_")}
    assert bool(sizes) is there and ("ACCELERATE_USE_PARALLELISM_CONFIG" in env) is there
    assert not there or (sizes["PARALLELISM_CONFIG_TP_SIZE"] == "2" and sizes["PARALLELISM_CONFIG_CP_SIZE"] == "1")
    assert json.loads(env["MESHRUN_MESH"]) == {"dims": dims, "crosses_nodes": {}}


def test_children_of_a_worker_find_factorings_and_views_too() -> None:
    mesh = {"dims": {"dp": 4}, "crosses_nodes": {}, "factorings": {"e": {"edp": 2, "ep": 2}}, "backend": {"dp": "gloo"}}
    found = json.loads(worker_env(mesh=mesh)["MESHRUN_MESH"])
    assert found == {key: mesh[key] for key in ("dims", "crosses_nodes", "factorings")}


def test_the_fork_server_imports_with_one_thread() -> None:
    env = make_server_env({"OMP_NUM_THREADS": "8"}, make_brief(Path("/w"), "a"), "mark")
    assert env["OMP_NUM_THREADS"] == "1" and env["MESHRUN_MARK"] == "mark"


def test_expand_leaves_everything_else_alone() -> None:
    assert expand("$A$A/${A}$ $1 ${A:-x} $$", {"A": "v"}) == "vv/v$ $1 ${A:-x} $$"


def test_with_a_share_its_threads_count_unless_the_user_said() -> None:
    share = wire.Share("0-5", 6)
    workers = (wire.WorkerSlot(0, 0, "", {}), wire.WorkerSlot(1, 1, "", {}, share=share))
    assert worker_env(workers=workers)["OMP_NUM_THREADS"] == "6"
    assert worker_env(workers=workers, rank=0)["OMP_NUM_THREADS"] == "8"
    assert worker_env(workers=workers, env={"OMP_NUM_THREADS": "3"})["OMP_NUM_THREADS"] == "3"
