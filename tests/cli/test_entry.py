"""Owns: the first milliseconds of the command: an interrupt while the program is still being imported.
Must not: depend on when a signal happens to arrive.
Called by: pytest."""

from __future__ import annotations

import signal
import subprocess
import sys

INTERRUPTED_IMPORT = """
import os, signal, sys
{before}
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "meshrun.cli.main":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
from meshrun.cli.entry import main
sys.argv = ["meshrun", "--version"]
sys.exit(main())
"""


def run(before: str) -> subprocess.CompletedProcess[str]:
    code = INTERRUPTED_IMPORT.format(before=before)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)


def test_an_interrupt_during_the_import_ends_without_a_traceback() -> None:
    ended = run("signal.signal(signal.SIGINT, signal.default_int_handler)")
    assert (ended.returncode, ended.stdout, ended.stderr) == (-signal.SIGINT, "", "")


def test_an_ignored_interrupt_stays_ignored() -> None:
    """A shell starts `meshrun ... &` with SIGINT ignored."""
    ended = run("signal.signal(signal.SIGINT, signal.SIG_IGN)")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith("meshrun ")
