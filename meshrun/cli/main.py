"""Owns: the verbs, and the one place that turns an exception into a message and an exit code.
Must not: import anything that only some verbs need: torch, paramiko, rich, yaml, click.
Called by: the `meshrun` command and `python -m meshrun`."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress

from meshrun.cli.files import write_stderr, write_stdout
from meshrun.errors import EXIT_CLUSTER, EXIT_OK, EXIT_PIPE, InputError, MeshrunError
from meshrun.spec.argv import Split, split_argv

EXIT_INTERRUPT = 130
SHOWN = 100  # problems; nobody reads more, and the readers of files stop there, too


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (default: this process's) and return its exit code; never raises."""
    _hold_standard_descriptors()
    try:
        return _dispatch(list(sys.argv[1:] if argv is None else argv))
    except MeshrunError as error:
        write_stderr(_render(error))
        return error.exit_code
    except KeyboardInterrupt:
        return EXIT_INTERRUPT
    except BrokenPipeError:
        _forget_stdout()
        return EXIT_PIPE
    except Exception as error:
        write_stderr(_render_shortage(error) or _render_bug(error))
        return EXIT_CLUSTER


def _hold_standard_descriptors() -> None:
    """A descriptor 0, 1 or 2 that was closed at the start would be given to the next socket, and be written to."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(fd)


def _dispatch(argv: list[str]) -> int:
    verb = argv.pop(0) if argv and argv[0] in VERBS else "run"
    split = split_argv(argv, verb)
    if split.asked:
        return _answer(split.asked, verb)
    return VERBS[verb](split)


def _run(split: Split) -> int:
    from meshrun.cli.run import run

    return run(split)


def _plan(split: Split) -> int:
    from meshrun.cli.plan import plan

    return plan(split)


def _ps(split: Split) -> int:
    from meshrun.cli.ps import ps

    return ps(split)


def _stacks(split: Split) -> int:
    from meshrun.cli.stacks import stacks

    return stacks(split)


def _stop(split: Split) -> int:
    from meshrun.cli.stop import stop

    return stop(split)


# A file of the same name is run as `meshrun run plan` or `meshrun ./plan`.
VERBS: dict[str, Callable[[Split], int]] = {
    "run": _run,
    "plan": _plan,
    "ps": _ps,
    "stacks": _stacks,
    "stop": _stop,
}


def _answer(asked: str, verb: str) -> int:
    if asked == "--version":
        from importlib.metadata import PackageNotFoundError, version

        with suppress(PackageNotFoundError):
            write_stdout(f"meshrun {version('meshrun')}\n")
            return EXIT_OK
        write_stdout("meshrun (not installed)\n")
        return EXIT_OK
    from shutil import get_terminal_size

    from meshrun.cli.help import render_help

    write_stdout(render_help(verb, get_terminal_size().columns))
    return EXIT_OK


def _render(error: MeshrunError) -> str:
    problems = error.problems if isinstance(error, InputError) else ()
    if len(problems) < 2:
        return f"meshrun: {error}"
    more = [f"and {len(problems) - SHOWN} more"] if len(problems) > SHOWN else []
    return "\n".join([f"meshrun: {len(problems)} problems", *map(str, problems[:SHOWN]), *more])


def _render_shortage(error: Exception) -> str:
    """The words for a limit of this machine that was reached, or "" if it is none."""
    number = error.errno if isinstance(error, OSError) else None
    if number in (errno.EMFILE, errno.ENFILE):
        return "meshrun: this process may not open more files\n    hint: raise the limit here: ulimit -n 4096"
    if number in (errno.EAGAIN, errno.ENOMEM) or (isinstance(error, RuntimeError) and "start new thread" in str(error)):
        hint = "see ulimit -u, the container's pids limit, and free memory"
        return f"meshrun: this machine allows no more processes or threads\n    hint: {hint}"
    return ""


def _render_bug(error: Exception) -> str:
    if os.environ.get("MESHRUN_DEBUG"):
        import traceback

        return "".join(traceback.format_exception(error)) + "meshrun: this is a bug in meshrun"
    return (
        f"meshrun: this is a bug in meshrun: {type(error).__name__}: {error}\n"
        "    hint: the same command with MESHRUN_DEBUG=1 shows where; please report that"
    )


def _forget_stdout() -> None:
    """The reader has gone: what Python still holds goes nowhere, so that its own flush at exit does not complain."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)
