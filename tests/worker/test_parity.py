"""Owns: a script sees the same under meshrun as under `python script.py`: each probe runs both ways and is compared.
Must not: test groups.
Called by: pytest."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from tests.worker.player import End, Player

PROBES = {
    "arguments": "import sys; print(sys.argv, sys.argv[0] == __file__)",
    "path": "import sys, os; print(sys.path[0]); print(os.getcwd())",
    "main": """
        import sys
        print(sorted(k for k in globals() if k != "__annotations__"), __name__, __package__, __spec__, __doc__)
        print(sys.modules["__main__"].__dict__ is globals(), type(__builtins__), type(__loader__).__name__)
        print(type(sys.modules["__main__"]), __cached__)
        """,
    "flags": "import sys; print(sys.flags, sys.warnoptions, sys._xoptions, sys.orig_argv[1:])",
    "collections": "import gc; print(gc.isenabled(), gc.get_threshold(), gc.get_debug())",
    "stdin": "import sys; print(repr(sys.stdin.read()))",
    "signals": """
        import signal
        names = ["SIGINT", "SIGTERM", "SIGHUP", "SIGCHLD", "SIGUSR1", "SIGUSR2", "SIGPIPE"]
        print([signal.getsignal(getattr(signal, n)) for n in names if n != "SIGINT"])
        print(signal.getsignal(signal.SIGINT) is signal.default_int_handler, signal.pthread_sigmask(0, []))
        """,
    "environment": "import os; print(sorted(k for k in os.environ)); os.system('echo $RANK $PYTHONPATH')",
    "descriptors": """
        import os
        # the worker's own line to the agent and its stack file are the only additions, and are not inherited
        print(os.popen("ls /proc/self/fd | wc -l").read())
        """,
    "exit none": "raise SystemExit",
    "exit zero": "import sys; sys.exit(0)",
    "exit number": "import sys; sys.exit(7)",
    "exit negative": "import sys; sys.exit(-1)",
    "exit large": "import sys; sys.exit(256 + 3)",
    "exit multiple of 256": "import sys; sys.exit(256)",
    "exit true": "import sys; sys.exit(True)",
    "exit text": "import sys; print('before'); sys.exit('the reason')",
    "exit object": "import sys; sys.exit(['a', 1])",
    "exit in function": "def f():\n    raise SystemExit(4)\nf()",
    "os._exit": "import os; os._exit(9)",
    "killed": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "interrupt": "raise KeyboardInterrupt",
    "exception": "def f(x):\n    return 1 / x\n\nf(0)",
    "chained": """
        def g():
            raise KeyError("inner")
        try:
            g()
        except KeyError as error:
            raise ValueError("outer") from error
        """,
    "context": "try:\n    1 / 0\nexcept ZeroDivisionError:\n    undefined",
    "unprintable": "class E(Exception):\n    def __str__(self): raise ValueError('no')\nraise E()",
    "recursion": "def f(): f()\ntry:\n    f()\nexcept RecursionError as error:\n    print(type(error))",
    "syntax error": "x = 1\ny = (2\nz = ]\n",
    "indentation": "if True:\nx = 1\n",
    "import error": "import not_a_module_of_anybody",
    "syntax error in module": "import broken",
    "excepthook": """
        import sys
        sys.excepthook = lambda *exc: print("hook", exc[0].__name__, exc[2].tb_frame.f_code.co_filename == __file__)
        raise ValueError("x")
        """,
    "excepthook fails": """
        import sys
        def hook(*exc):
            raise TypeError("in hook")
        sys.excepthook = hook
        raise ValueError("x")
        """,
    "excepthook exits": """
        import sys
        sys.excepthook = lambda *exc: sys.exit(5)
        raise ValueError("x")
        """,
    "last exception": """
        import atexit, sys
        atexit.register(lambda: print(sys.last_type, sys.last_value, sys.last_traceback.tb_lineno))
        raise ValueError("x")
        """,
    "atexit order": """
        import atexit
        for i in range(3):
            atexit.register(print, "exit", i)
        print("end")
        """,
    "atexit after failure": "import atexit\natexit.register(print, 'still')\n1 / 0",
    "atexit fails": "import atexit\natexit.register(print, 'second')\natexit.register(lambda: 1 / 0)",
    "threads are joined before atexit": """
        import atexit, threading
        release = threading.Event()
        atexit.register(print, "atexit")
        def late():
            threading.main_thread().join()
            print("thread after main")
        threading.Thread(target=late).start()
        print("main ends")
        """,
    "daemon threads are not": """
        import threading
        threading.Thread(target=threading.Event().wait, daemon=True).start()
        print("left")
        """,
    "thread exception": """
        import threading
        thread = threading.Thread(target=lambda: 1 / 0, name="t")
        thread.start(); thread.join()
        print("goes on")
        """,
    "pickle in late thread": """
        import pickle, threading
        class A: pass
        def late():
            threading.main_thread().join()
            print(type(pickle.loads(pickle.dumps(A()))).__module__)
        threading.Thread(target=late).start()
        """,
    "module finalisers": """
        import helper
        class Loud:
            def __del__(self): print("finalised")
        loud = Loud()
        helper.kept = Loud()
        """,
    "daemon threads at the end": """
        import threading, time
        def tick():
            while True:
                time.sleep(0); helper()
        def helper(): pass
        threading.Thread(target=tick, daemon=True).start()
        held = [object() for _ in range(100_000)]
        """,
    "open files": """
        import os, sys
        out = open(os.path.join(os.path.dirname(__file__), "left.txt"), "w")
        out.write("not flushed by the script")
        import atexit
        """,
    "unflushed stdout": "import sys; sys.stdout.write('no newline')",
    "source": """
        import inspect
        def f():
            return "text of f"
        print(inspect.getsource(f)); print(inspect.getsourcefile(f) == __file__)
        """,
    "annotations": "x: int = 1\nprint(__annotations__)",
    "future is not inherited": "def f(x: int): pass\nprint(f.__annotations__)",
    "warnings": "import warnings\nwarnings.warn('careful')",
    "multiprocessing": """
        import multiprocessing as mp, os, sys
        def work(q): q.put((__name__, os.path.basename(sys.argv[0]), os.path.basename(sys.path[0])))
        if __name__ == "__main__":
            for method in ("fork", "spawn", "forkserver"):
                context = mp.get_context(method)
                q = context.Queue()
                p = context.Process(target=work, args=(q,)); p.start(); print(method, q.get()); p.join()
                print(p.exitcode)
        """,
    "child of os.fork": """
        import os, sys, atexit
        atexit.register(lambda: print("atexit", flush=True))
        pid = os.fork()
        if pid == 0:
            sys.exit(3)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        """,
    "failing child of os.fork": """
        import os
        pid = os.fork()
        if pid == 0:
            1 / 0
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        """,
    "pool": """
        from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
        if __name__ == "__main__":
            with ProcessPoolExecutor(1) as pool: print(list(pool.map(abs, [-1, 2])))
            with ThreadPoolExecutor(1) as pool: print(list(pool.map(abs, [-1, 2])))
        """,
    "traceback in logging": """
        import logging
        try: 1 / 0
        except ZeroDivisionError: logging.exception("caught")
        """,
}


def write(folder: Path, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    script = folder / "probe.py"
    script.write_text(dedent(text))
    (folder / "helper.py").write_text("kept = None\n")
    (folder / "broken.py").write_text("def f(:\n")
    return script


def without_addresses(text: str) -> str:
    return re.sub(r"0x[0-9a-f]+", "0x", text)


def plain(player: Player, command: list[str]) -> tuple[int, str, str]:
    env = player.env(0, 1, 1)
    done = subprocess.run(
        [sys.executable, *command], env=env, cwd=player.tmp, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    return done.returncode, done.stdout, done.stderr


def ours(player: Player, *command: str, form: str = "script") -> End:
    (running,) = player.launch(player.order(*command, form=form, init="lazy"), 1, 1)
    return running.wait()


@pytest.mark.parametrize("name", PROBES)
def test_as_python_runs_it(bare: Player, name: str) -> None:
    script = write(bare.tmp / name.replace(" ", "_"), PROBES[name])
    expected = plain(bare, [str(script), "one", "--two=3", "--", "-x", ""])
    left = script.with_name("left.txt")
    expected_file = left.read_text() if left.exists() else None
    left.unlink(missing_ok=True)
    end = ours(bare, str(script), "one", "--two=3", "--", "-x", "")
    assert (end.code, without_addresses(end.out), without_addresses(end.err)) == (
        expected[0],
        *map(without_addresses, expected[1:]),
    )
    assert (left.read_text() if left.exists() else None) == expected_file
    assert end.ready


def test_a_probe_was_printed_at_all(bare: Player) -> None:
    script = write(bare.tmp / "check", PROBES["arguments"])
    assert plain(bare, [str(script), "a"])[1] == f"['{script}', 'a'] True\n"


@pytest.mark.parametrize("text", ["import sys; print(sys.argv, sys.path[0], __spec__.name, __package__)", "1 / 0"])
def test_module(bare: Player, text: str) -> None:
    package = bare.tmp / "package"
    package.mkdir(exist_ok=True)
    (package / "__init__.py").write_text("")
    (package / "tool.py").write_text(text)
    expected = plain(bare, ["-m", "package.tool", "x", "--y"])
    end = ours(bare, "package.tool", "x", "--y", form="module")
    assert (end.code, end.out, end.err) == expected


def test_package_module_and_a_missing_one(bare: Player) -> None:
    package = bare.tmp / "runnable"
    package.mkdir(exist_ok=True)
    (package / "__init__.py").write_text("")
    (package / "__main__.py").write_text("import sys; print(sys.argv, __package__, __name__, __file__)")
    for module in ("runnable", "no_such_module", "runnable.no_such"):
        expected = plain(bare, ["-m", module, "x"])
        end = ours(bare, module, "x", form="module")
        assert (end.code, end.out, end.err) == expected


def test_a_folder_and_a_missing_script(bare: Player) -> None:
    folder = bare.tmp / "folder"
    folder.mkdir(exist_ok=True)
    (folder / "__main__.py").write_text("import sys; print(sys.argv, sys.path[0], __file__)")
    for path in (folder, bare.tmp / "missing.py"):
        expected = plain(bare, [str(path), "x"])
        end = ours(bare, str(path), "x")
        assert (end.code, end.out, end.err) == expected


def test_a_symlinked_script(bare: Player) -> None:
    script = write(bare.tmp / "real", "import sys; print(sys.argv, sys.path[0], __file__)")
    link = bare.tmp / "link.py"
    link.symlink_to(script)
    assert ours(bare, str(link)).out == plain(bare, [str(link)])[1]


def test_bytes_in_arguments_and_environment(bare: Player) -> None:
    script = write(
        bare.tmp / "bytes", "import sys, os; print([os.fsencode(a) for a in sys.argv[1:]], os.environb[b'ODD'])"
    )
    odd = os.fsdecode(b"\xff\xfe x")
    order = bare.order(script, odd)
    (running,) = bare.launch(order, 1, 1, ODD=odd)
    assert running.wait().out == r"[b'\xff\xfe x'] b'\xff\xfe x'" + "\n"


def test_meshrun_is_importable_in_children_of_the_script(bare: Player) -> None:
    script = write(
        bare.tmp / "children",
        """
        import multiprocessing as mp
        def work():
            import meshrun
            print(meshrun.coords(), "torch" in __import__("sys").modules, flush=True)
        if __name__ == "__main__":
            p = mp.get_context("spawn").Process(target=work); p.start(); p.join(); print(p.exitcode)
        """,
    )
    end = ours(bare, str(script))
    assert (end.out, end.err) == ("{'dp': 0} False\n0\n", "")
