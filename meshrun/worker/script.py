"""Owns: running the user's script or module as `python script.py` and `python -m module` do.
Must not: leave a frame of meshrun in a traceback, or know anything about groups.
Called by: start."""

from __future__ import annotations

import builtins
import importlib.machinery
import io
import os
import runpy
import sys
from collections.abc import Callable, Sequence
from types import CodeType, ModuleType

_KEEP: list[ModuleType] = []  # the launcher's own __main__: its code is still on the stack


def prepare(form: str, argv: Sequence[str], bundle: str, typed: str = "") -> Callable[[], None]:
    """Set `sys` as the interpreter would for this command; the result runs the script (and raises what it raises).

    `typed` is the script as the user wrote it: `sys.argv[0]`, where `argv[0]` is its absolute path."""
    _clean_path(bundle)
    _KEEP.append(sys.modules["__main__"])
    main = sys.modules["__main__"] = _fresh_main()
    if hasattr(sys, "orig_argv"):
        sys.orig_argv = [sys.executable, *(["-m"] if form == "module" else []), typed or argv[0], *argv[1:]]
    if form == "module":
        return _prepare_module(argv)
    return _prepare_script(main, argv[0], [typed or argv[0], *argv[1:]])


def _clean_path(bundle: str) -> None:
    """Take the bundle from the front of sys.path to its end, so that children of the script find meshrun, last."""
    rest = [entry for entry in sys.path if entry not in ("", bundle)]
    sys.path[:] = [*rest, bundle]


def _fresh_main() -> ModuleType:
    """A real module in sys.modules: what runpy.run_path puts there goes too early for late threads and atexit."""
    main = ModuleType("__main__")
    vars(main).update(__builtins__=builtins, __annotations__={})
    if sys.version_info >= (3, 14):
        del main.__annotations__
    return main


def _safe_path() -> bool:
    return bool(getattr(sys.flags, "safe_path", False) or sys.flags.isolated)


def _prepare_module(argv: Sequence[str]) -> Callable[[], None]:
    sys.argv[:] = ["-m", *argv[1:]]
    if not _safe_path():
        sys.path.insert(0, os.getcwd())
    # the interpreter itself calls this function for -m, so tracebacks and sys.argv[0] come out the same
    return lambda: runpy._run_module_as_main(argv[0])  # type: ignore[attr-defined]


def _prepare_script(main: ModuleType, path: str, argv: Sequence[str]) -> Callable[[], None]:
    sys.argv[:] = argv
    if os.path.isdir(path) or _is_archive(path):
        sys.path.insert(0, path)
        return lambda: runpy._run_module_as_main("__main__", alter_argv=False)  # type: ignore[attr-defined]
    if not _safe_path():
        sys.path.insert(0, os.path.dirname(os.path.realpath(path)))
    loader = importlib.machinery.SourceFileLoader("__main__", path)
    vars(main).update(__file__=path, __cached__=None, __loader__=loader)
    return lambda: exec(_read_code(path), vars(main))


def _is_archive(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            head = file.read(4)
    except OSError:
        return False
    return head == b"PK\x03\x04"


def _read_code(path: str) -> CodeType:
    """Compiled source, or a .pyc. A file that cannot be opened ends as with `python`: a line on stderr and exit 2."""
    if path.endswith(".pyc"):
        code = importlib.machinery.SourcelessFileLoader("__main__", path).get_code("__main__")
        assert code is not None
        return code
    try:
        with io.open_code(path) as file:
            source = file.read()
    except OSError as error:
        print(f"{sys.executable}: can't open file {path!r}: [Errno {error.errno}] {error.strerror}", file=sys.stderr)
        raise SystemExit(2) from None
    return compile(source, path, "exec", dont_inherit=True)
