"""Owns: the rendezvous store: the process that serves it, the clients, and the comparison of plans through it.
Must not: make process groups.
Called by: `__main__` and forkserver (serve), groups and adopt (clients)."""

from __future__ import annotations

import os
import resource
import signal
import socket
from typing import TYPE_CHECKING, Any, NoReturn

from meshrun import wire

if TYPE_CHECKING:
    from torch.distributed import Store

    from meshrun.worker.session import Session


class PlanMismatch(RuntimeError):
    """Two ranks of one run were given different plans."""


def serve_store(order: wire.ForkStore, listening: int) -> NoReturn:
    """Serve a TCPStore on a socket that already listens, until killed. Clients that came early wait in its backlog."""
    from datetime import timedelta

    prepare_for_clients()
    host, port = socket.socket(fileno=os.dup(listening)).getsockname()[:2]
    store = make_server(
        host,
        port,
        world_size=order.world_size,
        is_master=True,
        timeout=timedelta(seconds=order.timeout_s),
        wait_for_workers=False,
        master_listen_fd=listening,
    )
    while store:
        signal.pause()
    raise AssertionError


def make_server(*place: Any, **how: Any) -> Store:
    """A TCPStore that serves. torch 2.5's usual server takes no socket that listens already, its older one does; both
    speak to the same clients."""
    from torch.distributed import TCPStore

    try:
        store: Store = TCPStore(*place, **how)
    except NotImplementedError:
        store = TCPStore(*place, **how, use_libuv=False)
    return store


def prepare_for_clients() -> None:
    """Every rank of the run will be a client: more open files than the usual 1,024, and no long wait for a name.

    torch's store asks the name server for the name of each client's address (2.13), one after another, in the thread
    that serves: where an answer is lost, all ranks would wait the resolver's 5 s for nothing but a line of a log."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")


def open_store(session: Session, timeout_s: float) -> Store:
    """A client of the run's store; outside meshrun rank 0 serves it, as torch's `env://` does."""
    from datetime import timedelta

    from torch.distributed.rendezvous import rendezvous

    if session.launched:
        return open_at(session, *session.master, timeout_s, serve=False)
    store, _, _ = next(rendezvous("env://", timeout=timedelta(seconds=timeout_s)))
    store.set_timeout(timedelta(seconds=timeout_s))
    found: Store = store
    return found


def open_at(session: Session, host: str, port: int, timeout_s: float, serve: bool) -> Store:
    """A TCPStore at an address. torch's own functions would take every address for that of the agent's store, because
    of TORCHELASTIC_USE_AGENT_STORE, and wait there for a server that nobody starts."""
    from datetime import timedelta

    from torch.distributed import TCPStore

    store: Store = TCPStore(
        host, port, session.place.world_size, serve, timedelta(seconds=timeout_s), multi_tenant=serve
    )
    return store


def compare_plans(store: Store, rank: int, fingerprint: str) -> None:
    """Every rank compares its plan with the first one that came, before any group is made. Raises PlanMismatch."""
    mine = f"{rank} {fingerprint}"
    first = store.compare_set("meshrun/plan", "", mine).decode()
    other_rank, _, other = first.partition(" ")
    if other != fingerprint:
        raise PlanMismatch(
            f"rank {rank} was given plan {fingerprint}, rank {other_rank} plan {other}: "
            "all ranks must be started from the same hostfile, mesh and options"
        )
