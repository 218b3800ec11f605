"""Owns: the thread that answers which collectives a worker has issued: when it is there, what it says, what it leaves.
Must not: judge the answer (tests/watch/test_collectives does).
Called by: pytest."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from meshrun.agent.recorder import Question
from meshrun.worker.recorder import CALLS, _add_calls
from tests.worker.player import End, Player, Running
from tests.worker.probes import script

GROUP = 'dist.init_process_group("gloo")\ndist.all_reduce(torch.ones(4))\n'
WAITS = """
import time
from pathlib import Path
def wait():
    Path("ready").touch()
    while not Path("go").exists(): time.sleep(0.01)
"""


@contextmanager
def running(player: Player, text: str, **env: str) -> Iterator[list[Running]]:
    """One worker whose script has called `wait`; it goes on behind the block."""
    for name in ("ready", "go"):
        (player.tmp / name).unlink(missing_ok=True)
    path = script(player, WAITS + text)
    with player.store(1) as port:
        workers = player.launch(player.order(path), 1, port, **env)
        until = time.monotonic() + 60
        while not (player.tmp / "ready").exists():
            assert time.monotonic() < until, workers[0].wait()
            time.sleep(0.005)
        try:
            yield workers
        finally:
            (player.tmp / "go").touch()
            ends: list[End] = [worker.wait() for worker in workers]
        assert [(end.code, end.err) for end in ends] == [(0, "")], ends


def ask(tmp: Path) -> dict[str, Any]:
    question = Question(str(tmp), 0)
    assert question.waiting
    until = time.monotonic() + 30
    while question.waiting:
        assert time.monotonic() < until
        question.look()
        time.sleep(0.005)
    return question.answer


@pytest.mark.torch
def test_it_answers_again_and_again_and_says_what_was_called(player: Player) -> None:
    with running(player, GROUP + "dist.broadcast(torch.ones(2, 3), 0)\nwait()\ndist.destroy_process_group()"):
        for _ in range(2):
            (group,) = ask(player.tmp)["groups"]
            assert (group["name"], group["desc"], group["ranks"]) == ("0", "default_pg", [])
            assert [call[:4] for call in group["calls"]["gloo"]] == [
                [1, "all_reduce", "[4]", "scheduled"],
                [2, "broadcast", "[2, 3]", "scheduled"],
            ]
            assert all(0 <= call[4] < 60 for call in group["calls"]["gloo"])


@pytest.mark.torch
def test_no_group_no_thread(player: Player) -> None:
    with running(player, "wait()"):
        assert not Question(str(player.tmp), 0).waiting


@pytest.mark.torch
def test_the_script_sees_no_thread_and_loses_no_signal(player: Player) -> None:
    text = """
import signal, threading
masks = []
for task in Path("/proc/self/task").iterdir():
    lines = dict(line.split(":", 1) for line in (task / "status").read_text().splitlines())
    masks.append(int(lines["SigBlk"], 16) >> signal.SIGUSR1 - 1 & 1)
assert sum(masks) == 1, masks
assert threading.enumerate() == [threading.main_thread()]
assert not any("/ask" in os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")[:-1])
assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())
wait()
"""
    with running(player, GROUP + text):
        assert ask(player.tmp)["groups"]


@pytest.mark.torch
def test_a_process_that_the_script_forked_does_not_answer(player: Player) -> None:
    # Python 3.12 and later remark on any fork beside other threads, and gloo has some.
    text = """
import warnings
warnings.simplefilter("ignore", DeprecationWarning)
if os.fork() == 0:
    wait()
    os._exit(0)
while not Path("ready").exists(): time.sleep(0.01)
os._exit(0)
"""
    with running(player, GROUP + text) as (worker,):
        until = time.monotonic() + 30
        while not Path(f"/proc/{worker.end.pid}/stat").read_text().rpartition(")")[2].startswith(" Z"):
            assert time.monotonic() < until
            time.sleep(0.005)
        assert not Question(str(player.tmp), 0).waiting


@pytest.mark.torch
def test_a_second_world_counts_anew(player: Player) -> None:
    again = "dist.destroy_process_group()\ndist.init_process_group('gloo')\ndist.barrier()\nwait()"
    with running(player, GROUP + GROUP.splitlines()[1] + "\n" + again):
        (group,) = ask(player.tmp)["groups"]
        assert [call[:2] for call in group["calls"]["gloo"]] == [[1, "barrier"]]


@pytest.mark.torch
def test_a_recorder_that_is_switched_off_says_nothing(player: Player) -> None:
    with running(player, GROUP + "wait()", TORCH_FR_BUFFER_SIZE="0"):
        assert [group["calls"] for group in ask(player.tmp)["groups"]] == [{}]


# ---- what is kept ----


def entry(record: int, name: str, seq: int, **changes: Any) -> dict[str, Any]:
    return {
        "record_id": record,
        "process_group": [name, ""],
        "profiling_name": "nccl:all_reduce",
        "collective_seq_id": seq,
        "input_sizes": [[4]],
        "state": "completed",
        "time_created_ns": 1,
        **changes,
    }


def add(*entries: dict[str, Any]) -> dict[str, Any]:
    groups = {name: {"calls": {}} for name in ("0", "1")}
    _add_calls(groups, entries)
    return {name: group["calls"] for name, group in groups.items()}


def test_only_the_last_calls_are_kept_and_in_order() -> None:
    kept = add(*(entry(n, "0", n + 1) for n in reversed(range(3 * CALLS))))
    assert [call[0] for call in kept["0"]["nccl"]] == list(range(2 * CALLS + 1, 3 * CALLS + 1))
    assert kept["1"] == {}


def test_of_a_full_ring_a_group_without_entries_is_left_out() -> None:
    assert set(add(entry(5, "0", 9))) == {"0"}


def test_point_to_point_calls_and_dead_groups_are_left_out() -> None:
    assert add(entry(0, "0", 1, is_p2p=True), entry(1, "gone", 1)) == {"0": {}, "1": {}}
