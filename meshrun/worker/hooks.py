"""Owns: putting the adopting functions in torch's place: now where torch is imported, at its import where it is not.
Must not: import torch itself; a script without torch must not pay for it.
Called by: start."""

from __future__ import annotations

import functools
import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from meshrun.worker.session import current

PLACES = {
    "torch.distributed.distributed_c10d": ("init_process_group", "destroy_process_group"),
    "torch.distributed.device_mesh": ("init_device_mesh",),
}


def install() -> None:
    """Replace torch's three functions wherever they are, or will be."""
    loaded = [name for name in PLACES if name in sys.modules]
    for name in loaded:
        _replace(sys.modules[name], list(sys.modules.values()))
    if len(loaded) < len(PLACES):
        sys.meta_path.insert(0, _Finder())


def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
    """The function of `adopt` with the name and signature of `original`; in other processes the original itself.

    Frameworks inspect the signature (torch-facts, contract 14), hence `functools.wraps`."""

    @functools.wraps(original)
    def adopted(*args: Any, **kwargs: Any) -> Any:
        session = current()
        if session is None:
            return original(*args, **kwargs)
        from meshrun.worker import adopt

        if not session.here:
            return adopt.call_in_child(session, original, args, kwargs)
        with session.aside():
            return getattr(adopt, original.__name__)(session, original, args, kwargs)

    adopted.meshrun_original = original  # type: ignore[attr-defined]
    return adopted


def _replace(module: ModuleType, holders: Sequence[ModuleType]) -> None:
    for name in PLACES[module.__name__]:
        original = getattr(module, name, None)
        if original is None or hasattr(original, "meshrun_original"):
            continue
        adopted = wrap(original)
        for holder in holders:
            if getattr(holder, "__dict__", {}).get(name) is original:
                setattr(holder, name, adopted)


class _Finder:
    """A meta path finder that lets the others find and adds one step after the execution of each of the two modules.

    (No subclass of importlib.abc.MetaPathFinder: that module imports half of pathlib and tempfile, 8 ms a start.)"""

    def __init__(self) -> None:
        self._left = set(PLACES) - set(sys.modules)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Only for our two modules, and once for each."""
        if fullname not in self._left:
            return None
        self._left.discard(fullname)
        spec = importlib.util.find_spec(fullname)
        if not self._left:
            sys.meta_path.remove(self)
        loader: Any = spec and spec.loader
        if loader is not None:
            loader.exec_module = functools.partial(_exec_then_replace, loader.exec_module)
        return spec


def _exec_then_replace(exec_module: Callable[[ModuleType], None], module: ModuleType) -> None:
    exec_module(module)
    _replace(module, [module])
