"""Owns: exceptions of Python, wherever they are raised, and whatever they carry.
Must not: need torch or root.
Called by: pytest."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.causes.fault import Fault, last_block
from tests.e2e.command import run

FAULTS = [
    Fault("plain", "x = 1\nx / 0  # here\n", 1, exception="ZeroDivisionError", message="division by zero"),
    Fault(
        "one rank of four",
        "import os, signal\nif os.environ['RANK'] == '2':\n    raise ValueError('bad')  # here\nsignal.pause()\n",
        1,
        exception="ValueError",
        message="bad",
        rank=2,
        ranks=4,
    ),
    Fault(
        "in a function of another module",
        "import helper\nhelper.go({})\n",
        1,
        exception="KeyError",
        message="'lr'",
        at="helper.py",
        files={"helper.py": "def go(d):\n    return d['lr']  # here\n"},
    ),
    Fault(
        "in a library, named where the script called it",
        "import json\njson.loads('{')  # here\n",
        1,
        exception="json.decoder.JSONDecodeError",
        message="Expecting property name",
    ),
    Fault(
        "chained",
        "try:\n    open('/none')\nexcept OSError as error:\n    raise RuntimeError('no data') from error  # here\n",
        1,
        exception="RuntimeError",
        message="no data",
    ),
    Fault(
        "raised while another was handled",
        "try:\n    1 / 0\nexcept ZeroDivisionError:\n    {}['k']  # here\n",
        1,
        exception="KeyError",
    ),
    Fault(
        "a group",
        "raise ExceptionGroup('two', [ValueError('a'), OSError(24, 'Too many open files')])  # here\n",
        1,
        exception="ExceptionGroup",
        message="two (2 sub-exceptions)",
        cause="open files",
    ),
    Fault(
        "a class whose __str__ raises",
        """
        class Nasty(Exception):
            def __str__(self): raise RuntimeError("no words")
        raise Nasty  # here
        """,
        1,
        exception="Nasty",
        message="cannot be shown: RuntimeError",
    ),
    Fault(
        "a class whose __str__ exits",
        """
        class Nasty(Exception):
            def __str__(self): raise SystemExit(0)
        raise Nasty  # here
        """,
        1,
        exception="Nasty",
        message="cannot be shown: SystemExit",
    ),
    Fault(
        "a class without a module",
        "class Odd(Exception): __module__ = None\nraise Odd('x')  # here\n",
        1,
        exception="Odd",
    ),
    Fault("a very long message", "raise ValueError('x' * 3_000_000)  # here\n", 1, exception="ValueError"),
    Fault("many lines", "raise ValueError('line\\n' * 5000)  # here\n", 1, exception="ValueError", message="line"),
    Fault(
        "bytes that are no UTF-8",
        "import os\nraise ValueError(os.fsdecode(b'caf\\xe9'))  # here\n",
        1,
        exception="ValueError",
        message="caf\udce9",
    ),
    Fault(
        "a lone surrogate and control characters",
        "raise ValueError('a\\ud800b\\x00\\x1b[2Jc')  # here\n",
        1,
        exception="ValueError",
        message="a\ud800b",
    ),
    Fault(
        "at import of a module",
        "import broken\n",
        1,
        exception="NameError",
        at="broken.py",
        files={"broken.py": "x = 1\ny = undefined  # here\n"},
    ),
    Fault(
        "a syntax error in an imported module",
        "import broken\n",
        1,
        exception="SyntaxError",
        message="invalid syntax",
        at="broken.py",
        files={"broken.py": "x = 1\ny = = 2  # here\n"},
    ),
    Fault(
        "in a module started with -m",
        "",
        1,
        exception="RuntimeError",
        at="pack/__main__.py",
        argv=("-m", "pack"),
        files={"pack/__main__.py": "raise RuntimeError('m')  # here\n", "pack/__init__.py": ""},
    ),
    Fault("an interrupt of its own", "raise KeyboardInterrupt  # here\n", 130, exception="KeyboardInterrupt"),
    Fault(
        "out of memory by its own limit",
        """
        import resource
        resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
        x = bytearray(1 << 33)  # here
        """,
        1,
        exception="MemoryError",
        cause="no more memory",
    ),
    Fault(
        "endless recursion",
        "def f(): f()  # here\nf()\n",
        1,
        exception="RecursionError",
        cause="calls itself without end",
    ),
    Fault(
        "raised in a thread and raised again",
        """
        from concurrent.futures import ThreadPoolExecutor
        def work(): raise ValueError("in a thread")  # here
        ThreadPoolExecutor(1).submit(work).result()
        """,
        1,
        exception="ValueError",
        message="in a thread",
    ),
    Fault(
        "a hook that hides it",
        "import os, sys\nsys.excepthook = lambda *_: os._exit(44)\n1 / 0  # here\n",
        1,
        exception="ZeroDivisionError",
    ),
    Fault(
        "standard error closed",
        "import os, sys\nos.close(2); sys.stderr = None\n1 / 0  # here\n",
        1,
        exception="ZeroDivisionError",
    ),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_named(fault: Fault, tmp_path: Path) -> None:
    fault.check(tmp_path, fault.start(tmp_path))


def test_a_syntax_error_in_the_script_starts_nothing(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("x = 1\ny = = 2\n")
    ended = run(tmp_path, "--no-init", "script.py")
    assert ended.code == 2 and ended.out == "", ended
    assert "script.py:2" in ended.err and "invalid syntax" in ended.err and "failed first" not in ended.err


@pytest.mark.parametrize(
    "text",
    [
        "import threading\nt = threading.Thread(target=lambda: 1 / 0); t.start(); t.join()\n",
        "import atexit\natexit.register(lambda: 1 / 0)\n",
        "import os\nif os.fork() == 0:\n    1 / 0\nos.wait()\n",
    ],
    ids=["a thread", "atexit", "a forked child"],
)
def test_what_does_not_end_the_process_is_shown_and_no_failure(text: str, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(text)
    ended = run(tmp_path, "--no-init", "script.py")
    assert ended.code == 0 and ended.summary["first_failure"] is None, ended
    assert "ZeroDivisionError: division by zero" in ended.err


def test_a_very_long_message_makes_no_long_block(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("raise ValueError('word ' * 1_000_000)\n")
    ended = run(tmp_path, "--no-init", "script.py")
    block = last_block(ended).partition("  last lines on stderr")[0]
    assert "ValueError: word word" in block and len(block) < 10_000
