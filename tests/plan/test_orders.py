"""Owns: tests of the messages that a job and a plan become.
Must not: send them.
Called by: pytest."""

from dataclasses import replace

import pytest

from meshrun.plan.orders import make_assign, make_brief
from meshrun.spec.mesh import parse_mesh
from meshrun.spec.values import ByHand, Host, MeshSpec
from meshrun.wire import Decoder, WorkerSlot, encode
from tests.plan.examples import facts, job, plan


def test_a_brief_says_all_that_a_node_must_know_first() -> None:
    hosts = (Host("a"), Host("b", workdir="/other", devices=("1", "2"), env=(("X", "host"), ("Z", "z"))))
    asked = job(hosts, env=(("X", "job"), ("Y", "y")), env_remote=(("S", "$HOME"),), master_port=3000, grace_s=2.0)
    first, second = make_brief(asked, 0, 0), make_brief(asked, 1, 2)
    assert (first.slots, first.devices, first.workdir, first.env) == (0, (), "/data", {"X": "job", "Y": "y"})
    assert (first.offers, first.offer_port, first.check_script) == (True, 3000, True)
    assert (second.slots, second.devices, second.workdir) == (2, ("1", "2"), "/other")
    assert second.env == {"X": "host", "Y": "y", "Z": "z"}
    assert (second.offers, second.check_script) == (False, False)
    assert second.env_remote == {"S": "$HOME"}
    assert second.argv == ("/data/train.py", "--lr", "1e-3")
    assert second.grace_s == 2.0


def test_one_node_offers_no_address_and_a_module_is_not_compiled() -> None:
    brief = make_brief(job((Host("a"),), form="module"), 0, 1)
    assert (brief.offers, brief.check_script) == (False, False)


def test_by_hand_the_one_host_is_this_node() -> None:
    asked = job((Host("here", workdir="/mine"),), by_hand=ByHand(4, 2, "a", 29400), master_port=29400)
    brief = make_brief(asked, 2, 1)
    assert (brief.workdir, brief.offers, brief.offer_port) == ("/mine", False, 0)
    assert make_brief(asked, 0, 1).offers


@pytest.mark.parametrize(("nodes", "window"), [(1, 8 << 20), (8, 8 << 20), (64, 1 << 20), (1000, 256 << 10)])
def test_the_window_bounds_the_launchers_memory(nodes: int, window: int) -> None:
    assert make_brief(job([Host(f"h{n}") for n in range(nodes)]), 0, 1).window_bytes == window


def test_an_assignment_is_a_nodes_part_of_the_plan() -> None:
    asked = job(mesh=parse_mesh("dp=2,tp=2"), backend="gloo", timeout_s=60.0, max_restarts=3)
    placed = plan("a slots=1\nb slots=3", "dp=2,tp=2")
    assign = make_assign(asked, placed, 1, facts())
    assert (assign.node_rank, assign.nnodes, assign.world_size) == (1, 2, 4)
    assert (assign.fingerprint, assign.backend, assign.timeout_s) == (placed.fingerprint, "gloo", 60.0)
    assert assign.max_restarts == 3
    assert assign.workers == (
        WorkerSlot(1, 0, "0", {"dp": 0, "tp": 1}),
        WorkerSlot(2, 1, "1", {"dp": 1, "tp": 0}),
        WorkerSlot(3, 2, "2", {"dp": 1, "tp": 1}),
    )
    assert assign.mesh == {"dims": {"dp": 2, "tp": 2}, "crosses_nodes": {"dp": True, "tp": True}}


@pytest.mark.parametrize(
    ("option", "mesh", "found", "device"),
    [
        ("auto", "auto", "cuda", "cuda"),
        ("auto", "cpu", "cuda", "cpu"),
        ("cuda", "cpu", "cpu", "cuda"),
        ("cpu", "auto", "cuda", "cpu"),
    ],
)
def test_the_device_is_what_was_asked_for_then_what_is_there(option: str, mesh: str, found: str, device: str) -> None:
    spec = MeshSpec((("dp", None),), device=mesh)
    asked = job(device=option, mesh=spec)
    assert make_assign(asked, plan("a slots=2", spec), 0, facts(device=found)).device == device
    assert make_brief(asked, 0, 1).device == (option if option != "auto" else mesh)


def test_the_time_out_is_the_options_then_the_mesh_files_then_the_default() -> None:
    spec = MeshSpec((("dp", None),), timeout_s=(("default", 90.0),))
    placed = plan("a slots=2", spec)
    assert make_assign(job(mesh=spec), placed, 0, facts()).timeout_s == 90.0
    assert make_assign(job(mesh=spec, timeout_s=60.0), placed, 0, facts()).timeout_s == 60.0
    assert make_assign(job(), plan("a slots=2"), 0, facts()).timeout_s == 600.0


def test_both_cross_the_wire_as_they_are() -> None:
    asked = job(env=(("RAW", "\udcff"),), argv=("/t.py", "\udcfe"))
    spec = MeshSpec((("dp", None),), views=(("v", ("dp",)),), factorings=(("e", (("x", 2), ("y", None))),))
    messages = [make_brief(asked, 0, 1), make_assign(replace(asked, mesh=spec), plan("a slots=4", spec), 0, facts())]
    assert list(Decoder().feed(b"".join(map(encode, messages)))) == messages
