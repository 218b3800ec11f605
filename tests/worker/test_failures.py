"""Owns: what a failing worker reports, and that nothing holds it: records, error file, bounds, stacks.
Must not: compare output with plain python (test_parity does).
Called by: pytest."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from meshrun import wire
from meshrun.worker import record
from tests.worker.player import End, Player


def write(player: Player, text: str) -> Path:
    path = player.tmp / "script.py"
    path.write_text(dedent(text).lstrip("\n"))
    return path


def one(player: Player, text: str, exit_bound_s: float = 5.0, **env: str) -> End:
    order = player.order(write(player, text), exit_bound_s=exit_bound_s)
    (running,) = player.launch(order, 1, 1, **env)
    return running.wait()


def test_the_record_of_an_exception(bare: Player) -> None:
    end = one(
        bare,
        """
        class Wrong(ValueError): pass

        def f(x):
            raise Wrong(f"bad {x}")

        f(3)
        """,
    )
    raised = end.raised
    assert (raised.type, raised.message, raised.phase, raised.exit_code) == ("Wrong", "bad 3", "script", 1)
    assert (raised.file, raised.line, raised.rank) == (str(bare.tmp / "script.py"), 4, 0)
    assert raised.lines[2] == '> 4|     raise Wrong(f"bad {x}")'
    assert raised.lines[0].startswith("  2|")
    assert raised.traceback.startswith("Traceback (most recent call last):\n")
    assert raised.traceback == end.err.replace("__main__.Wrong", "Wrong"), "as Python 3.10 writes it"
    assert isinstance(end.messages[0], wire.Ready)


def test_the_place_is_the_users_not_a_librarys(bare: Player) -> None:
    raised = one(bare, "import json\n\njson.loads('{')\n").raised
    assert (raised.type, raised.line) == ("json.decoder.JSONDecodeError", 3)


def test_a_syntax_error_is_where_it_is(bare: Player) -> None:
    raised = one(bare, "x = 1\ny = = 2\n").raised
    assert (raised.type, raised.line, raised.file) == ("SyntaxError", 2, str(bare.tmp / "script.py"))
    assert raised.lines == ("  1| x = 1", "> 2| y = = 2")
    assert raised.message == "invalid syntax"


def test_text_is_bounded(bare: Player) -> None:
    raised = one(bare, "raise ValueError('x' * 10_000_000)").raised
    assert len(raised.message) < 9000
    assert len(raised.traceback) < 70_000


def test_the_record_comes_before_the_excepthook(bare: Player) -> None:
    end = one(bare, "import os, sys\nsys.excepthook = lambda *_: os._exit(44)\n1 / 0")
    assert end.code == 44
    assert end.raised.type == "ZeroDivisionError"


@pytest.mark.parametrize("text", ["import sys; sys.exit(3)", "import os; os._exit(3)"])
def test_an_exit_code_is_no_exception(bare: Player, text: str) -> None:
    end = one(bare, text)
    assert end.code == 3
    assert not any(isinstance(m, wire.Raised) for m in end.messages)


def test_a_threads_exception_ends_nothing(bare: Player) -> None:
    end = one(bare, "import threading\nt = threading.Thread(target=lambda: 1 / 0); t.start(); t.join()")
    assert end.code == 0
    assert [type(m) for m in end.messages] == [wire.Ready]


def test_a_forked_child_reports_nothing(bare: Player) -> None:
    end = one(bare, "import os\nif os.fork() == 0:\n    1 / 0\nos.wait()\n")
    assert end.code == 0
    assert [type(m) for m in end.messages] == [wire.Ready]


def test_the_error_file_is_torch_elastics(bare: Player) -> None:
    path = bare.tmp / "error.json"
    one(bare, "raise KeyError('k')", TORCHELASTIC_ERROR_FILE=str(path))
    body = json.loads(path.read_text())["message"]
    assert body["message"] == "KeyError: 'k'"
    assert "KeyError: 'k'" in body["extraInfo"]["py_callstack"]
    assert body["extraInfo"]["timestamp"].isdigit()
    path.write_text("left by @record")
    one(bare, "raise KeyError('k')", TORCHELASTIC_ERROR_FILE=str(path))
    assert path.read_text() == "left by @record"


@pytest.mark.parametrize(
    "text",
    [
        "import threading\nthreading.Thread(target=threading.Event().wait).start()\n1 / 0",
        "import atexit, threading\natexit.register(threading.Event().wait)\n1 / 0",
        "import sys, threading\nsys.excepthook = lambda *_: threading.Event().wait()\n1 / 0",
    ],
)
def test_nothing_holds_a_failed_worker_beyond_the_bound(bare: Player, text: str) -> None:
    assert one(bare, text, exit_bound_s=0.2).code == 1


def test_a_signal_handler_that_raises_does_not_tear_the_record_apart(bare: Player) -> None:
    """As DataLoader's for SIGCHLD may, at any moment; it is the user's again when excepthook runs."""
    text = """
        import signal
        def handler(*_): raise RuntimeError("from the handler")
        class Slow(Exception):
            def __str__(self):
                signal.raise_signal(signal.SIGCHLD)
                return "its own words"
        signal.signal(signal.SIGCHLD, handler)
        raise Slow
        """
    end = one(bare, text)
    assert (end.raised.type, end.raised.message, end.code) == ("Slow", "its own words", 1)
    assert "Slow: its own words" in end.raised.traceback
    assert "Slow: <exception str() failed>" in end.err


def test_files_are_flushed_after_a_failure(bare: Player) -> None:
    path = bare.tmp / "log.txt"
    one(bare, f"log = open({str(path)!r}, 'w')\nlog.write('last words')\n1 / 0")
    assert path.read_text() == "last words"


def test_a_closed_stdout_is_exit_120_as_in_python(bare: Player) -> None:
    end = one(
        bare, "import sys, os\nos.close(1)\nsys.stdout = os.fdopen(os.open('/dev/full', os.O_WRONLY), 'w')\nprint('x')"
    )
    assert end.code == 120


def test_stacks_on_the_signal(bare: Player) -> None:
    order = bare.order(
        write(
            bare,
            "import os\ndef waits_here():\n    os.read(3000, 1)\nprint(flush=True)\n"
            + "input_ = os.pipe()\ndef here():\n    os.read(input_[0], 1)\nhere()\n",
        )
    )
    (running,) = bare.launch(order, 1, 1)
    stacks = bare.tmp / "stacks0"
    while not running.pipes.data[running.out]:
        pass
    before = stacks.stat().st_size
    os.kill(running.end.pid, signal.SIGRTMIN + wire.STACKS_SIGNAL_OFFSET)
    while b"<module>" not in stacks.read_bytes()[before:]:
        pass
    os.kill(running.end.pid, signal.SIGTERM)
    assert running.wait().code == -signal.SIGTERM
    assert b"in here" in stacks.read_bytes()[before:]


PENDING = """
    import os, sys, torch, torch.distributed as dist
    if dist.get_rank() == 1:
        os.read(int(os.environ["HOLD"]), 1)
    else:
        work = dist.irecv(torch.ones(1), 1)
        {ending}
"""


@pytest.mark.torch
@pytest.mark.parametrize(("ending", "code"), [("1 / 0", 1), ("sys.exit(7)", 7), ("pass", 0)])
def test_a_pending_operation_does_not_hold_a_worker(player: Player, ending: str, code: int) -> None:
    order = player.order(
        write(player, PENDING.format(ending=ending)), init="eager", mesh={"dims": {"dp": 2}}, exit_bound_s=1.0
    )
    reading, writing = os.pipe()
    os.close(reading)
    os.close(writing)
    text = PENDING.replace('os.read(int(os.environ["HOLD"]), 1)', "import time; time.sleep(100)")
    write(player, text.format(ending=ending))
    with player.store(2) as port:
        first, second = player.launch(order, 2, port)
        assert first.wait().code == code
        os.kill(second.end.pid, signal.SIGKILL)
        assert second.wait().code == -signal.SIGKILL


@pytest.mark.torch
def test_wrappers_leave_no_frame_in_a_traceback(player: Player) -> None:
    text = """
        import torch.distributed as dist
        dist.init_process_group("no such backend")
        """
    order = player.order(write(player, text), init="eager", mesh={"dims": {"dp": 1}})
    (end,) = player.run(order, 1)
    assert end.code == 1
    assert end.raised.line == 2
    assert "meshrun/worker" not in end.err
    assert "[rank0]: Traceback" in end.err


def test_what_a_handler_raises_on_top_of_a_failure_is_placed_where_the_script_was(tmp_path: Path) -> None:
    """DataLoader's SIGCHLD handler may raise just after the script has failed, outside of any of the user's lines."""
    script = tmp_path / "script.py"
    script.write_text("def fail():\n    raise ConnectionResetError('gone')\n")
    namespace: dict[str, Any] = {}
    exec(compile(script.read_text(), str(script), "exec"), namespace)
    try:
        try:
            namespace["fail"]()
        except ConnectionResetError:
            json.loads("{")  # raises in the standard library, as the handler does in torch
    except json.JSONDecodeError as late:
        late.__traceback__ = late.__traceback__ and late.__traceback__.tb_next  # our own frame, as `strip` removes it
        raised = record.make_raised(late, 0, 0, "script", 1)
    assert (raised.type, raised.file, raised.line) == ("json.decoder.JSONDecodeError", str(script), 2)
