"""Owns: `--fake`: whether what a collective is given fits its group, as torch's real backends check it.
Must not: communicate, or refuse what gloo or NCCL can do.
Called by: rehearsal."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch.distributed as dist

from meshrun.worker.stand_ins import replace_everywhere

Given = Mapping[str, Any]
Check = Callable[[Given, int], str]  # the arguments by name, the ranks of the group → what is wrong, or ""


def install() -> None:
    """Before the script: every function that is named below, and was not replaced already, judges first."""
    for name, check in CHECKS.items():
        original = getattr(dist, name, None)
        if original is not None:
            replace_everywhere(name, original, _judged(name, original, check))


def _judged(name: str, original: Callable[..., Any], check: Check) -> Callable[..., Any]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def judged(*args: Any, **kwargs: Any) -> Any:
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError:
            return original(*args, **kwargs)  # torch's own words for it
        size = dist.get_world_size(given.get("group")) if dist.is_initialized() else -1
        if size > 0 and (wrong := check(given, size)):  # a rank outside the group: torch warns
            raise ValueError(f"{name}: {wrong}")
        return original(*args, **kwargs)

    return judged


def _peer(*names: str) -> Check:
    """A rank of the world. Whether it belongs to a group that is given, torch looks by itself."""

    def check(given: Given, size: int) -> str:
        world = dist.get_world_size()
        ranks = [given[name] for name in names if isinstance(given.get(name), int)]
        wrong = [rank for rank in ranks if not 0 <= rank < world]
        return f"there is no rank {wrong[0]} in a world of {world}" if wrong else ""

    return check


def _peers_of_batch(given: Given, size: int) -> str:
    found = [_peer("peer")({"peer": getattr(op, "peer", None)}, size) for op in given["p2p_op_list"]]
    return next(filter(None, found), "")


def _lists(*names: str) -> Check:
    """A list with a tensor for each rank; where only one rank gives it, others leave it out."""

    def check(given: Given, size: int) -> str:
        lists = [(name, given[name]) for name in names if isinstance(given.get(name), Sequence) and given[name]]
        wrong = [f"{len(items)} tensors in {name} for a group of {size} ranks" for name, items in lists]
        return next((text for text, (_, items) in zip(wrong, lists, strict=True) if len(items) != size), "")

    return check


def _times(large: str, small: str) -> Check:
    """One tensor has as many elements as those of all ranks together."""

    def check(given: Given, size: int) -> str:
        many, one = (given[_spelled(given, name)] for name in (large, small))
        if many.numel() == size * one.numel():
            return ""
        shapes = f"{large} is {tuple(many.shape)}, {small} {tuple(one.shape)}"
        return f"{shapes}: {many.numel()} elements are not {size} ranks times {one.numel()}"

    return check


def _spelled(given: Given, name: str) -> str:
    return name if name in given else f"{name}_tensor"


def _splits(given: Given, size: int) -> str:
    for name in ("output", "input"):
        length, parts = given[name].shape[0], given.get(f"{name}_split_sizes")
        if parts and (len(parts) != size or sum(parts) != length):
            return f"{name}_split_sizes {list(parts)} for {length} rows and {size} ranks"
        if not parts and length % size:
            return f"{length} rows of {name} cannot be split among {size} ranks"
    return ""


def _both(*checks: Check) -> Check:
    return lambda given, size: next(filter(None, (check(given, size) for check in checks)), "")


CHECKS: dict[str, Check] = {
    **dict.fromkeys(("send", "isend"), _peer("dst")),
    **dict.fromkeys(("recv", "irecv", "broadcast"), _peer("src")),
    "reduce": _peer("dst"),
    "batch_isend_irecv": _peers_of_batch,
    "gather": _both(_peer("dst"), _lists("gather_list")),
    "scatter": _both(_peer("src"), _lists("scatter_list")),
    "all_gather": _lists("tensor_list"),
    "reduce_scatter": _lists("input_list"),
    "all_to_all": _lists("output_tensor_list", "input_tensor_list"),
    "all_to_all_single": _splits,
    **dict.fromkeys(("all_gather_into_tensor", "all_gather_single"), _times("output", "input")),
    **dict.fromkeys(("reduce_scatter_tensor", "reduce_scatter_single"), _times("input", "output")),
}
