"""Owns: histories of ADDRESSING and STORING.
Must not: test other phases.
Called by: pytest."""

import pytest

from meshrun import wire
from meshrun.errors import CauseKind
from meshrun.launch.channel import Received
from meshrun.spec.values import ByHand, Host
from meshrun.watch.values import Note, Tick
from tests.watch.history import Run, make_job, sends

HAND = ByHand(nnodes=2, node_rank=0, master_addr="10.9.9.9", master_port=1)
ADDR = (Host("a", slots=1, addr="192.168.0.1"), Host("b", slots=1))


@pytest.mark.parametrize(
    ("changes", "found", "expected"),
    [
        ({}, ("10.0.0.1", "fe80::1", "127.0.0.1"), ("10.0.0.1", "fe80::1")),
        ({}, ("127.0.0.1", "::1"), ("127.0.0.1", "::1")),  # no other: better than nothing
        ({"master_addr": "gw"}, ("10.0.0.1",), ("gw", "10.0.0.1")),
        ({"master_addr": "10.0.0.1"}, ("10.0.0.7", "10.0.0.1"), ("10.0.0.1", "10.0.0.7")),
        ({"hosts": ADDR}, ("10.0.0.1",), ("192.168.0.1", "10.0.0.1")),
        ({"hosts": ADDR, "master_addr": "gw"}, ("10.0.0.1",), ("gw", "10.0.0.1")),
        ({"by_hand": HAND}, ("10.0.0.1",), ("10.9.9.9", "10.0.0.1")),
    ],
)
def test_candidates(changes, found, expected):
    run = Run(make_job(**changes))
    run.greet(addresses=found)
    ((node, message),) = sends(run.all, wire.TryAddresses)
    assert (node, message.addresses, message.port) == (1, expected, 4000)


def test_one_node_with_a_pinned_address_keeps_it():
    run = Run(make_job(nodes=1, master_addr="10.0.0.1"))
    run.greet()
    assert sends(run.all, wire.OpenStore)[0][1].address == "10.0.0.1"


def answer(run, now, *answers):
    events = [Received(node, wire.Reached(dict.fromkeys(ok, "eth0"), no)) for node, (ok, no) in enumerate(answers, 1)]
    return run.at(now, *events)


def test_the_first_address_that_all_reach():
    run = Run(make_job(nodes=3))
    run.greet(addresses=("A", "B", "C"))
    new = answer(run, 1.0, (["A", "B", "C"], {}), (["B", "C"], {"A": "timed out"}))
    assert sends(new, wire.OpenStore) == [(0, wire.OpenStore("B", 0, 0, True))]
    new = run.at(1.1, Received(0, wire.StoreOpened(0, "B", 99)))
    assert sends(new, wire.Start) == [(node, wire.Start(0, "B", 99)) for node in range(3)]


def test_a_pinned_address_that_not_all_reach_is_said():
    run = Run(make_job(nodes=2, master_addr="gw"))
    run.greet(addresses=("A",))
    new = answer(run, 1.0, (["A"], {"gw": "no route"}))
    assert any(isinstance(action, Note) and "gw" in action.text for action in new)


def test_nobody_reaches_it_names_who_and_why():
    run = Run(make_job(nodes=3))
    run.greet(addresses=("A", "B"))
    answer(run, 1.0, (["A"], {"B": "refused"}), (["B"], {"A": "no route"}))
    run.bye(1.1)
    assert run.result.exit_code == 125 and sends(run.all, wire.Start) == []
    assert {entry.host: entry.cause.kind for entry in run.result.causes} == dict.fromkeys(
        ["h1", "h2"], CauseKind.ADDRESS
    )
    texts = [entry.cause.message for entry in run.result.causes]
    assert texts == ["cannot reach h0 (node 0) at B: refused", "cannot reach h0 (node 0) at A: no route"]


def test_no_answer_within_seconds():
    run = Run(make_job(nodes=3))
    run.greet()
    run.at(1.0, Received(1, wire.Reached({"10.0.0.1": "eth0"}, {})))
    run.ticks(9.0, alive=range(3))
    run.bye(9.0)
    assert [entry.host for entry in run.result.causes] == ["h2"]
    assert "no answer" in run.result.causes[0].cause.message


def test_a_store_that_does_not_open():
    run = Run(make_job(nodes=1))
    run.greet()
    run.ticks(12.0, alive=[0])
    run.bye(12.0)
    assert [entry.cause.kind for entry in run.result.causes] == [CauseKind.STORE]


def test_trouble_with_the_store():
    run = Run(make_job(nodes=1))
    run.greet()
    run.at(1.0, Received(0, wire.Trouble("store", "10.0.0.1:80 is in use", "", True)))
    run.bye(1.1)
    assert run.result.exit_code == 125 and run.result.causes[0].cause.message == "10.0.0.1:80 is in use"


def test_only_node_0_and_this_attempt_can_open_the_store():
    run = Run(make_job(nodes=2))
    run.greet()
    run.at(1.0, Received(1, wire.Reached({"10.0.0.1": "eth0"}, {})))
    stray = [Received(1, wire.StoreOpened(0, "x", 1)), Received(0, wire.StoreOpened(3, "x", 1))]
    assert sends(run.at(1.1, *stray), wire.Start) == []


def test_among_many_nodes_the_launcher_waits_longer_for_the_last_answer():
    run = Run(make_job(nodes=1000, slots=1))
    run.greet(addresses=("A",))
    first = [Received(node, wire.Reached({"A": "eth0"}, {})) for node in range(1, 999)]
    assert sends(run.at(8.5, *first, Tick()), wire.OpenStore) == []
    new = run.at(8.9, Received(999, wire.Reached({"A": "eth0"}, {})))
    assert sends(new, wire.OpenStore) and not run.state.causes
