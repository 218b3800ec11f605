"""Owns: how a worker ends: record, excepthook, threads, atexit, groups, flush, exit code, each within its bound.
Must not: decide what runs before; nothing of a user's process is left to the interpreter's own teardown (0.3 s each).
Called by: start and script (the end of the script), adopt (groups that cannot be made)."""

from __future__ import annotations

import _thread
import atexit
import contextlib
import gc
import io
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from types import ModuleType
from typing import NoReturn

from meshrun.worker import record
from meshrun.worker.places import is_users
from meshrun.worker.session import Session, current

_BUFFERED = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)
_FLUSH_FAILED = 120  # what the interpreter returns when stdout cannot be flushed at exit


def end(error: BaseException | None) -> NoReturn:
    """Leave as `python script.py` would after `error` (None: the script reached its end), but never wait for peers."""
    session = current()
    if session is not None and not session.here:
        session = None  # a process the script forked with os.fork: no rank, no record, no groups
    if error is None:
        _leave(session, 0)
    record.strip(error)
    if isinstance(error, SystemExit):
        _leave(session, _system_exit_code(error, session))
    code = 128 + signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    _report(session, error, "script", code)
    _start_bound(session, code)
    code = _call_hook(error, code)
    _leave(session, code, interrupted=isinstance(error, KeyboardInterrupt))


def fail_init(error: BaseException) -> NoReturn:
    """Groups or mesh could not be made: say so and leave at once; group names differ between ranks from here on."""
    record.strip(error)
    _report(current(), error, "init", 1)
    sys.stdout.flush()
    traceback.print_exception(type(error), error, error.__traceback__)
    sys.stderr.flush()
    os._exit(1)


def _report(session: Session | None, error: BaseException, phase: str, code: int) -> None:
    if session is None:
        return
    _spare_from_stop()
    with _undisturbed():
        raised = record.make_raised(error, session.place.rank, session.order.attempt, phase, code)
        if session.line is not None:
            session.line.tell(raised)
        record.write_error_file(raised)


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """No signal handler of the user's for the moment of the record: one that raises, as DataLoader's for SIGCHLD does
    just when a worker of its has died, would tear the record apart."""
    handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
    theirs = {number: handler for number, handler in handlers.items() if callable(handler)}
    with contextlib.suppress(ValueError):  # not the main thread: no handler runs in this one
        for number in theirs:
            signal.signal(number, lambda *_: None)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            for number, handler in theirs.items():
                signal.signal(number, handler)


def _spare_from_stop() -> None:
    """The record makes the launcher stop everybody; without this its SIGTERM would cut off our own traceback."""
    with contextlib.suppress(ValueError):  # not the main thread: the signal would not have ended it there either
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _system_exit_code(error: SystemExit, session: Session | None) -> int:
    code = error.code
    if code is None:
        return 0
    if isinstance(code, int):
        if code & 0xFF:
            _start_bound(session, code)
        return code
    _start_bound(session, 1)
    _print_to_stderr(code)
    return 1


def _print_to_stderr(value: object) -> None:
    try:
        sys.stdout.flush()
        print(value, file=sys.stderr, flush=True)
    except Exception:
        pass  # as the interpreter: a broken stderr does not change the exit code


def _call_hook(error: BaseException, code: int) -> int:
    """`sys.excepthook` as the interpreter calls it, also when the hook itself fails. Returns the exit code."""
    record.remember(error)
    with contextlib.suppress(Exception):
        sys.stdout.flush()
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except SystemExit as exit_:
        return _system_exit_code(exit_, None)
    except BaseException as second:
        record.strip(second)
        second.__context__ = None
        _print_to_stderr("Error in sys.excepthook:")
        traceback.print_exception(type(second), second, second.__traceback__)
        _print_to_stderr("\nOriginal exception was:")
        traceback.print_exception(type(error), error, error.__traceback__)
    return code


def _start_bound(session: Session | None, code: int) -> None:
    """Leave with `code` when excepthook, threads and atexit together take longer than the order allows."""
    if session is not None and not getattr(_start_bound, "running", False):
        _start_bound.running = True  # type: ignore[attr-defined]
        with contextlib.suppress(RuntimeError):  # no thread to be had: the agent's grace is bound enough
            _thread.start_new_thread(_exit_after, (session.order.exit_bound_s, code))


def _exit_after(seconds: float, code: int) -> None:
    time.sleep(seconds)
    os._exit(code & 0xFF)


def _leave(session: Session | None, code: int, interrupted: bool = False) -> NoReturn:
    """Threads, atexit, groups, the user's objects, buffers, in the interpreter's order. A success destroys its groups;
    a failure never does, since that waits for peers."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    if not code & 0xFF:
        _start_bound(session, code)
        if session is not None:
            _destroy(session)
        if threading.active_count() == 1:  # a daemon thread would see its globals vanish, and say so
            drop_user_objects()
    flushed = flush_all()
    if interrupted:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(code & 0xFF if flushed else _FLUSH_FAILED)


def _destroy(session: Session) -> None:
    """Only where torch made groups; a script without torch has nothing to destroy."""
    if "torch.distributed.distributed_c10d" not in sys.modules:
        return
    from meshrun.worker import groups

    try:
        groups.destroy_world(session)
    except Exception:
        traceback.print_exc()  # the work is done; peers that left first are no failure of this worker


def drop_user_objects() -> None:
    """Run the finalisers of what the user's modules hold, as the interpreter's teardown does; libraries are left."""
    modules = [module for module in list(sys.modules.values()) if _holds_users(module)]
    for module in reversed(modules):
        names = [name for name in vars(module) if not (name.startswith("__") and name.endswith("__"))]
        for name in sorted(names, key=lambda name: not name.startswith("_")):
            vars(module)[name] = None
    gc.collect()


def _holds_users(module: ModuleType) -> bool:
    if not isinstance(module, ModuleType) or module.__name__.partition(".")[0] == "meshrun":
        return False
    return is_users(str(vars(module).get("__file__") or ""))


def flush_all() -> bool:
    """Flush every open file of this process: `os._exit` does not. False if stdout could not be flushed."""
    flushed = _flush(sys.stdout)
    _flush(sys.stderr)
    for one in gc.get_objects():
        if issubclass(type(one), _BUFFERED):  # isinstance would run code of the objects
            _flush(one)
    return flushed


def _flush(file: object) -> bool:
    try:
        if file is not None and not file.closed:  # type: ignore[attr-defined]
            file.flush()  # type: ignore[attr-defined]
    except Exception as error:
        return isinstance(error, ValueError)
    return True
