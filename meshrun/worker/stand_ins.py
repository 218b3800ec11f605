"""Owns: what parts of torch do in a process that is one rank alone: groups, objects, DDP, meshes, loaders, checkpoints.
Must not: decide when; it changes torch for the whole process, once.
Called by: rehearsal."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch.distributed import distributed_c10d
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import distributed as ddp
from torch.utils.data import DataLoader

Function = Callable[..., Any]
Aside = Callable[[], AbstractContextManager[Any]]


def install(aside: Aside, here: Function) -> None:
    """Put all of them in place. `aside`: with real tensors; `here`: a device as it is in a rehearsal."""
    _fake_groups()
    _objects()
    _data_parallel()
    _meshes(aside, here)
    _modules(here)
    _nothing_saved()
    _accelerator()


def replace_everywhere(name: str, original: Any, new: Any) -> None:
    """In every module that holds torch's own function."""
    for module in list(sys.modules.values()):
        if getattr(module, "__dict__", {}).get(name) is original:
            setattr(module, name, new)


def _fake_groups() -> None:
    """Whatever backend a group is asked for (new_group, a mesh's override), it is the fake one."""
    make = distributed_c10d._new_process_group_helper

    @functools.wraps(make)
    def make_fake(size: int, rank: int, ranks: Any, backend: Any, store: Any, *args: Any, **kwargs: Any) -> Any:
        for name in ("backend_options", "pg_options", "device_id"):
            if name in kwargs:
                kwargs[name] = None
        return make(size, rank, ranks, dist.Backend(dist.Backend.FAKE), store, *args, **kwargs)

    distributed_c10d._new_process_group_helper = make_fake


def _objects() -> None:
    """Pickled objects travel as numbers, and there are none: every rank is taken to have what this one has."""

    def all_gather_object(object_list: list[Any], obj: Any, group: Any = None) -> None:
        object_list[:] = [obj] * len(object_list)

    def gather_object(obj: Any, object_gather_list: list[Any] | None = None, *args: Any, **kwargs: Any) -> None:
        if object_gather_list is not None:
            object_gather_list[:] = [obj] * len(object_gather_list)

    def broadcast_object_list(object_list: list[Any], *args: Any, **kwargs: Any) -> None:
        pass

    def scatter_object_list(
        scatter_object_output_list: list[Any], scatter_object_input_list: list[Any] | None = None, *args: Any, **kw: Any
    ) -> None:
        if scatter_object_input_list:
            scatter_object_output_list[0] = scatter_object_input_list[0]

    for new in (all_gather_object, gather_object, broadcast_object_list, scatter_object_list):
        original = getattr(dist, new.__name__)
        replace_everywhere(new.__name__, original, functools.wraps(original)(new))


class _Nothing:
    """Takes every call and returns None: DDP's reducer and logger, which are C++ and read numbers."""

    def __getattr__(self, name: str) -> Function:
        return _do_nothing


def _do_nothing(*args: Any, **kwargs: Any) -> None:
    pass


def _data_parallel() -> None:
    """DDP checks its arguments and calls the module; gradients are not reduced, which changes no shape."""
    model: Any = ddp.DistributedDataParallel
    build = model.__init__

    @functools.wraps(build)
    def build_here(self: Any, module: Any, device_ids: Any = None, output_device: Any = None, **kwargs: Any) -> None:
        build(self, module, **kwargs)

    def help_init(self: Any, *args: Any, **kwargs: Any) -> None:
        self.reducer = self.logger = _Nothing()

    model.__init__, model._ddp_init_helper = build_here, help_init
    model.register_comm_hook = model._register_builtin_comm_hook = _do_nothing
    ddp._verify_param_shape_across_processes = ddp._sync_module_states = _do_nothing


def _meshes(aside: Aside, here: Function) -> None:
    """A mesh computes with the numbers of its ranks: every function of it runs with real tensors."""

    def real(function: Function) -> Function:
        @functools.wraps(function)
        def with_numbers(*args: Any, **kwargs: Any) -> Any:
            with aside():
                return function(*args, **kwargs)

        return with_numbers

    for name, value in list(vars(DeviceMesh).items()):
        if isinstance(value, property) and value.fget:
            setattr(DeviceMesh, name, property(real(value.fget), value.fset))
        elif isinstance(value, staticmethod):
            setattr(DeviceMesh, name, staticmethod(real(value.__func__)))
        elif callable(value) and name not in ("__enter__", "__exit__"):
            setattr(DeviceMesh, name, real(value))
    build: Function = vars(DeviceMesh)["__init__"]

    @functools.wraps(build)
    def build_here(self: Any, device_type: Any, *args: Any, **kwargs: Any) -> None:
        build(self, here(device_type), *args, **kwargs)

    DeviceMesh.__init__ = build_here


# Arguments of a DataLoader that are about its processes.
_OF_LOADERS = (
    *("num_workers", "worker_init_fn", "prefetch_factor", "persistent_workers", "multiprocessing_context", "timeout"),
    *("pin_memory", "pin_memory_device"),
)


def _modules(here: Function) -> None:
    """Modules go to no accelerator and are not compiled; data is loaded in this process."""
    module: Any = torch.nn.Module
    move, load = module.to, DataLoader.__init__

    @functools.wraps(move)
    def move_here(self: Any, *args: Any, **kwargs: Any) -> Any:
        return move(self, *map(here, args), **{name: here(value) for name, value in kwargs.items()})

    @functools.wraps(load)
    def load_here(self: Any, *args: Any, **kwargs: Any) -> None:
        asked = inspect.signature(load).bind(self, *args, **kwargs).arguments
        load(**{name: value for name, value in asked.items() if name not in _OF_LOADERS})

    module.to, DataLoader.__init__ = move_here, load_here
    module._apply = _apply
    module.compile = _do_nothing
    torch.compile = _compile


def _apply(self: Any, function: Function, recurse: bool = True) -> Any:
    """torch's `Module._apply` swaps tensors in place, which those without numbers do not take: new ones are set."""
    for child in self.children() if recurse else ():
        child._apply(function)
    for table in (self._parameters, self._buffers):
        for name, tensor in table.items():
            if tensor is not None:
                table[name] = _convert(tensor, function)
    return self


def _convert(tensor: Any, function: Function) -> Any:
    """The tensor itself if nothing changes; a parameter that two modules share stays shared."""
    with torch.no_grad():
        new = function(tensor)
    if new is tensor or not isinstance(tensor, torch.nn.Parameter):
        return new
    before = getattr(tensor, "meshrun_converted", None)
    if before is None or (before.dtype, before.device) != (new.dtype, new.device):
        before = torch.nn.Parameter(new, tensor.requires_grad)
        tensor.meshrun_converted = before
    return before


def _compile(model: Any = None, **options: Any) -> Any:
    """torch.compile, also as a decorator with options."""
    return model if model is not None else lambda function: function


def _nothing_saved() -> None:
    """A checkpoint without numbers must not stand in place of a real one."""
    said: list[str] = []

    def save(*args: Any, **kwargs: Any) -> None:
        if not said:
            said.append("said")
            print("meshrun: a rehearsal saves no checkpoint", file=sys.stderr, flush=True)

    torch.save = save
    for name in ("save", "async_save", "load"):
        replace_everywhere(name, getattr(checkpoint, name), save if name != "load" else _do_nothing)


class _Stream:
    """A stream or an event of an accelerator: everything in it is over at once."""

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def __getattr__(self, name: str) -> Function:
        return _do_nothing

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *unused: object) -> None: ...

    def query(self) -> bool:
        return True

    def elapsed_time(self, other: _Stream) -> float:
        return 0.0

    def record_event(self, event: _Stream | None = None) -> _Stream:
        return event or _Stream()


def _accelerator() -> None:
    """What scripts call before they ask whether there is one; streams, events, and memory that is never used."""
    for name in ("cuda", "xpu"):
        module: Any = getattr(torch, name, None)
        if module is not None:
            module.set_device = module.synchronize = module.reset_peak_memory_stats = _do_nothing
            module.current_device = lambda: 0
            module.Stream = module.Event = module.current_stream = module.default_stream = _Stream
            module.stream = lambda stream: stream or _Stream()
            for number in ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"):
                setattr(module, number, lambda device=None: 0)
