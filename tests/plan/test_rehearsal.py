"""Owns: the plan of `--fake`: which ranks run, what each is told, and what that costs at 16,384 ranks.
Must not: start anything.
Called by: pytest."""

from __future__ import annotations

from typing import Any

import pytest

from meshrun import wire
from meshrun.agent.variables import NodeValues, make_worker_env
from meshrun.errors import InputError
from meshrun.plan.orders import make_assign, make_brief
from meshrun.plan.placement import make_mesh
from meshrun.plan.rehearsal import MOST, choose_ranks, make_fake_plan
from meshrun.spec.job import Context, make_job
from meshrun.spec.options import OPTIONS
from meshrun.spec.values import Fake, Host, Job, MeshSpec
from tests.plan.examples import facts

DIMS = (("pp", 2), ("dp", 2), ("tp", 4))


def rehearse(hosts: tuple[Host, ...], words: tuple[str, ...] = ("t.py",), **said: Any) -> tuple[Job, Fake]:
    settings = {option.name: option.default for option in OPTIONS} | {"fake": True}
    mesh = said.pop("mesh", None)
    settings |= {name.replace("_", "-"): value for name, value in said.items()}
    job = make_job(settings, hosts, words, Context("id", "/w", "/py", (True,) * len(hosts), mesh))
    assert job.rehearsal and job.rehearsal.fake
    return job, job.rehearsal.fake


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        ("0", (0,)),
        ("15, 3-5,4", (3, 4, 5, 15)),
        ("classes", (0, 2, 3, 4, 6, 7, 8, 10, 11, 12, 14, 15)),
    ],
)
def test_which_ranks(text: str, ranks: tuple[int, ...]) -> None:
    assert choose_ranks(text, make_mesh(MeshSpec(DIMS), 16)) == ranks


def test_classes_are_first_middle_and_last_of_each_dim() -> None:
    mesh = make_mesh(MeshSpec((("dp", 128), ("tp", 8))), 1024)
    places = [divmod(rank, 8) for rank in choose_ranks("classes", mesh)]
    assert places == [(dp, tp) for dp in (0, 64, 127) for tp in (0, 4, 7)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("16", "there is no rank 16"),
        ("3-20", "there is no rank 20"),
        ("5-3", "'5-3' is not a rank"),
        ("-1", "not a rank"),
        ("all", "not a rank"),
        ("0,,1", "'' is not a rank"),
    ],
)
def test_ranks_that_are_refused(text: str, words: str) -> None:
    with pytest.raises(InputError) as caught:
        choose_ranks(text, make_mesh(MeshSpec(DIMS), 16))
    assert words in str(caught.value)
    assert "--ranks" in str(caught.value)


def test_no_more_than_fit_on_a_machine() -> None:
    mesh = make_mesh(MeshSpec((("dp", 1024),)), 1024)
    assert len(choose_ranks(f"0-{MOST - 1}", mesh)) == MOST
    with pytest.raises(InputError):
        choose_ranks(f"0-{MOST}", mesh)


def test_one_agent_has_workers_of_several_nodes() -> None:
    hosts = (Host("a", slots=4), Host("b", devices=("1", "3")), Host("c"))
    job, fake = rehearse(hosts, mesh=MeshSpec((("dp", 4), ("tp", 2))), nproc_per_node=2, ranks="1,5,6", steps=3)
    plan = make_fake_plan(job, fake)
    assert [node.host.name for node in plan.nodes] == ["a", "b", "c"]
    assert (plan.shares, plan.world_size) == (((1, 5, 6),), 8)
    assert [worker.host for worker in plan.running] == ["a", "b", "c"]
    assign = make_assign(job, plan, 0, facts())
    assert (assign.backend, assign.device, assign.nnodes) == ("fake", "cpu", 3)
    assert assign.workers == (
        wire.WorkerSlot(1, 1, "1", {"dp": 0, "tp": 1}, 0, 4),
        wire.WorkerSlot(5, 1, "3", {"dp": 2, "tp": 1}, 1, 2),
        wire.WorkerSlot(6, 0, "0", {"dp": 3, "tp": 0}, 2, 2),
    )
    brief = make_brief(job, 0, 1)
    assert (brief.tensors, brief.steps, brief.device) == ("fake", 3, "cpu")


def test_what_a_worker_is_told_does_not_grow_with_the_world() -> None:
    """A string of an environment may have 128 KiB, also in the real run of 16,384 ranks."""
    hosts = tuple(Host(f"n{number:04}", slots=8) for number in range(2048))
    job, chosen = rehearse(hosts, mesh=MeshSpec((("pp", 16), ("dp", 128), ("tp", 8))), ranks="16383")
    plan = make_fake_plan(job, chosen)
    slot = make_assign(job, plan, 0, facts()).workers[0]
    brief, assign = make_brief(job, 0, 1), make_assign(job, plan, 0, facts())
    assert len(wire.encode(assign)) < 1024
    node = NodeValues(cores=8, interface="lo", mask_name="", tmp="/t", mark="m")
    env = make_worker_env({}, brief, assign, slot, wire.Start(0, "127.0.0.1", 1), node)
    assert (env["NODE_RANK"], env["LOCAL_RANK"], env["LOCAL_WORLD_SIZE"]) == ("2047", "7", "8")
    assert (env["WORLD_SIZE"], env["MESHRUN_COORDS"]) == ("16384", "pp=15,dp=127,tp=7")
    assert max(map(len, env.values())) < 200
