"""Owns: what a rehearsal changes in a job, what it leaves as it is, and what cannot be asked of it.
Must not: touch files or the network.
Called by: pytest."""

from __future__ import annotations

from typing import Any

import pytest

from meshrun.errors import InputError
from meshrun.plan.orders import make_assign, make_brief
from meshrun.plan.placement import make_plan
from meshrun.spec.job import Context, make_job
from meshrun.spec.options import OPTIONS
from meshrun.spec.rehearsal import HIDDEN, as_gloo
from meshrun.spec.values import Host, Job, MeshSpec
from tests.plan.examples import facts

MESH = MeshSpec((("dp", 2), ("tp", 2)), backend=(("dp", "nccl"), ("tp", "mpi")), device="cuda")
ENV = (("GLOO_SOCKET_IFNAME", "ib0"), ("SITE", "a"))
FAR = (
    Host("a", "me", 2222, "10.0.0.1", 2, python="/far/python", workdir="/far", env=ENV),
    Host("b", devices=("4", "5")),
)


def rehearse(hosts: tuple[Host, ...] = FAR, words: tuple[str, ...] = ("t.py",), **said: Any) -> Job:
    settings = {option.name: option.default for option in OPTIONS} | {"local": True}
    context: dict[str, Any] = {"run_id": "id", "cwd": "/w", "python": "/py", "local": (True,) * len(hosts)}
    context |= {name: said.pop(name) for name in ("mesh", "env") if name in said}
    settings |= {name.replace("_", "-"): value for name, value in said.items()}
    return make_job(settings, hosts, words, Context(**context))


def test_what_leads_to_a_host_goes_and_the_plan_stays() -> None:
    job = rehearse(mesh=MESH)
    here = "127.0.0.1"
    assert job.hosts[0] == Host("a", addr=here, slots=2, env=(("SITE", "a"),))
    assert job.hosts[1] == Host("b", addr=here, devices=("4", "5"))
    assert job.local == (True, True)
    slots, devices = (2, 2), (("0", "1"), ("4", "5"))
    there, again = (make_plan(hosts, slots, devices, spec) for hosts, spec in ((FAR, MESH), (job.hosts, job.mesh)))
    assert there.fingerprint == again.fingerprint
    assert (there.workers, there.groups) == (again.workers, again.groups)


def test_workers_get_back_ends_that_a_cpu_has() -> None:
    job = rehearse(mesh=MESH, backend="cpu:gloo,cuda:nccl")
    plan = make_plan(job.hosts, (2, 2), (("0", "1"), ("4", "5")), job.mesh)
    assign = make_assign(job, plan, 1, facts(device="cuda"))
    assert (assign.device, assign.backend, assign.mesh["backend"]) == ("cpu", "gloo", {"dp": "gloo", "tp": "mpi"})
    brief = make_brief(job, 1, 2)
    assert (brief.agents_here, brief.env) == (2, dict.fromkeys(HIDDEN, ""))
    assert make_brief(job, 0, 2).env["SITE"] == "a"


@pytest.mark.parametrize(
    ("backend", "here"),
    [("", ""), ("nccl", "gloo"), ("NCCL", "gloo"), ("gloo", "gloo"), ("own", "own"), ("cuda:nccl", "gloo"),
     ("cpu:mpi,cuda:nccl", "mpi")],
)  # fmt: skip
def test_back_ends(backend: str, here: str) -> None:
    assert as_gloo(backend) == here


def test_what_is_replaced_is_said() -> None:
    job = rehearse(mesh=MESH, backend="nccl", device="cuda", master_addr="10.0.0.1", env=(("NCCL_SOCKET_IFNAME", "x"),))
    assert job.rehearsal is not None
    first, replaced, left_out = job.rehearsal.remarks
    assert "2 nodes of the plan on this machine" in first
    assert replaced.endswith("--device cuda, device cuda of the mesh, --backend nccl, backend nccl of dp")
    assert left_out.endswith("--master-addr 10.0.0.1, NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME")
    assert (job.master_addr, job.env) == (None, ())
    assert len(rehearse((Host("a", slots=1),)).rehearsal.remarks) == 1  # type: ignore[union-attr]


def test_a_rehearsal_binds_to_no_cores_and_says_so() -> None:
    job = rehearse(bind="cores", hosts=(Host("a", slots=2), Host("b", slots=2)))
    assert job.bind == "none" and job.rehearsal is not None
    assert job.rehearsal.remarks[1:] == ("rehearsal: left out, since it is about the nodes' cores: --bind cores",)


def test_one_agent_sets_what_all_hosts_set() -> None:
    hosts = (
        Host("a", slots=1, env=(("SITE", "x"), ("ALL", "1"))),
        Host("b", slots=1, env=(("ALL", "1"), ("SITE", "y"))),
    )
    job = rehearse(hosts, local=False, fake=True, master_addr="10.0.0.1", ranks="0,1")
    assert job.hosts == (Host("localhost", slots=1, env=(("ALL", "1"),)),)
    assert job.rehearsal is not None
    first, network, differs = job.rehearsal.remarks
    assert "ranks 0,1, each alone on this machine" in first
    assert network.endswith("--master-addr 10.0.0.1")
    assert differs.endswith("not the same on all hosts: env.SITE")


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"launcher": "ssh", "hostfile": "h"}, "--launcher ssh connects to hosts"),
        ({"nnodes": 2, "node_rank": "0", "master_addr": "a", "master_port": 1}, "by hand"),
        ({"format": "commands"}, "--format commands is about the real nodes"),
        ({"hosts": (Host("a", slots=1), Host("b"), Host("c"))}, "how many workers on b, c? A rehearsal asks no node"),
        ({"hosts": (Host("a"),)}, "how many workers on a?"),
        ({"fake": True}, "--local and --fake are two ways"),
        ({"local": False, "ranks": "0", "steps": 1}, "--ranks belongs to --fake"),
        ({"local": False, "tensors": "real"}, "--tensors belongs to --fake"),
        ({"local": False, "fake": True, "no_python": True}, "with --no-python there is no group"),
        ({"local": False, "fake": True, "init": "off"}, "with --init off there is no group"),
        ({"local": False, "fake": True, "hosts": (Host("a"), Host("b"))}, "how many workers on a, b?"),
        ({"local": False, "fake": True, "launcher": "ssh", "hostfile": "h"}, "--launcher ssh connects"),
    ],
)
def test_refused(said: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as caught:
        rehearse(**said)
    assert words in str(caught.value)
    for problem in caught.value.problems:  # an option is not named as the place and again as the first word
        assert not problem.place or not problem.message.startswith(f"{problem.place.source} ")


def test_counts_for_all_hosts_or_from_the_mesh_of_one() -> None:
    assert rehearse((Host("a"), Host("b")), nproc_per_node=2).nproc_per_node == 2
    assert rehearse((Host("a"),), mesh=MESH).nproc_per_node == 4
    with pytest.raises(InputError):
        rehearse((Host("a"),), mesh=MeshSpec((("dp", None),)))
