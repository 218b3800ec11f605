"""Owns: how an agent starts on a node: one constant command, all else over its stdin; what a dead start meant.
Must not: do I/O; nothing that varies may ever stand in the command.
Called by: launch.local, launch.ssh, launch.openssh (COMMAND, explain), launch.openers (make_prologue)."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from meshrun.errors import Cause, CauseKind

# sh, bash, csh and fish agree on what this is: one line, one pair of single quotes, and inside it no single quote, no
# backslash and no exclamation mark. `read` takes a pipe byte by byte (POSIX), so what follows stays in it.
# ${IFS#??} is a newline: IFS is space, tab, newline when a shell starts.
COMMAND = (
    "exec /bin/sh -c '"
    "meshrun_n=${IFS#??}; meshrun_s=; IFS= read -r meshrun_e; "
    "while IFS= read -r meshrun_l; do "
    'case "$meshrun_l" in "$meshrun_e") eval "$meshrun_s"; exit;; esac; '
    "meshrun_s=$meshrun_s$meshrun_l$meshrun_n; "
    "done'"
)

# An exit code for `explain`: a signal ended the far side, but the carrier does not say which.
UNKNOWN_SIGNAL = -256
# The same where it ended by itself.
UNKNOWN_EXIT = -257

_SAY = "meshrun-boot:"
_EXIT_BOOT = 125

_STOPPED_S = 10  # as long as the guard gives a stopped agent
_SILENT_S = 10  # as long as an agent gives a launcher that says nothing

# Runs under whatever python was found, so its first lines must be valid in every Python. Until the guard and the agent
# stand, nothing on the node has a name: the bundle is a file without one, and whoever is killed leaves nothing. A
# stopped process cannot see that its launcher has gone, so the first act is a child that does not depend on it. That is
# in a group of its own: if it is stopped while the boot is killed, the kernel wakes and ends it (an orphaned group).
_BOOT = f"""\
import gc, os, select, sys
gc.disable()
def leave(word, text):
    os.write(2, ("{_SAY} %s %s\\n" % (word, text)).encode("ascii", "backslashreplace"))
    os._exit({_EXIT_BOOT})
if sys.version_info < (3, 10):
    leave("python-too-old", "%d.%d %s" % (sys.version_info[0], sys.version_info[1], sys.executable))
def read(size):
    data = bytearray()
    while len(data) < size:
        piece = select.select([0], [], [], {_SILENT_S})[0] and os.read(0, min(size - len(data), 1 << 20))
        if not piece:
            os._exit(0)
        data += piece
    return bytes(data)
def hold(data):
    try:
        held = os.memfd_create("meshrun")
    except (AttributeError, OSError):
        held = hold_in_file()
    view = memoryview(data)
    while view:
        view = view[os.write(held, view):]
    return held
def hold_in_file():
    tried = []
    for base in (os.environ.get("TMPDIR"), "/tmp", "/dev/shm", "/var/tmp", os.environ.get("HOME")):
        if not base:
            continue
        path = "%s/meshrun-%d-%s" % (os.path.abspath(base).rstrip("/"), os.getuid(), os.urandom(8).hex())
        try:
            held = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            os.unlink(path)
            return held
        except OSError as error:
            tried.append("%s: %s" % (base, error.strerror))
    leave("no-tmp", "; ".join(tried))
def watch(boot, ended):
    os.setpgid(0, 0)
    for fd in 0, 1, 2:
        os.close(fd)
    stopped = 0
    while stopped < {_STOPPED_S} and not select.select([ended], [], [], 1)[0]:
        with open("/proc/%d/stat" % boot) as file:
            stopped = stopped + 1 if file.read().rpartition(") ")[2][0] == "T" else 0
    if stopped == {_STOPPED_S}:
        os.kill(boot, 9)
    os._exit(0)
boot = os.getpid()
ended, stands = os.pipe()
try:
    watcher = os.fork()
except OSError as error:
    leave("no-process", error.strerror)
if watcher == 0:
    os.close(stands)
    try:
        watch(boot, ended)
    finally:
        os._exit(1)
os.close(ended)
bundle = "/proc/self/fd/%d" % hold(read(int(read(12))))
sys.path.insert(0, bundle)
from meshrun.agent.__main__ import main
sys.exit(main(bundle, watcher, stands))
"""

# The shell keeps the line's own descriptors close-on-exec while a block is redirected, so nothing the prelude leaves
# running can hold the line open or write into it. The trap also sees `exit`, `set -e` and a syntax error.
_PRELUDE = """\
trap 'meshrun_c=$?; trap - EXIT; printf "{say} prelude %s\\n" "$meshrun_c" >&2; exit {code}' EXIT
{{
set -a
eval {prelude}
meshrun_c=$?
set +aeu
}} </dev/null >&2
if [ "$meshrun_c" -ne 0 ]; then exit "$meshrun_c"; fi
trap - EXIT
unset meshrun_c
"""

# The only code in an argument, so that `ps` shows one short line. Unbuffered: what follows the line stays in the pipe.
_FIRST = 'exec(eval(open(0, "rb", 0, closefd=False).readline()))'

_START = """\
for meshrun_p in {pythons}; do
case $meshrun_p in '~/'*) meshrun_p=$HOME/${{meshrun_p#??}};; esac
case $meshrun_p in */*) ;; *) meshrun_p=$(command -v -- "$meshrun_p") || continue;; esac
if [ -f "$meshrun_p" ] && [ -x "$meshrun_p" ]; then exec "$meshrun_p" -I -S -c {first} meshrun-agent; fi
if [ -h "$meshrun_p" ] && ! [ -e "$meshrun_p" ]; then printf '{say} dangling %s\n' "$meshrun_p" >&2
elif [ -f "$meshrun_p" ]; then printf '{say} forbidden %s\n' "$meshrun_p" >&2; fi
done
printf '%s\\n' {missing} >&2
exit 127
"""


def make_prologue(pythons: Sequence[str], prelude: str, bundle: bytes) -> bytes:
    """What goes to COMMAND's stdin before the first frame.

    `pythons`: paths to try in order (`~/` is the node's HOME; a bare name is looked up in PATH after the prelude).
    `prelude`: shell text that runs first, in POSIX sh; its variables are exported, its output goes to stderr."""
    head = _PRELUDE.format(say=_SAY, code=_EXIT_BOOT, prelude=shlex.quote(prelude)) if prelude.strip() else ""
    script = head + _START.format(
        say=_SAY,
        pythons=" ".join(map(shlex.quote, pythons)),
        first=shlex.quote(_FIRST),
        missing=shlex.quote(f"{_SAY} no-python {', '.join(pythons)}"),
    )
    lines = f"{_find_end(script)}\n{script}{_find_end(script)}\n".encode("utf-8", "surrogateescape")
    return lines + ascii(_BOOT).encode("ascii") + b"\n%012d" % len(bundle) + bundle


def _find_end(script: str) -> str:
    """A line that the script does not have."""
    number = 0
    while f"meshrun-end-{number}" in script:
        number += 1
    return f"meshrun-end-{number}"


def explain(noise: str, exit_code: int | None) -> Cause:
    """Why a start ended before its first frame. `exit_code`: None if the line broke, negative for a signal."""
    said = re.findall(rf"^{_SAY} (\S+) ?(.*)$", noise, re.MULTILINE)
    word, text = said[-1] if said else ("", "")
    rest = "\n".join(line for line in noise.splitlines() if line.strip() and not line.startswith(_SAY))
    if word == "no-python":
        why = "".join(f"; {path} {_UNFIT[word]}" for word, path in said if word in _UNFIT)
        return Cause(CauseKind.NO_PYTHON, f"no python there; looked for {text}{why}", _PYTHON_HINT)
    if word == "python-too-old":
        version, _, path = text.partition(" ")
        return _make_too_old(f"{path} is Python {version}")
    if "Unknown option: -I" in noise:
        return _make_too_old("the python there is older than 3.4")
    if word == "prelude":
        hint = "see --prelude" if text != "0" else "it must run to its end: leave out `exit` and `exec`"
        return Cause(CauseKind.PRELUDE, _join(f"the prelude ended with exit code {text}", rest), hint)
    if word == "no-tmp":
        hint = "set TMPDIR there to a directory with some space that this user may write"
        return Cause(CauseKind.AGENT, f"no place for temporary files: {text}", hint)
    if word == "no-process":
        hint = "see ulimit -u there, and the container's pids limit"
        return Cause(CauseKind.AGENT, f"no process can be had there: {text}", hint)
    if exit_code is None:
        return Cause(CauseKind.DROPPED, _join("the connection broke while the agent was starting", rest))
    return Cause(CauseKind.AGENT, _join(f"the agent did not start ({_describe_exit(exit_code)})", rest), _AGENT_HINT)


_PYTHON_HINT = "install the same python there, or name the path with --python PATH (python= on the hostfile line)"
# What a path of --python may be that is there all the same.
_UNFIT = {
    "dangling": "is a link to what is not there, or closed to this user",
    "forbidden": "may not be executed by this user",
}
_AGENT_HINT = "try `ssh HOST true` by hand: the account's login shell must run commands"
_LAST_LINES = 12


def _make_too_old(what: str) -> Cause:
    hint = "name a newer one with --python PATH (python= on the hostfile line)"
    return Cause(CauseKind.PYTHON_TOO_OLD, f"{what}; meshrun needs 3.10 or newer", hint)


def _join(message: str, output: str) -> str:
    lines = output.splitlines()[-_LAST_LINES:]
    return "\n".join([message + ("; its last lines:" if lines else ""), *(f"  {line.rstrip()}" for line in lines)])


def _describe_exit(code: int) -> str:
    if code == UNKNOWN_SIGNAL:
        return "ended by a signal"
    if code == UNKNOWN_EXIT:
        return "exit code unknown"
    return f"ended by signal {-code}" if code < 0 else f"exit code {code}"
