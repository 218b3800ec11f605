"""Owns: what nodes said about themselves → what is wrong with them, all nodes at once.
Must not: talk to a node.
Called by: watch, cli.check."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator, Mapping

from meshrun.errors import Cause, CauseKind, Place, Problem
from meshrun.spec.backends import find_misfit, needed_device
from meshrun.spec.values import Job
from meshrun.wire import PROTOCOL, Facts

OLDEST_PYTHON = (3, 10)
FILES_OF_WORKER, FILES_OF_AGENT = 3, 48
FILES_OF_STORE = 32  # its own: the interpreter's, torch's, the socket that listens
_VERSION = re.compile(r"([0-9]{1,4})\.([0-9]{1,4})")
_NOT_CODE = ("missing", "unreadable")
_HOST_WORDS = re.compile(r"host|machine|node", re.IGNORECASE)


def check_facts(job: Job, facts: Mapping[int, Facts]) -> list[tuple[int, Cause]]:
    """Everything that makes a node unfit, by node; several causes per node are possible. None of them heals.

    Versions and the script are compared with node 0's (the script with the launcher's, where it has one)."""
    checks: tuple[Callable[[Job, Facts, Facts | None], Iterator[Cause]], ...] = (
        _check_protocol,
        _check_python,
        _check_torch,
        _check_workdir,
        _check_device,
        _check_slots,
        _check_backend,
        _check_files,
        _check_copy,
    )
    first = facts.get(0)
    found: list[tuple[int, Cause]] = []
    for node, here in sorted(facts.items()):
        found += [(node, cause) for check in checks for cause in check(job, here, first)]
    if needs_torch(job) and (problem := check_store(facts)):
        found.append((0, problem))
    return found


def check_store(facts: Mapping[int, Facts]) -> Cause | None:
    """Node 0's store has a connection open for each rank: past its limit a rank's connection breaks, in words that name
    no limit, only once the time-out is over."""
    here = facts.get(0)
    ranks = sum(max(0, fact.slots) for fact in facts.values())
    needed = ranks + FILES_OF_STORE
    if here is None or not 0 < here.files_most < needed:
        return None
    message = f"the store of {ranks} ranks needs {needed} open files, and the hard limit there is {here.files_most}"
    hint = f"`ulimit -Hn {2 * needed}` as root there, or LimitNOFILE, limits.conf; or another host first"
    return Cause(CauseKind.SLOTS, message, hint)


def check_script(job: Job, facts0: Facts) -> Problem | None:
    """Why the script cannot run at all: node 0 does not have it, or its python does not compile it (exit code 2)."""
    error = facts0.script_error
    if job.form != "script" or not error or facts0.workdir_error:
        return None
    path = job.argv[0]
    hint = _hostfile_hint(job)
    if error == "missing":
        return Problem(f"there is no script {path} on {facts0.hostname}", Place(path), hint=hint)
    if error.startswith("unreadable"):
        return Problem(f"the script cannot be read on {facts0.hostname}: {error}", Place(path), hint=hint)
    place = Place(facts0.script_file or path, facts0.script_line)
    return Problem(f"the script does not compile under python {facts0.python}: {error}", place, hint=hint)


def check_shares(job: Job, facts: Facts) -> str:
    """What a user who asked for --bind should know: workers of this node share cores; "" if none do."""
    given = [share.cpus for share in facts.shares]
    cores = len(set(given))
    return (
        f"{len(given)} workers share {cores} core{'s' * (cores > 1)} (--bind {job.bind})" if cores < len(given) else ""
    )


def needs_torch(job: Job) -> bool:
    """True if the workers cannot start without torch; with `--init off` that is the script's own affair."""
    return job.form != "program" and job.init != "off"


def _check_protocol(job: Job, here: Facts, first: Facts | None) -> Iterator[Cause]:
    if here.protocol != PROTOCOL:
        message = f"its meshrun speaks protocol {here.protocol}, this one {PROTOCOL}"
        yield Cause(CauseKind.MISMATCH, message, "run the same version of meshrun on every node")


def _check_python(job: Job, here: Facts, first: Facts | None) -> Iterator[Cause]:
    match = _VERSION.match(here.python)
    if match is None or tuple(map(int, match.groups())) < OLDEST_PYTHON:
        message = f"{here.executable} is python {here.python or 'of unknown version'}; 3.10 or newer is needed"
        yield Cause(CauseKind.PYTHON_TOO_OLD, message, "name another one with --python or python= in the hostfile")


def _check_torch(job: Job, here: Facts, first: Facts | None) -> Iterator[Cause]:
    if needs_torch(job) and not here.torch:
        message = f"{here.executable} has no torch"
        yield Cause(CauseKind.NO_TORCH, message, "install torch there, or name another python with --python")
    elif job.form != "program" and first and here.torch and first.torch and _release(here) != _release(first):
        message = f"torch {here.torch} of {here.executable} differs from node 0's torch {first.torch}"
        yield Cause(CauseKind.TORCH_VERSION, message, "install one version of torch on every node")


def _release(facts: Facts) -> str:
    # "2.13.0+cpu" and "2.13.0+cu130" speak to each other; the part before "+" must be the same.
    return facts.torch.partition("+")[0]


def _check_workdir(job: Job, here: Facts, first: Facts | None) -> Iterator[Cause]:
    if here.workdir_error:
        hint = "make the directory there, or name another one with --workdir or workdir= in the hostfile"
        yield Cause(CauseKind.NO_WORKDIR, here.workdir_error, hint)


def _check_device(job: Job, here: Facts, first: Facts | None) -> Iterator[Cause]:
    if here.device_problem:
        yield Cause(CauseKind.DEVICE, here.device_problem, here.device_hint)


def _check_slots(job: Job, here: Facts, first: Facts | None) -> Iterator[Cause]:
    if here.device != "cpu" and len(here.devices) < here.slots and not here.device_problem:
        mask = f" ({here.mask} is in force)" if here.mask else ""
        message = f"{here.slots} workers are wanted, but {len(here.devices)} accelerators are visible{mask}"
        few = f"ask for {len(here.devices)} there (slots=, --nproc-per-node), or " if here.devices else ""
        few = f"torch uses mps from one process only: {few}" if here.device == "mps" else few
        yield Cause(CauseKind.SLOTS, message, f"{few}--device cpu runs on the processor")


def _check_backend(job: Job, here: Facts, first: Facts | None) -> Iterator[Cause]:
    """A backend without its device: torch would say so in every worker. Only where meshrun's own call asks for it.

    In a rehearsal workers get other ones (`plan.orders`)."""
    if not needs_torch(job) or job.rehearsal:
        return
    for text in dict.fromkeys([job.backend, *(name for _, name in (job.mesh.backend if job.mesh else ()))]):
        name = find_misfit(text, here.device)
        if name:
            message = f"the backend {name} needs {needed_device(name)}, and the workers' device is {here.device}"
            yield Cause(CauseKind.SLOTS, message, "leave out the backend: it is chosen by device")


def _check_files(job: Job, here: Facts, first: Facts | None) -> Iterator[Cause]:
    """An agent has a worker's stdout, stderr and socket open: better said before only some could start."""
    needed = FILES_OF_WORKER * here.slots + FILES_OF_AGENT
    if 0 < here.files < needed:
        message = f"{here.slots} workers need {needed} open files in their agent, and the limit there is {here.files}"
        hint = f"--prelude 'ulimit -n {2 * needed}' raises it, up to the hard limit; or fewer slots there"
        yield Cause(CauseKind.SLOTS, message, hint)


def _check_copy(job: Job, here: Facts, first: Facts | None) -> Iterator[Cause]:
    """The script must be the same everywhere. If node 0 itself cannot run it, that is `check_script`'s to say (exit
    code 2), and the others' copies do not matter."""
    if job.form != "script" or here.workdir_error or (first and first.script_error):
        return
    path = job.argv[0]
    if here.script_error.startswith(_NOT_CODE):
        what = "is missing" if here.script_error == "missing" else f"is {here.script_error}"
        yield Cause(CauseKind.SCRIPT, f"the script {path} {what}", "copy it there, or use a shared directory")
        return
    wanted, whose = job.script_hash, "the launcher's"
    if not wanted and first:
        wanted, whose = first.script_hash, "node 0's"
    if wanted and here.script_hash and here.script_hash != wanted:
        message = f"the script {path} differs from {whose}"
        yield Cause(CauseKind.SCRIPT, message, "copy the same file to every node, or use a shared directory")


def _hostfile_hint(job: Job) -> str:
    path, args = job.argv[0], job.argv[1:]
    if path.endswith(".py"):
        return ""
    if _HOST_WORDS.search(posixpath.basename(path)) or any(arg.endswith(".py") for arg in args[:1]):
        return f"if this is a hostfile: --hostfile {posixpath.basename(path)}"
    return ""
