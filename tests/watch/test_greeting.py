"""Owns: histories of CONNECTING: retries, final causes, the one report, checks, the plan.
Must not: test later phases.
Called by: pytest."""

import pytest

from meshrun import wire
from meshrun.errors import Cause, CauseKind
from meshrun.launch.channel import Closed, Opened, Received, Unreachable
from meshrun.spec.values import ByHand, Host, MeshSpec
from meshrun.watch.values import Began, Note, Outcome, Tick
from tests.watch.history import Run, facts, make_job, sends, words

REFUSED = Cause(CauseKind.REFUSED, "connection refused")
AUTH = Cause(CauseKind.AUTH, "no key fits")


def causes(run):
    return {entry.host: entry.cause.kind for entry in run.result.causes}


def remarks(actions):
    return [action.text for action in actions if type(action).__name__ == "Note" and action.level == "warning"]


def finish(run, now):
    """The agents that are open say Bye."""
    run.at(now, *(Received(node, wire.Bye(())) for node in range(run.size)))


def test_a_healing_cause_is_tried_again_with_back_off_until_the_deadline():
    run = Run(make_job(nodes=1))
    run.at(0.0, Began())
    delays = []
    now = 0.1
    while new := run.at(now, Unreachable(0, REFUSED)):
        opens = [action.after_s for action in new if type(action).__name__ == "Open"]
        if not opens:
            break
        delays += opens
        now += opens[0]
    assert delays[:6] == [0.25, 0.5, 1.0, 2.0, 4.0, 4.0]
    assert 25 < now < 30
    assert (run.result.exit_code, run.result.outcome) == (125, Outcome.LOST)
    assert causes(run) == {"h0": CauseKind.REFUSED}


def test_who_waits_is_told_once_for_whom_and_why():
    run = Run(make_job(nodes=3))
    run.at(0.0, Began(), Opened(0), Received(0, facts(0)), Unreachable(1, REFUSED), Unreachable(2, REFUSED))
    run.at(0.3, Opened(2), Received(2, facts(2)))
    notes = [action.text for action in run.ticks(20.0, alive=(0, 2)) if isinstance(action, Note)]
    assert notes == ["still trying to reach h1: connection refused; up to 30 s (--connect-timeout)"]


def test_who_does_not_wait_long_is_told_nothing():
    run = Run(make_job(nodes=1))
    run.at(0.0, Began(), Unreachable(0, REFUSED))
    run.at(0.3, Opened(0), Received(0, facts(0)))
    assert not [action for action in run.ticks(8.0, alive=(0,)) if isinstance(action, Note)]


def test_it_heals():
    run = Run(make_job(nodes=1))
    run.at(0.0, Began(), Unreachable(0, REFUSED))
    assert words(run.at(0.3, Opened(0))) == ["Brief>0"]
    run.at(0.4, Received(0, facts()))
    assert run.phase == "storing"


def test_a_final_cause_waits_for_one_answer_of_every_host_and_names_all():
    run = Run(make_job(nodes=4))
    run.at(0.0, Began(), Opened(0), Received(0, facts(0)))
    run.at(0.5, Unreachable(1, AUTH))
    assert run.phase == "connecting"
    assert words(run.at(0.6, Unreachable(2, REFUSED))) == ["Close 2"]  # no retry any more
    assert words(run.at(0.7, Unreachable(3, AUTH))) == ["Close 3", "Leave>0"]
    finish(run, 0.8)
    assert causes(run) == {"h1": CauseKind.AUTH, "h2": CauseKind.REFUSED, "h3": CauseKind.AUTH}
    assert run.result.exit_code == 125


def test_a_host_in_back_off_has_answered_already():
    run = Run(make_job(nodes=2))
    run.at(0.0, Began(), Unreachable(0, REFUSED))
    run.at(0.1, Unreachable(1, AUTH))
    assert causes(run) == {"h0": CauseKind.REFUSED, "h1": CauseKind.AUTH}


def test_ten_seconds_after_the_first_final_cause_nobody_is_waited_for():
    run = Run(make_job(nodes=3))
    run.at(0.0, Began(), Opened(1))
    run.at(1.0, Unreachable(0, AUTH))
    run.ticks(10.9)
    assert run.phase == "connecting"
    run.tick(11.0)
    finish(run, 11.1)
    assert causes(run) == {"h0": CauseKind.AUTH, "h1": CauseKind.AGENT, "h2": CauseKind.TIMED_OUT}


def test_the_connect_deadline_names_who_gave_no_answer():
    run = Run(make_job(nodes=2))
    run.at(0.0, Began(), Opened(0))
    run.at(0.0, Received(0, facts(0)))
    run.ticks(32.0, alive=[0])
    finish(run, 32.0)
    assert causes(run) == {"h1": CauseKind.TIMED_OUT}


def test_by_hand_missing_nodes_have_until_the_start_deadline():
    hand = ByHand(nnodes=2, node_rank=0, master_addr="10.0.0.1", master_port=1)
    run = Run(make_job(nodes=2, by_hand=hand, start_timeout_s=60.0))
    run.at(0.0, Began(), Opened(0), Received(0, facts(0)))
    run.ticks(59.0, alive=[0])
    assert run.phase == "connecting"
    run.ticks(62.0, alive=[0])
    finish(run, 62.0)
    entry = run.result.causes[0]
    assert entry.cause.kind is CauseKind.MISSING and "--node-rank 1" in entry.cause.hint


def test_an_agent_that_dies_before_its_greeting_is_tried_again_but_not_for_ever():
    run = Run(make_job(nodes=1))
    run.at(0.0, Began(), Opened(0))
    assert words(run.at(0.1, Closed(0, "eof", "Traceback"))) == ["Open 0 +0.25"]
    run.at(0.5, Opened(0))
    assert words(run.at(0.6, Closed(0, "eof", "Traceback"))) == ["Open 0 +0.5"]
    run.at(1.5, Opened(0), Closed(0, "eof", "Traceback"))
    assert causes(run) == {"h0": CauseKind.AGENT}
    assert run.result.causes[0].noise == "Traceback"


def test_noise_of_a_death_is_forgotten_once_the_node_greets():
    run = Run(make_job(nodes=2))
    run.at(0.0, Began(), Opened(0), Closed(0, "eof", "motd"), Opened(0), Received(0, facts(0)))
    run.at(0.1, Unreachable(1, AUTH))
    finish(run, 0.2)
    assert causes(run) == {"h1": CauseKind.AUTH}


def test_a_node_that_closes_after_its_greeting_is_lost_at_once():
    run = Run(make_job(nodes=2))
    run.at(0.0, Began(), Opened(0), Received(0, facts(0)), Unreachable(1, REFUSED))
    run.at(0.2, Closed(0, "eof"))
    assert causes(run) == {"h0": CauseKind.LOST, "h1": CauseKind.REFUSED}


def test_silence_while_others_connect():
    run = Run(make_job(nodes=2))
    run.at(0.0, Began(), Opened(0), Received(0, facts(0)), Unreachable(1, REFUSED))
    run.ticks(10.5)
    assert causes(run) == {"h0": CauseKind.LOST, "h1": CauseKind.REFUSED}


@pytest.mark.parametrize(
    ("bad", "kind"), [({"torch": ""}, CauseKind.NO_TORCH), ({"torch": "2.5.0"}, CauseKind.TORCH_VERSION)]
)
def test_unfit_facts_end_the_run_with_every_unfit_host_named(bad, kind):
    run = Run(make_job(nodes=3))
    run.at(0.0, Began(), *map(Opened, range(3)))
    run.at(0.1, Received(0, facts(0)), Received(1, facts(1, **bad)), Received(2, facts(2, **bad)))
    finish(run, 0.2)
    assert causes(run) == {"h1": kind, "h2": kind}
    assert sends(run.all, wire.Start) == [] and run.result.exit_code == 125


def test_all_that_is_wrong_with_a_host_is_named():
    run = Run(make_job(nodes=2))
    run.at(0.0, Began(), *map(Opened, range(2)))
    run.at(0.1, Received(1, facts(1, torch="", workdir_error="/w: no such directory")), Received(0, facts(0)))
    finish(run, 0.2)
    assert [entry.cause.kind for entry in run.result.causes] == [CauseKind.NO_TORCH, CauseKind.NO_WORKDIR]


def test_an_unfit_host_and_an_unreachable_one_are_reported_together():
    run = Run(make_job(nodes=3))
    run.at(0.0, Began(), *map(Opened, range(2)))
    run.at(0.1, Received(0, facts(0)), Received(1, facts(1, torch="1")))
    assert run.phase == "connecting"
    run.at(0.2, Unreachable(2, AUTH))
    finish(run, 0.3)
    assert causes(run) == {"h1": CauseKind.TORCH_VERSION, "h2": CauseKind.AUTH}


def test_fatal_trouble_before_the_greeting_is_a_final_cause():
    run = Run(make_job(nodes=1))
    run.at(0.0, Began(), Opened(0), Received(0, wire.Trouble("prelude", "exit 3", "", True)))
    assert causes(run) == {"h0": CauseKind.PRELUDE}


def test_a_script_that_does_not_compile_is_bad_input():
    run = Run(make_job(nodes=1))
    run.greet(script_error="SyntaxError: invalid syntax", script_line=3)
    finish(run, 0.1)
    assert run.result.exit_code == 2 and "invalid syntax" in run.result.reason


def test_a_mesh_that_does_not_fit_ends_before_connecting_if_slots_are_known():
    run = Run(make_job(nodes=1, mesh=MeshSpec((("dp", 3),))))
    assert not any(word.startswith("Open") for word in words(run.at(0.0, Began())))
    assert run.result.exit_code == 2 and "3" in run.result.reason


def test_a_mesh_that_does_not_fit_what_was_found():
    run = Run(make_job(hosts=(Host("a"),), mesh=MeshSpec((("dp", 3),))))
    run.greet(slots=2)
    finish(run, 0.1)
    assert run.result.exit_code == 2


def test_too_few_devices_are_the_nodes_fault():
    run = Run(make_job(nodes=2, slots=2))
    run.greet(devices=("0",))
    finish(run, 0.1)
    assert causes(run) == {"h0": CauseKind.SLOTS, "h1": CauseKind.SLOTS}
    assert run.result.exit_code == 125


def test_a_second_greeting_changes_nothing():
    run = Run(make_job(nodes=2))
    run.at(0.0, Began(), Opened(0), Received(0, facts(0)))
    assert run.at(0.1, Received(0, facts(0)), Tick()) == []


@pytest.mark.parametrize(("mesh", "notes"), [((("tp", 2), ("dp", 2)), 1), ((("dp", 2), ("tp", 2)), 0)])
def test_a_run_whose_mesh_would_be_faster_in_another_order_says_so_once(mesh, notes):
    run = Run(make_job(nodes=2, mesh=MeshSpec(mesh)))
    run.at(0.0, Began(), Opened(0), Opened(1), Received(0, facts(0)))
    found = [action for action in run.at(0.5, Received(1, facts(1))) if isinstance(action, Note)]
    assert [note.level for note in found] == ["warning"] * notes
    assert all("--mesh dp=2,tp=2" in note.text for note in found)


def test_remarks_about_devices_are_told_once_with_their_hosts():
    run = Run(make_job(nodes=3))
    run.at(0.0, Began(), Opened(0), Opened(1), Opened(2))
    notes = {0: ("A",), 1: ("B", "A"), 2: ("A",)}
    done = run.at(0.1, *(Received(node, facts(node, device_notes=said)) for node, said in notes.items()))
    told = [action.text for action in done if isinstance(action, Note) and action.level == "warning"]
    assert told == ["h0 and 2 more: A", "h1: B"]


def test_with_bind_the_plan_is_made_again_with_what_the_nodes_give():
    run = Run(make_job(nodes=2, nproc_per_node=2, bind="cores"))
    shares = (wire.Share("0-1", 2), wire.Share("2-3", 2))
    new = run.greet(shares=shares)
    assert [brief.bind for _, brief in sends(new, wire.Brief)] == ["cores", "cores"]
    assert [worker.share for worker in run.state.plan.workers] == [*shares, *shares]
    plans = [action.plan for action in new if type(action).__name__ == "Planned"]
    assert [plan.workers[0].share.cpus for plan in plans] == ["", "0-1"]
    assert plans[0].fingerprint == plans[1].fingerprint
    for _, order in sends(new, wire.Assign):
        assert tuple(slot.share for slot in order.workers) == shares
    assert remarks(new) == []


def test_workers_that_share_cores_are_said():
    run = Run(make_job(nodes=1, nproc_per_node=3, bind="cores"))
    new = run.greet(shares=(wire.Share("0", 1), wire.Share("0", 1), wire.Share("1", 1)))
    assert remarks(new) == ["h0: 3 workers share 2 cores (--bind cores)"]
