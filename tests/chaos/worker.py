"""Owns: what the workers of a trial do: write, say that they are ready, wait for the word to end; as script and shell.
Must not: import anything but the standard library; it runs on the nodes.
Called by: tests/chaos/play.py, which copies it into the trial's directory; `TEXT` is its form for --no-python."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

LINES = 50
# The same for `--no-python sh -c`.
TEXT = """
[ "$STUBBORN" ] && trap '' TERM
here=$CHAOS_DIR/ready/$TORCHELASTIC_RESTART_COUNT.$RANK
i=0; while [ $i -lt 50 ]; do echo "rank $RANK line $i"; i=$((i+1)); done
if [ "$TORCHELASTIC_RESTART_COUNT" -lt "$FAILURES" ]; then [ "$RANK" = 0 ] && exit 7; exec sleep 600; fi
(setsid sh -c 'echo $$ > "$0.child"; exec sleep 600' "$here" &)
while [ ! -s "$here.child" ]; do sleep 0.02; done
echo $$ > "$here.t"; mv "$here.t" "$here"
while [ ! -e "$CHAOS_DIR/finish" ]; do sleep 0.05; done
[ "$RANK" = 0 ] || sleep 0.4
"""


def main() -> None:
    if os.environ["STUBBORN"]:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _client = connect()
    rank, attempt = os.environ["RANK"], int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    root = Path(os.environ["CHAOS_DIR"])
    here = root / "ready" / f"{attempt}.{rank}"
    for i in range(LINES):
        print(f"rank {rank} line {i}", flush=True)
    if attempt < int(os.environ["FAILURES"]):
        if rank == "0":
            sys.exit(7)
        time.sleep(600)
    leave_a_child(Path(f"{here}.child"))
    write_whole(here, str(os.getpid()))
    while not (root / "finish").exists():
        time.sleep(0.05)
    time.sleep(0.4 if rank != "0" else 0.0)  # somebody is there when the first has left: Moment.EXITING


def connect() -> socket.socket | None:
    """The store's process starts with its first client; what is said there does not matter."""
    try:
        return socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])), 1.0)
    except OSError:
        return None  # it was hit


def leave_a_child(file: Path) -> None:
    """A daemon as people write them: two forks and a session of its own."""
    middle = os.fork()
    if middle:
        os.waitpid(middle, 0)
        return
    os.setsid()
    child = subprocess.Popen(["sleep", "600"])
    write_whole(file, str(child.pid))
    os._exit(0)


def write_whole(file: Path, text: str) -> None:
    part = file.with_name(file.name + ".t")
    part.write_text(text)
    part.rename(file)


if __name__ == "__main__":
    main()
