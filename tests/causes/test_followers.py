"""Owns: races: one rank dies in a collective, the others break off after it; who is first, and why.
Must not: need root. `MESHRUN_CAUSES=20 pytest` tries each twenty times.
Called by: pytest."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.causes.fault import Fault, repeat, trials
from tests.e2e.command import run

pytestmark = pytest.mark.torch

SCRIPT = """
    import ctypes, os, random, signal, sys, time, torch, torch.distributed as dist
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    dist.barrier()
    if rank == {victim}:
        time.sleep({delay})
        {fault}
    {wait}
"""
WAITS = {
    "barrier": "dist.barrier()",
    "all_reduce": "dist.all_reduce(torch.ones(100_000))",
    "store": "dist.distributed_c10d._get_default_store().get('never')",
    "recv": "dist.recv(torch.ones(4), {victim})",
}
FAULTS = {
    "exception": ("raise ValueError('bad')  # here", {"code": 1, "exception": "ValueError", "message": "bad"}),
    "exit": ("sys.exit(7)", {"code": 7, "kind": "exit"}),
    "_exit": ("os._exit(8)", {"code": 8, "kind": "exit"}),
    "SIGKILL": (
        "os.kill(os.getpid(), signal.SIGKILL)",
        {"code": 137, "kind": "signal", "signal": 9, "oom": "no", "cause": "from outside"},
    ),
    "SIGSEGV": (
        "ctypes.string_at(0)",
        {"code": 139, "kind": "signal", "signal": 11, "said": "Segmentation fault", "cause": "not its own"},
    ),
}


def make(wait: str, fault: str, seed: int = 0, ranks: int = 3) -> Fault:
    """The fault on a rank chosen by `seed`, after a delay chosen by it too."""
    chance = random.Random(f"{wait} {fault} {seed}")
    victim, delay = chance.randrange(ranks), chance.choice([0, 0, 0.05])
    line, expected = FAULTS[fault]
    script = SCRIPT.format(victim=victim, delay=delay, fault=line, wait=WAITS[wait].format(victim=victim))
    return Fault("", script, rank=victim, ranks=ranks, options=(), **expected)  # type: ignore[arg-type]


@pytest.mark.parametrize("fault", FAULTS)
def test_the_rank_that_died_is_first(fault: str, tmp_path: Path) -> None:
    """Each time another way to wait for it."""
    waits = list(WAITS)
    for seed, folder in enumerate(trials(tmp_path)):
        case = make(waits[(seed + len(fault)) % len(waits)], fault, seed)
        case.check(folder, case.start(folder))


def test_a_finally_that_destroys_the_groups_does_not_hide_the_cause(tmp_path: Path) -> None:
    """The others see the connection close before the exception has left the script."""
    text = """
        import os, torch, torch.distributed as dist
        dist.init_process_group("gloo")
        try:
            dist.barrier()
            if dist.get_rank() == 1:
                raise ValueError("step 7")  # here
            dist.all_reduce(torch.ones(8))
        finally:
            dist.destroy_process_group()
    """
    repeat(tmp_path, Fault("", text, 1, exception="ValueError", message="step 7", rank=1, ranks=3, options=()))


def test_different_shapes_in_one_collective(tmp_path: Path) -> None:
    """Any of the two may see it first; either way the cause is recognised."""
    text = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(8 if dist.get_rank() else 4096))
"""
    for folder in trials(tmp_path):
        (folder / "script.py").write_text(text)
        ended = run(folder, "--nproc-per-node", "2", "script.py")
        first = ended.summary["first_failure"]
        assert ended.code in (1, 134) and "different shapes" in first["cause"], ended


def test_a_time_out_in_a_collective(tmp_path: Path) -> None:
    text = """
        import datetime, signal, torch, torch.distributed as dist
        dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=1))
        if dist.get_rank() == 0:
            dist.all_reduce(torch.ones(8))  # here
        signal.pause()
    """
    expected = {"exception": "RuntimeError", "message": "Timed out waiting", "cause": "did not come to a collective"}
    fault = Fault("", text, 1, ranks=2, options=(), **expected)  # type: ignore[arg-type]
    fault.check(tmp_path, fault.start(tmp_path))


def test_a_key_that_nobody_sets(tmp_path: Path) -> None:
    text = """
        import datetime, torch.distributed as dist
        dist.init_process_group("gloo")
        dist.distributed_c10d._get_default_store().wait(["never"], datetime.timedelta(seconds=1))  # here
    """
    fault = Fault("", text, 1, exception="torch.distributed.DistStoreError", cause="never", options=())
    fault.check(tmp_path, fault.start(tmp_path))


def test_a_rank_that_ended_early_with_0_is_named_as_the_other_side(tmp_path: Path) -> None:
    text = """
        import torch, torch.distributed as dist
        dist.init_process_group("gloo")
        for step in range(3 - 2 * dist.get_rank()):
            dist.all_reduce(torch.ones(8))  # here
    """
    fault = Fault("", text, 1, exception="RuntimeError", cause="rank(s) 1 had already ended", ranks=2, options=())
    repeat(tmp_path, fault)


def test_a_gloo_thread_that_aborts_is_a_follower(tmp_path: Path) -> None:
    """What a rank does whose C++ thread meets the broken connection: it aborts, before the cause's process is gone."""
    text = """
        import os, signal, time
        rank = int(os.environ["RANK"])
        open(f"here{rank}", "w").close()
        if rank == 1:
            while not os.path.exists("aborting0"): time.sleep(0.01)
            time.sleep(0.1)
            os._exit(5)
        os.write(2, b"terminate called after throwing an instance of 'gloo::IoException'\\n"
            b"  what():  [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [::1]\\n")
        while not os.path.exists("here1"): time.sleep(0.01)
        open("aborting0", "w").close()
        os.abort()
    """
    repeat_in_place = Fault("", text, 5, kind="exit", rank=1, ranks=2)
    for folder in trials(tmp_path):
        ended = repeat_in_place.start(folder)
        repeat_in_place.check(folder, ended)
        assert ended.summary["followed"] == [0]
