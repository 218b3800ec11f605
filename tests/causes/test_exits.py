"""Owns: ends by exit code: sys.exit, os._exit, atexit, threads, children; programs that are no script of ours.
Must not: need torch (but for `@record`) or root.
Called by: pytest."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.causes.fault import Fault, last_block

PROGRAM = ("--no-python",)
PYTHON = (sys.executable, "script.py")
CHILD = """
    import multiprocessing as mp, sys
    def work(): raise ValueError("in the child")
    if __name__ == "__main__":
        child = mp.get_context("{how}").Process(target=work)
        child.start(); child.join()
        {then}
"""

FAULTS = [
    Fault("sys.exit(7)", "import sys\nsys.exit(7)\n", 7, kind="exit"),
    Fault("sys.exit('words')", "import sys\nsys.exit('words')\n", 1, kind="exit"),
    Fault("sys.exit(True)", "import sys\nsys.exit(True)\n", 1, kind="exit"),
    Fault("sys.exit(object)", "import sys\nsys.exit([1, 2])\n", 1, kind="exit"),
    Fault("sys.exit(-1)", "import sys\nsys.exit(-1)\n", 255, kind="exit"),
    Fault("sys.exit(300)", "import sys\nsys.exit(300)\n", 44, kind="exit"),
    Fault("os._exit(9)", "import os\nos._exit(9)\n", 9, kind="exit"),
    Fault("os._exit in atexit", "import atexit, os\natexit.register(os._exit, 5)\n", 5, kind="exit"),
    Fault(
        "a thread's exception, then an exit",
        """
        import sys, threading
        def work(): raise ValueError("in a thread")
        thread = threading.Thread(target=work); thread.start(); thread.join()
        print("giving up", file=sys.stderr)
        sys.exit(3)
        """,
        3,
        kind="exit",
        said="ValueError: in a thread",
    ),
    Fault(
        "an exception in atexit, and an exit code",
        "import atexit, sys\natexit.register(lambda: {}['k'])\nsys.exit(4)\n",
        4,
        kind="exit",
        said="KeyError: 'k'",
    ),
    Fault(
        "a traceback that was logged, then an exit",
        """
        import logging, sys
        try:
            1 / 0
        except ZeroDivisionError:
            logging.exception("step 3")
            sys.exit(9)
        """,
        9,
        kind="exit",
        said="ZeroDivisionError: division by zero",
    ),
    *(
        Fault(
            f"a {how}ed child fails, the parent exits",
            CHILD.format(how=how, then="sys.exit(child.exitcode + 1)"),
            2,
            kind="exit",
            said="ValueError: in the child",
        )
        for how in ("fork", "spawn")
    ),
    *(
        Fault(
            f"a {how}ed child fails, the parent raises",
            CHILD.format(how=how, then='raise RuntimeError("a child failed")  # here'),
            1,
            exception="RuntimeError",
            message="a child failed",
        )
        for how in ("fork", "spawn")
    ),
    Fault(
        "a child of os.fork raises through the parent's code",
        """
        import os, sys
        if os.fork() == 0:
            raise ValueError("in the child")
        sys.exit(os.waitstatus_to_exitcode(os.wait()[1]) + 5)
        """,
        6,
        kind="exit",
        said="ValueError: in the child",
    ),
    Fault(
        "a python program",
        "def f():\n    raise ValueError('two\\nlines')  # here\nf()\n",
        1,
        kind="exit",
        exception="ValueError",
        message="two\nlines",
        options=PROGRAM,
        argv=PYTHON,
    ),
    Fault(
        "a python program that raises in a library",
        "import json\njson.loads('{')  # here\n",
        1,
        kind="exit",
        exception="json.decoder.JSONDecodeError",
        options=PROGRAM,
        argv=PYTHON,
    ),
    Fault(
        "a python program with a syntax error",
        "x = 1\ny = = 2  # here\n",
        1,
        kind="exit",
        exception="SyntaxError",
        options=PROGRAM,
        argv=PYTHON,
    ),
    Fault(
        "a python program without a module",
        "import nosuchmodule  # here\n",
        1,
        kind="exit",
        exception="ModuleNotFoundError",
        cause="has no module nosuchmodule",
        options=PROGRAM,
        argv=PYTHON,
    ),
    Fault(
        "a shell that says why",
        "",
        4,
        kind="exit",
        cause="open files",
        options=PROGRAM,
        argv=("sh", "-c", "echo 'accept: Too many open files' >&2; exit 4"),
    ),
    Fault(
        "a shell that says nothing that is known",
        "",
        4,
        kind="exit",
        options=PROGRAM,
        argv=("sh", "-c", "echo 'bye' >&2; exit 4"),
    ),
    Fault(
        "a program without a shared library",
        "",
        127,
        kind="exit",
        cause="lacks the shared library libnope.so.1",
        options=PROGRAM,
        argv=(
            "sh",
            "-c",
            "echo 'x: error while loading shared libraries: libnope.so.1: cannot open shared object file: no' >&2; "
            "exit 127",
        ),
    ),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_named(fault: Fault, tmp_path: Path) -> None:
    fault.check(tmp_path, fault.start(tmp_path))


def test_the_words_of_sys_exit_are_shown(tmp_path: Path) -> None:
    ended = Fault("words", "import sys\nsys.exit('config: no key lr')\n", 1, kind="exit").start(tmp_path)
    assert "    config: no key lr\n" in last_block(ended)


def test_what_was_said_before_a_flood_of_lines_is_not_taken_for_the_reason(tmp_path: Path) -> None:
    text = """
        import sys
        print("warning: Too many open files, trying again", file=sys.stderr)
        for step in range(2000): print("step", step, file=sys.stderr)
        sys.exit(3)
    """
    fault = Fault("flood", text, 3, kind="exit")
    fault.check(tmp_path, fault.start(tmp_path))


RECORD = """
    from torch.distributed.elastic.multiprocessing.errors import record
    @record
    def main():
        raise ValueError("from record")  # here
    main()
"""


@pytest.mark.torch
@pytest.mark.parametrize("options", [("--no-init",), PROGRAM])
def test_a_script_with_torch_elastics_record(options: tuple[str, ...], tmp_path: Path) -> None:
    """Ours or `python script.py`: the second is read from TORCHELASTIC_ERROR_FILE, so its kind is an exception too."""
    argv = PYTHON if options == PROGRAM else ("script.py",)
    fault = Fault("", RECORD, 1, exception="ValueError", message="from record", options=options, argv=argv)
    fault.check(tmp_path, fault.start(tmp_path))


@pytest.mark.torch
def test_a_recorded_child_explains_its_program(tmp_path: Path) -> None:
    """The record is read whatever the program itself returns and prints."""
    quiet = "\n    import os, sys\n    sys.stderr = open(os.devnull, 'w')"
    text = quiet + RECORD.rsplit("main()", 1)[0] + "try: main()\n    except ValueError: sys.exit(5)\n"
    fault = Fault("", text, 5, exception="ValueError", message="from record", options=PROGRAM, argv=PYTHON)
    fault.check(tmp_path, fault.start(tmp_path))
