"""Owns: faults on one of two hosts: the failing host is the one that is named, whichever tells first.
Must not: repeat what one machine shows as well.
Called by: pytest."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.causes.fault import Fault, last_block, read_events, trials
from tests.cluster import Cluster
from tests.e2e.command import assert_nothing_left, on

HOSTS = "n0 slots=2\nn1 slots=2\n"


def start_and_check(fault: Fault, cluster: Cluster, where: Path) -> str:
    """Run the fault on the two hosts; the last block."""
    fault = Fault(**{**vars(fault), "ranks": 0, "options": (*on(cluster, where, hostfile=HOSTS), *fault.options)})
    ended = fault.start(where)
    fault.check(where, ended)
    assert ended.summary["first_failure"]["host"] == f"n{fault.rank // 2}", ended
    return last_block(ended)


def test_what_a_host_lacks_is_said_of_that_host(cluster: Cluster, tmp_path: Path) -> None:
    text = """
        import os, signal
        if os.environ["NODE_RANK"] == "1" and os.environ["LOCAL_RANK"] == "0":
            import nosuchmodule  # here
        signal.pause()
    """
    cause = f"{sys.executable} on n1 has no module nosuchmodule"
    fault = Fault("", text, 1, exception="ModuleNotFoundError", cause=cause, hint="--python PATH", rank=2)
    assert "n1 (node 1), local rank 0" in start_and_check(fault, cluster, tmp_path)
    assert_nothing_left(cluster)


def test_a_crash_on_another_host_brings_its_stack(cluster: Cluster, tmp_path: Path) -> None:
    text = """
        import ctypes, os, signal
        def crash(): ctypes.string_at(0)
        if os.environ["RANK"] == "3": crash()
        signal.pause()
    """
    fault = Fault("", text, 139, "signal", signal=11, said="line 2 in crash", cause="not its own", rank=3)
    start_and_check(fault, cluster, tmp_path)


def test_a_follower_on_node_0_is_not_taken_for_the_cause_on_node_1(cluster: Cluster, tmp_path: Path) -> None:
    """Node 0 tells at once that a connection broke; the cause, on node 1, is told 0.2 s later by a slow process."""
    text = """
        import os, signal, time
        if os.environ["RANK"] == "0":
            raise RuntimeError("[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer")
        if os.environ["RANK"] == "3":
            time.sleep(0.2)
            os.kill(os.getpid(), signal.SIGKILL)
        signal.pause()
    """
    fault = Fault("", text, 137, "signal", signal=9, oom="no", cause="SIGKILL came from outside", rank=3)
    start_and_check(fault, cluster, tmp_path)


@pytest.mark.torch
def test_real_gloo_across_hosts(cluster: Cluster, tmp_path: Path) -> None:
    text = """
        import os, signal, torch, torch.distributed as dist
        dist.init_process_group("gloo")
        dist.barrier()
        if dist.get_rank() == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.all_reduce(torch.ones(1000))
    """
    fault = Fault("", text, 137, "signal", signal=9, oom="no", cause="from outside", rank=2, options=())
    for folder in trials(tmp_path):
        start_and_check(fault, cluster, folder)


def test_an_oom_verdict_travels(cluster: Cluster, tmp_path: Path) -> None:
    """The verdict is the node's; it stands in the events too."""
    text = "import os, signal\nos.kill(os.getpid(), signal.SIGKILL) if os.environ['RANK'] == '2' else signal.pause()\n"
    fault = Fault("", text, 137, "signal", signal=9, cause="SIGKILL came from outside", rank=2)
    options = on(cluster, tmp_path, hostfile=HOSTS)
    ended = Fault(**{**vars(fault), "ranks": 0, "options": (*options, *fault.options)}).start(tmp_path)
    (exited,) = [event for event in read_events(ended) if event["kind"] == "exited" and event["rank"] == 2]
    assert (exited["signal"], exited["oom"], exited["stopped"]) == (9, ended.summary["first_failure"]["oom"], False)
