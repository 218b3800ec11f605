"""Owns: the good run as a history, start to end, and what every run must keep to.
Must not: test faults.
Called by: pytest."""

from meshrun import wire
from meshrun.launch.channel import Closed, Opened, Received, Remark
from meshrun.launch.handshake import Whole
from meshrun.plan.describe import describe_plan
from meshrun.plan.packed import unpack_plan
from meshrun.spec.values import ByHand, Host
from meshrun.watch.state import next_deadline
from meshrun.watch.values import Began, Consumed, Emit, Note, Outcome, Planned, Tick
from tests.watch.history import Run, facts, make_job, said, sends, words


def reached(address="10.0.0.1"):
    return wire.Reached({address: "eth0"}, {})


def test_history_of_a_good_run():
    run = Run(make_job(nodes=2, slots=1))
    history = [
        (0.0, Began(), ["Planned", "Open 0", "Open 1"]),
        (0.2, Opened(1), ["Brief>1"]),
        (0.3, Opened(0), ["Brief>0"]),
        (0.4, Received(0, facts(0)), []),
        (0.5, Received(1, facts(1)), ["Assign>0", "Assign>1", "TryAddresses>1"]),
        (0.6, Received(1, reached()), ["OpenStore>0"]),
        (0.7, Received(0, wire.StoreOpened(0, "10.0.0.1", 29)), ["Start>0", "Start>1"]),
        (0.8, Received(0, wire.Spawned(0, 11, 0, 0.0)), []),
        (0.8, Received(0, wire.Ready(0, 0, 0.0)), []),
        (0.9, Received(1, wire.Ready(1, 0, 0.0)), []),
        (1.0, Received(0, wire.Output(0, 1, b"hi\n")), ["Emit"]),
        (1.1, Consumed(0, 3), ["Ack>0"]),
        (2.1, Tick(), ["Beat>0", "Beat>1"]),
        (3.0, said(0, wire.Exited(0, 0, 0.0, 0, 0, "", False))[0], []),
        (3.1, Received(0, wire.Drained(0)), []),
        (3.2, said(1, wire.Exited(1, 0, 0.0, 0, 0, "", False))[0], []),
        (3.3, Received(1, wire.Drained(0)), ["Leave>0", "Leave>1"]),
        (3.4, Received(1, wire.Bye(())), ["Close 1"]),
        (3.5, Received(0, wire.Bye(())), ["Close 0", "Finish"]),
    ]
    for now, event, expected in history:
        assert words(run.at(now, event)) == expected, (now, event)
    assert (run.result.outcome, run.result.exit_code) == (Outcome.SUCCEEDED, 0)
    assert next_deadline(run.state) is None
    kinds = [action.kind for action in run.all if type(action).__name__ == "Record"]
    assert " ".join(kinds) == (
        "began opened opened facts facts planned address store start spawned ready ready"
        " exited drained exited drained bye bye finish"
    )


def test_phases_of_a_good_run():
    run = Run(make_job())
    run.greet()
    assert run.phase == "addressing"
    run.at(0.1, Received(1, reached()))
    assert run.phase == "storing"
    run.at(0.2, Received(0, wire.StoreOpened(0, "10.0.0.1", 29)))
    assert run.phase == "starting"
    run.at(0.3, *said(0, wire.Ready(0, 0, 0.0), wire.Ready(1, 0, 0.0)), *said(1, wire.Ready(2, 0, 0.0)))
    assert run.phase == "starting"
    run.at(0.4, Received(1, wire.Ready(3, 0, 0.0)))
    assert run.phase == "running"
    run.end(1.0)
    assert run.phase == "leaving"
    run.bye(1.0)
    assert run.phase == "ended"


def test_one_node_needs_no_address():
    run = Run(make_job(nodes=1))
    new = run.greet()
    assert sends(new, wire.TryAddresses) == []
    assert sends(new, wire.OpenStore) == [(0, wire.OpenStore("127.0.0.1", 0, 0, True))]


def test_a_program_gets_a_port_only_and_counts_as_ready_when_spawned():
    run = Run(make_job(nodes=1, slots=1, form="program"))
    assert sends(run.start(), wire.OpenStore)[0][1].bind is False
    run.at(1.0, Received(0, wire.Spawned(0, 5, 0, 0.0)))
    assert run.phase == "running"


def test_pinned_port_goes_to_the_store_but_by_hand_it_is_the_nodes_port():
    run = Run(make_job(nodes=1, master_port=777))
    assert sends(run.greet(), wire.OpenStore)[0][1].port == 777
    hand = ByHand(nnodes=1, node_rank=0, master_addr="10.0.0.1", master_port=777)
    run = Run(make_job(nodes=1, master_port=777, by_hand=hand))
    assert sends(run.greet(), wire.OpenStore)[0][1].port == 0


def test_plan_waits_for_facts_when_slots_are_unknown():
    run = Run(make_job(hosts=(Host("a"), Host("b", slots=1))))
    assert words(run.at(0.0, Began())) == ["Open 0", "Open 1"]
    run.at(0.1, Opened(0), Opened(1))
    assert [brief.slots for _, brief in sends(run.all, wire.Brief)] == [0, 1]
    new = run.at(0.2, Received(0, facts(0, slots=3)), Received(1, facts(1, slots=1)))
    plan = next(action.plan for action in new if isinstance(action, Planned))
    assert [node.slots for node in plan.nodes] == [3, 1]


def test_by_hand_the_nodes_name_themselves():
    hand = ByHand(nnodes=2, node_rank=0, master_addr="10.0.0.1", master_port=777)
    run = Run(make_job(hosts=(Host("a", slots=1), Host("node1")), by_hand=hand))
    run.at(0.0, Began(), Opened(0), Opened(1), Received(0, facts(0, hostname="a", slots=1)))
    new = run.at(0.1, Received(1, facts(1, hostname="b", slots=3)))
    plan = next(action.plan for action in new if isinstance(action, Planned))
    assert [(node.host.name, node.slots) for node in plan.nodes] == [("a", 1), ("b", 3)]
    orders = [order for _, order in sends(new, wire.Assign)]
    assert [order.node_rank for order in orders] == [0, 1]
    (told,) = sends(new, Whole)
    assert told[0] == 1 and describe_plan(unpack_plan(told[1].plan)) == describe_plan(plan)
    run.at(0.2, Closed(1, "eof"))
    assert run.state.causes[0].host == "node 1 (b)"


def test_a_store_with_too_few_files_is_a_warning_where_only_the_script_knows_whether_it_is_used():
    run = Run(make_job(nodes=2, init="off"))
    run.greet(files_most=33)
    (note,) = [note for note in run.all if isinstance(note, Note)]
    assert "the store of 4 ranks needs 36 open files, and the hard limit there is 33" in note.text
    assert len(sends(run.all, wire.Assign)) == 2  # the run goes on


def test_plan_is_said_again_only_if_a_mask_changed_the_devices():
    run = Run(make_job(nodes=1))
    run.greet(devices=("4", "5"))
    plans = [action.plan for action in run.all if isinstance(action, Planned)]
    assert [plan.nodes[0].devices for plan in plans] == [("0", "1"), ("4", "5")]
    run = Run(make_job(nodes=1))
    run.greet(devices=("0", "1"))
    assert sum(isinstance(action, Planned) for action in run.all) == 1


def test_output_is_passed_on_without_a_new_state():
    run = Run(make_job())
    run.run()
    run.at(1.0, Received(0, wire.Output(0, 1, b"a")))
    before = run.state
    assert run.at(1.1, Received(0, wire.Output(1, 2, b"b"))) == [Emit(0, 1, 2, b"b")]
    assert run.state is before


def test_output_of_a_rank_that_is_not_the_nodes_is_dropped():
    run = Run(make_job())
    run.run()
    assert run.at(1.0, Received(0, wire.Output(3, 1, b"a"))) == []


def test_output_keeps_a_node_from_being_silent():
    run = Run(make_job(nodes=1))
    run.run()
    for second in range(1, 40):
        run.at(float(second), Received(0, wire.Output(0, 1, b".")), Tick())
    assert run.phase == "running"


def test_messages_about_other_nodes_ranks_or_attempts_change_nothing():
    run = Run(make_job())
    run.run()
    run.at(1.0, *said(0, wire.Exited(2, 0, 0.0, 1, 0, "", False), wire.Exited(0, 1, 0.0, 1, 0, "", False)))
    assert run.phase == "running" and run.state.first is None


def test_remarks_and_harmless_troubles_are_shown_once_with_the_host():
    run = Run(make_job())
    run.greet()
    trouble = wire.Trouble("agent", "cannot read the counters", "run as root", False)
    new = run.at(1.0, Remark(1, "option X is ignored"), Received(0, trouble))
    texts = [action.text for action in new if isinstance(action, Note)]
    assert texts == ["h1: option X is ignored", "h0: cannot read the counters (run as root)"]


def test_after_the_end_nothing_is_done():
    run = Run(make_job(nodes=1))
    run.run()
    run.end(1.0)
    run.bye(1.0)
    late = [Closed(0, "eof"), Received(0, wire.Output(0, 1, b"x")), Tick(), Opened(0), Began()]
    assert run.at(2.0, *late) == []


def test_two_thousand_nodes():
    run = Run(make_job(nodes=2048, slots=1))
    new = run.run()
    assert len(sends(new, wire.Start)) == 2048
    run.end(5.0)
    run.bye(6.0)
    assert run.result.exit_code == 0
