"""Owns: `--fake`: one rank alone, with torch's fake backend, on tensors that have shapes but no numbers; N steps.
Must not: be imported by a worker of a real run: it costs a second and changes torch for the whole process.
Called by: start; preloaded by the fork server of such a run."""

from __future__ import annotations

import logging
import re
from collections import Counter
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch._dynamo  # FakeTensorMode needs it, and it does not import once stand-ins are in place
import torch.testing._internal.distributed.fake_pg  # registers the backend
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode, unset_fake_temporarily
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.overrides import TorchFunctionMode

from meshrun.worker import judge, peers, stand_ins
from meshrun.worker.session import Session

BACKEND = "fake"
_DEVICE = re.compile(r"(?:cpu|cuda|xpu|npu|hpu|mps)(?::[0-9]+)?\Z")
_CPU = torch.device("cpu")
_MOVES = tuple(getattr(torch.Tensor, name) for name in ("cuda", "xpu") if hasattr(torch.Tensor, name))
_TRUE = (torch.ops.aten.equal.default, torch.ops.aten.allclose.default)


def install(session: Session) -> None:
    """Before any group is made: what talks to other ranks, to an accelerator or to a disk gets a stand-in."""
    session.translate = translate
    session.aside = aside
    stand_ins.install(aside, lambda value: here(value, True))
    peers.install(session, aside)
    judge.install()
    logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)  # it logs what is raised anyway
    if session.order.steps:
        count_steps(session.order.steps)


def enter(session: Session) -> None:
    """From here to the end of the process every new tensor is on the CPU, and (`--tensors fake`) has no numbers."""
    OnCpu().__enter__()
    if session.order.tensors == "fake":
        Shapes(allow_non_fake_inputs=True).__enter__()


def aside() -> AbstractContextManager[Any]:
    """Real tensors for a moment: meshes keep their ranks in some."""
    manager: AbstractContextManager[Any] = unset_fake_temporarily()
    return manager


def translate(asked: dict[str, Any]) -> dict[str, Any]:
    """What a script's `init_process_group` or `init_device_mesh` means in a rehearsal."""
    if "device_type" in asked:
        return asked | {"device_type": here(asked["device_type"])}
    left_out = ("store", "init_method", "device_id", "pg_options", "timeout")
    return {name: value for name, value in asked.items() if name not in left_out} | {"backend": BACKEND}


def count_steps(limit: int) -> None:
    """End the script as by `sys.exit(0)` when one of its optimizers has done so many steps."""
    done: Counter[int] = Counter()

    def note(optimizer: Any, *unused: Any) -> None:
        done[id(optimizer)] += 1
        if done[id(optimizer)] >= limit:
            raise SystemExit(0)

    register_optimizer_step_post_hook(note)


def here(value: Any, number: bool = False) -> Any:
    """A device as it is here: any accelerator is the CPU. `number`: a bare number is a device too."""
    if isinstance(value, torch.device):
        return value if value.type == "meta" else _CPU
    if isinstance(value, str) and _DEVICE.match(value):
        return "cpu"
    return _CPU if number and type(value) is int else value


class OnCpu(TorchFunctionMode):  # type: ignore[misc]
    """Calls of torch that name an accelerator get the CPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """One call."""
        if func in _MOVES:
            return args[0]
        if func is torch.Tensor.record_stream:
            return None
        if func is torch.Tensor.numpy:
            return _as_array(args[0])
        if func is torch.Tensor.__format__ and args[0].dim() == 0:
            return format(args[0].item(), *args[1:])
        numbered = func is torch.Tensor.to
        named = {name: here(value, name == "device") for name, value in (kwargs or {}).items()}
        found = func(*(here(value, numbered) for value in args), **named)
        return here(found) if func is torch.device else found


class Shapes(FakeTensorMode):  # type: ignore[misc]
    """Tensors without numbers. Where a script wants one all the same: 1, 1.0, False; and equal tensors are equal."""

    def dispatch(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """One operator."""
        try:
            return super().dispatch(func, types, args, kwargs or {})
        except DataDependentOutputException:
            if func is torch.ops.aten._local_scalar_dense.default:
                return _number(args[0].dtype)
            if func in _TRUE:
                return True
            raise


def _number(dtype: torch.dtype) -> bool | int | float:
    return False if dtype is torch.bool else 1 if not dtype.is_floating_point else 1.0


def _as_array(tensor: torch.Tensor) -> Any:
    """`numpy()`: an array of the same shape and type."""
    if not isinstance(tensor, torch._subclasses.FakeTensor):
        return tensor.numpy()
    with aside():
        return torch.ones(tensor.shape, dtype=tensor.dtype).numpy()
