"""Owns: `--fake`: what the rehearsed ranks do tell each other: objects sent from one to another, and what the stages of
a pipeline say of their shapes.
Must not: wait for a rank that is not rehearsed: the message names the ranks that it takes.
Called by: rehearsal."""

from __future__ import annotations

import functools
import pickle
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed.pipelining import stage as torch_stage

from meshrun.worker.session import Session
from meshrun.worker.stand_ins import replace_everywhere
from meshrun.worker.store import open_at

Aside = Callable[[], AbstractContextManager[Any]]


class NotRehearsed(RuntimeError):
    """This rank needs something from a rank that does not run here."""


class Peers:
    """The other ranks that are rehearsed now. What is sent to any other is dropped."""

    def __init__(self, session: Session, aside: Aside) -> None:
        self.session, self.aside = session, aside
        self.rank, self.ranks = session.place.rank, session.order.rehearsed
        self.store: dist.Store | None = None
        self.turns: Counter[str] = Counter()

    def send(self, to: int, thing: Any) -> None:
        """To be received there in this order. Never waits."""
        if to in self.ranks:
            with self.aside():
                self._open().set(self._turn(f"{self.rank}/{to}"), pickle.dumps(thing))

    def receive(self, source: int) -> Any:
        """The next thing that a rehearsed rank has sent to this one; waits for it as long as a collective would."""
        with self.aside():
            return pickle.loads(self._open().get(self._turn(f"{source}/{self.rank}")))

    def say_which(self, needed: set[int]) -> str:
        """The option that runs these ranks too: `--ranks 0,4,8`"""
        return "--ranks " + ",".join(map(str, sorted({*self.ranks, *needed, self.rank})))

    def _open(self) -> dist.Store:
        if self.store is None:
            timeout_s = self.session.order.timeout_s
            base = open_at(self.session, *self.session.master, timeout_s, serve=False)
            base.set_timeout(timedelta(seconds=timeout_s))
            self.store = dist.PrefixStore(f"meshrun/{self.session.order.attempt}/peers", base)
        return self.store

    def _turn(self, pair: str) -> str:
        self.turns[pair] += 1
        return f"{pair}/{self.turns[pair]}"


def install(session: Session, aside: Aside) -> None:
    """Before the script: objects and pipelines go by way of the run's store."""
    peers = Peers(session, aside)
    _objects(peers)
    if hasattr(torch_stage.PipelineStage, "_warmup_forward_vote"):  # torch 2.13; before, stages sent plain objects
        _pipelines(peers)


def _objects(peers: Peers) -> None:
    send, receive = dist.send_object_list, dist.recv_object_list

    @functools.wraps(send)
    def send_here(object_list: list[Any], dst: Any = None, group: Any = None, *rest: Any, **named: Any) -> None:
        peers.send(_global(group, dst, named.get("group_dst")), list(object_list))

    @functools.wraps(receive)
    def receive_here(object_list: list[Any], src: Any = None, group: Any = None, *rest: Any, **named: Any) -> int:
        source = _global(group, src, named.get("group_src"))
        if source not in peers.ranks:
            text = f"rank {peers.rank} receives an object from rank {source}, which is not rehearsed"
            raise NotRehearsed(f"{text}: {peers.say_which({source})}")
        object_list[:] = peers.receive(source)
        return source

    replace_everywhere("send_object_list", send, send_here)
    replace_everywhere("recv_object_list", receive, receive_here)


def _global(group: Any, rank: int | None, in_group: int | None) -> int:
    if in_group is not None:
        return int(dist.get_global_rank(group or dist.group.WORLD, in_group))
    return -1 if rank is None else rank


# ---- pipelines: what torch 2.13 asks the neighbours of a stage before its first step ----


class _Vote(int):
    """1: this rank's stages were all given their shapes, 0: they are to be found. torch asks by `item()`."""

    def item(self) -> int:
        return int(self)


def _pipelines(peers: Peers) -> None:
    """A stage's inputs have the shape that the stage before found, if that is rehearsed, or that the script says; the
    gradients of its outputs have the shape of the outputs."""
    model: Any = torch_stage.PipelineStage
    prepare = model._prepare_forward_infra

    def vote(self: Any, has_backward: bool, received_acc: int | None = None) -> _Vote:
        given = not torch_stage.InferenceMode.needs_dynamic(self._user_meta, has_backward)
        return _Vote(given and received_acc != 0)

    def result(self: Any, received_result: _Vote) -> _Vote:
        return received_result

    @functools.wraps(prepare)
    def prepare_here(self: Any, *args: Any, **named: Any) -> Any:
        found = prepare(self, *args, **named)
        if self._inference_mode is torch_stage.InferenceMode.STATIC and not self.is_last:
            send_meta(self, torch_stage._StageForwardMeta(self._stage_meta.outputs), self.stage_index + 1)
        return found

    def send_meta(self: Any, meta: Any, dst_stage: int) -> None:
        if dst_stage > self.stage_index and not self._is_same_rank(dst_stage):
            peers.send(self._resolve_peer_global_rank(dst_stage), meta)

    def receive_meta(self: Any, src_stage: int) -> Any:
        if src_stage > self.stage_index:
            return torch_stage._StageBackwardMeta(self._user_meta.output_grads or _gradients(self._stage_meta.outputs))
        source = self._resolve_peer_global_rank(src_stage)
        if source in peers.ranks:
            return peers.receive(source)
        if self._user_meta.inputs is None:
            raise NotRehearsed(_explain(self, peers))
        return torch_stage._StageForwardMeta(self._user_meta.inputs)

    model._warmup_forward_vote, model._warmup_backward_result = vote, result
    model._prepare_forward_infra, model._send_meta, model._recv_meta = prepare_here, send_meta, receive_meta


def _gradients(outputs: Any) -> tuple[Any, ...]:
    plain = torch_stage._derive_grad_metas(outputs)  # it leaves DTensors out
    return tuple(_without_grad(meta) if meta.requires_grad else None for meta in outputs) if None in plain else plain


def _without_grad(meta: Any) -> Any:
    fields = {name: getattr(meta, name) for name in meta.__dataclass_fields__}
    return type(meta)(**fields | {"requires_grad": False})


def _explain(stage: Any, peers: Peers) -> str:
    """Which ranks it takes: the shapes of a stage are found from the first stage on."""
    at = stage.stage_index
    ranks = [stage._resolve_peer_global_rank(earlier) for earlier in range(at)]
    return (
        f"the shapes of pipeline stage {at}'s inputs come from stage {at - 1}, "
        f"whose rank {ranks[-1]} is not rehearsed: {peers.say_which(set(ranks))}, or give PipelineStage its input_args"
    )
