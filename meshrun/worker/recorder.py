"""Owns: answering the agent's question which collectives this process has issued, while its main thread is inside one.
Must not: keep the process from ending, answer in a process that it forked, hold a descriptor, or take part in signals.
Called by: groups and adopt, as soon as a process group exists here."""

from __future__ import annotations

import _thread
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterable
from typing import Any

from meshrun import wire
from meshrun.worker.session import Session

CALLS = 16  # kept of each group and backend
GROUPS = 64
_SIZES = 100
# What torch calls its recorders: that of gloo and the rest, and NCCL's own where torch is built with it.
_DUMPS = ("_dump_fr_trace_json", "_dump_nccl_trace_json")

_since_ns = 0  # when the world group that exists now was made: older entries are of groups with the same names
_serving = False


def start(session: Session) -> None:
    """Answer from now on. A process group has native threads, so this one makes no later fork less safe."""
    global _since_ns, _serving
    if session.generation > 1:
        _since_ns = time.time_ns()
    if _serving or not session.launched:
        return
    path = os.path.join(session.order.tmp, f"{wire.CALLS_ASKED}{session.place.rank}")
    # A thread of the lowest kind, since `threading` lists its own; and none of the user's signals may land in it.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        with contextlib.suppress(FileExistsError):  # an attempt before this one made it
            os.mkfifo(path, 0o600)
        _thread.start_new_thread(_serve, (session, path))
        _serving = True
    except (OSError, RuntimeError):
        pass  # no room for a file or a thread: the stacks are there without it
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _serve(session: Session, path: str) -> None:
    """Wait where the process holds nothing: inside the opening of a pipe that nobody writes to."""
    told = os.path.join(session.order.tmp, f"{wire.CALLS_TOLD}{session.place.rank}")
    while True:
        try:
            os.close(os.open(path, os.O_RDONLY))
        except OSError:
            return
        with contextlib.suppress(Exception):  # no answer is an answer: nothing may appear on the user's stderr
            data = json.dumps(describe())
            with open(f"{told}.new", "w", encoding="ascii") as file:
                file.write(data)
            os.rename(f"{told}.new", told)


def describe() -> dict[str, Any]:
    """This process's groups, and the last collectives of each, by backend. Torch is there: a group exists."""
    groups = _list_groups()
    for name in _DUMPS:
        dump = getattr(sys.modules["torch._C._distributed_c10d"], name, None)
        if dump is not None:
            _add_calls(groups, json.loads(dump()).get("entries") or [])
    return {"groups": list(groups.values())[-GROUPS:]}


def _list_groups() -> dict[str, dict[str, Any]]:
    world = sys.modules["torch.distributed.distributed_c10d"]._world
    members = dict(world.pg_group_ranks)
    size = max(map(len, members.values()), default=0)
    found = {}
    for group, name in list(world.pg_names.items()):
        ranks = sorted(members.get(group, ()))
        desc = str(getattr(group, "group_desc", ""))
        # The world may be thousands of ranks, and every one of them would list it.
        found[str(name)] = {"name": str(name), "desc": desc, "ranks": [] if len(ranks) == size else ranks, "calls": {}}
    return found


def _add_calls(groups: dict[str, dict[str, Any]], entries: Iterable[dict[str, Any]]) -> None:
    """The entries in the order in which they were made. Point-to-point calls are counted apart, so they are left out.

    The recorder is a ring: once it is full, that a group has no entry says nothing, so such groups go."""
    now_ns = time.time_ns()
    ordered = sorted(entries, key=lambda entry: int(entry.get("record_id", 0)))
    for entry in ordered:
        group = groups.get(str(entry["process_group"][0]))
        if group is not None and not entry.get("is_p2p") and entry["time_created_ns"] >= _since_ns:
            backend, _, op = str(entry["profiling_name"]).rpartition(":")
            sizes = str(entry.get("input_sizes") or entry.get("output_sizes") or "")[1:-1][:_SIZES]
            age_s = round(max(0.0, (now_ns - entry["time_created_ns"]) / 1e9), 3)
            calls = group["calls"].setdefault(backend, [])
            calls.append([entry["collective_seq_id"], op, sizes, str(entry["state"]), age_s])
            del calls[:-CALLS]
    if ordered and int(ordered[0].get("record_id", 0)) > 0:
        for name in [name for name, group in groups.items() if not group["calls"]]:
            del groups[name]
