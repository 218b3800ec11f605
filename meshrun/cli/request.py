"""Owns: from a split command line to a `Job`: reads every file and variable that has a say, all problems at once.
Must not: start or connect anything, or print.
Called by: cli.run, cli.plan."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from meshrun.cli.files import read_file, read_text_file
from meshrun.cli.remarks import find_remarks
from meshrun.cli.script import read_script, resolve_preload
from meshrun.dataclass import dataclass, field, replace
from meshrun.errors import InputError, Place, Problem
from meshrun.plan.environment import refuse_ours, select_exports
from meshrun.report.show import check_show, parse_show
from meshrun.spec.argv import Split
from meshrun.spec.guess import looks_like_hostfile
from meshrun.spec.job import Context, by_hand, make_job, resolve, ssh_settings
from meshrun.spec.mesh import parse_mesh
from meshrun.spec.options import BY_FLAG, BY_NAME
from meshrun.spec.settings import (
    Given,
    Merged,
    Settings,
    Sources,
    from_command_line,
    from_environ,
    merge_settings,
    parse_value,
)
from meshrun.spec.values import Host, Job, MeshSpec

V = TypeVar("V")
_PLAIN = ("command line", "default")
RANK_VARIABLES = ("SLURM_NODEID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked, and where each part of it came from."""

    job: Job
    settings: Settings
    sources: Sources
    variables: Mapping[str, str]  # name of each variable that is set on the nodes → where it came from
    remarks: tuple[str, ...] = ()  # what is no error, but perhaps not what was meant


@dataclass(frozen=True, slots=True)
class Exports:
    """The variables that travel: values as the system gave them, and where each came from."""

    values: Mapping[str, str] = field(default_factory=dict, repr=False)
    origins: Mapping[str, str] = field(default_factory=dict)


class _Gather:
    """Runs independent readers and keeps their problems, so that the user sees all of them at once.

    `doubtful`: options whose values are not known. A reader that goes by one of them is left out: what it would find
    wrong may be right as soon as the value is."""

    def __init__(self, problems: Iterable[Problem] = (), doubtful: frozenset[str] = frozenset()) -> None:
        self.problems = list(problems)
        self._doubtful = doubtful

    def __call__(self, default: V, read: Callable[..., V], *args: Any) -> V:
        if not self._doubtful.isdisjoint(_GOES_BY.get(read, self._doubtful)):
            return default
        try:
            return read(*args)
        except InputError as error:
            self.problems += error.problems
            return default


def read_request(split: Split, dry_run: bool = False) -> Request:
    """Everything that the command line leads to. Raises InputError with all problems of all sources."""
    merged = gather_settings(split)
    settings, sources = merged.values, merged.sources
    settings["dry-run"] |= dry_run
    words = (split.script, *split.args) if split.script else ()
    gather = _Gather(merged.problems, merged.doubtful)
    hosts: tuple[Host, ...] = gather((), read_hosts, settings)
    local = tuple(_is_local(settings, host) for host in hosts)
    cwd = current_directory()
    workdir = resolve(cwd, settings["workdir"] or ".")
    settings["preload"] = gather("", resolve_preload, settings, words, workdir)
    exports = gather(Exports(), read_exports, settings, sources)
    gather(None, refuse_ours, name_variables(settings, exports, hosts))
    context = Context(
        run_id=time.strftime("%Y%m%d-%H%M%S-") + os.urandom(3).hex(),
        cwd=cwd,
        python=sys.executable,
        local=local,
        mesh=gather(None, read_mesh, settings),
        script_hash=gather("", read_script, settings, words, workdir, any(local)),
        env=tuple(exports.values.items()),
        node_rank=gather(None, read_node_rank, settings),
        token=gather(b"", read_token, settings),
    )
    gather(None, read_show, settings, context.mesh)
    gather(None, check_named_files, settings)
    job = gather(None, make_job, settings, hosts, words, context)
    with naming_sources(sources):
        if job is None or gather.problems:
            raise InputError(gather.problems)
    return Request(job, settings, sources, exports.origins, find_remarks(settings, sources, words, os.environ))


@contextmanager
def naming_sources(sources: Sources) -> Iterator[None]:
    """A problem with options says who gave them, where that was not the command line."""
    try:
        yield
    except InputError as error:
        raise InputError(_with_source(problem, sources) for problem in error.problems) from None


def _with_source(problem: Problem, sources: Sources) -> Problem:
    option = BY_FLAG.get(problem.place.source) if problem.place else None
    if problem.place is None or option is None:
        flags = dict.fromkeys(re.findall(r"--[a-z][a-z-]+", problem.message))
        said = [f"{flag}: {sources[flag[2:]]}" for flag in flags if sources.get(flag[2:]) not in (*_PLAIN, None)]
        return replace(problem, message=f"{problem.message} ({'; '.join(said)})") if said else problem
    if sources[option.name] in _PLAIN:
        return problem
    return replace(problem, place=replace(problem.place, source=f"{sources[option.name]}, --{option.name}"))


def read_settings(split: Split) -> tuple[dict[str, Any], dict[str, str]]:
    """Command line, job file and environment, merged. Raises InputError."""
    merged = gather_settings(split)
    if merged.problems:
        raise InputError(merged.problems)
    return merged.values, merged.sources


def gather_settings(split: Split) -> Merged:
    """As `read_settings`, with the problems instead of an exception. "script" is doubtful, too, where an option is not
    understood or the job file is not: which word is it, and where is it looked for?"""
    command = from_command_line(split.given)
    gather = _Gather(split.problems)
    none: dict[str, Given] = {}
    job_file = gather(none, _read_job_file, command.get("job") or from_environ(os.environ).get("job"))
    merged = merge_settings(command, job_file, os.environ)
    settings, doubtful = merged.values, merged.doubtful | ({"script"} if gather.problems else set())
    if settings["workdir"]:
        settings["workdir"] = os.path.expanduser(settings["workdir"])
    settings["log-dir"] = os.path.expanduser(settings["log-dir"])
    return Merged(settings, merged.sources, tuple(dict.fromkeys([*gather.problems, *merged.problems])), doubtful)


def _read_job_file(named: Given | None) -> dict[str, Given]:
    if named is None:
        return {}
    from meshrun.spec.job_file import parse_job_file

    path = str(parse_value(BY_NAME["job"], named))
    return parse_job_file(read_text_file(path, "job file"), path)


def current_directory() -> str:
    """The working directory as the user sees it (`$PWD`, if it is the same place), so that symlinks stay."""
    try:
        here = os.getcwd()
    except FileNotFoundError:
        raise InputError("the current directory is gone; cd to one that exists") from None
    logical = os.environ.get("PWD", "")
    try:
        return logical if os.path.isabs(logical) and os.path.samefile(logical, here) else here
    except OSError:
        return here


def read_hosts(settings: Settings) -> tuple[Host, ...]:
    """The hosts that take part, in order; without any list, this machine."""
    path, text = settings["hostfile"], settings["hosts"]
    if path is not None and text is not None:
        raise InputError("--hostfile and --hosts exclude each other")
    hosts: tuple[Host, ...] = (Host(os.uname().nodename),)
    if not (path or text or settings["include"] or settings["exclude"] or settings["nodes"]):
        return hosts  # nothing to parse: the common case on one machine pays for no parser
    from meshrun.spec.filters import filter_hosts
    from meshrun.spec.hostfile import parse_hostfile, parse_hosts

    if path is not None:
        check_no_list(path)
        hosts = parse_hostfile(read_text_file(path, "hostfile"), path)
    elif text is not None:
        check_no_file(text)
        hosts = parse_hosts(text)
    return filter_hosts(hosts, settings["include"], settings["exclude"], settings["nodes"])


def check_no_file(text: str) -> None:
    """`-H` is a list of hosts here and with mpirun; with deepspeed it is a hostfile."""
    try:
        data = read_file(text, "hostfile", 65536) if os.path.isfile(text) else b""
    except (InputError, ValueError):
        return
    if data and ("/" in text or looks_like_hostfile(text, data)):
        raise InputError(Problem("this is a file, not a list of hosts", Place("--hosts"), text, f"--hostfile {text}"))


def check_no_list(path: str) -> None:
    """The other way round: a list where a hostfile is wanted."""
    if set(path) & set(":,[") and not os.path.exists(os.path.expanduser(path)):
        raise InputError(
            Problem("there is no such file", Place("--hostfile"), path, f"a list of hosts: --hosts {path}")
        )


def check_named_files(settings: Settings) -> None:
    """A file that was named and cannot be read is an error, also where only a connection would read it."""
    gather = _Gather()
    config, identity = settings["ssh-config"], settings["identity"]
    if config not in (None, "none"):
        gather(b"", read_text_file, config, "ssh config")
    # A key may be in the agent, with only its public half here; `%` and `$` in a name are ssh's to expand.
    if identity and not set(identity) & set("%$") and not os.path.exists(os.path.expanduser(f"{identity}.pub")):
        gather(b"", read_text_file, identity, "private key")
    if gather.problems:
        raise InputError(gather.problems)


def _is_local(settings: Settings, host: Host) -> bool:
    """Without a list, by hand and in a rehearsal: yes. Else its line decides, unless --launcher ssh does."""
    if settings["local"] or settings["fake"] or (settings["hostfile"] is None and settings["hosts"] is None):
        return True
    if settings["launcher"] == "ssh":
        return False
    from meshrun.launch.here import is_this_machine

    return is_this_machine(host, ssh_settings(settings))


def read_mesh(settings: Settings) -> MeshSpec | None:
    """`--mesh`: dims as text, or the name of a mesh file."""
    text = settings["mesh"]
    if text is None:
        return None
    if not (text.endswith((".yaml", ".yml")) or "/" in text or os.path.exists(text)):
        return parse_mesh(text)
    from meshrun.spec.mesh_file import parse_mesh_file

    early = settings["init"] in ("auto", "eager") and not settings["no-python"]
    return parse_mesh_file(read_text_file(text, "mesh file"), text, bool(settings["preload"]), early)


def read_exports(settings: Settings, sources: Sources) -> Exports:
    """What travels: env files in order, then `-x`, which wins. Values are bytes, as the system gave them."""
    gather = _Gather()
    none: dict[str, str] = {}
    found = [(f"env file {path}", gather(none, _read_env_file, path)) for path in settings["env-file"]]
    found.append((f"-x, {sources['env']}", gather(none, select_exports, settings["env"], os.environ)))
    if gather.problems:
        raise InputError(gather.problems)
    values = {name: value for _, variables in found for name, value in variables.items()}
    return Exports(values, {name: origin for origin, variables in found for name in variables})


def name_variables(settings: Settings, exports: Exports, hosts: Iterable[Host]) -> Iterator[tuple[str, Place]]:
    """Every variable that somebody sets for the workers, and where."""
    yield from ((name, Place(origin)) for name, origin in exports.origins.items())
    yield from ((text.partition("=")[0], Place("--env-remote")) for text in settings["env-remote"])
    yield from ((name, host.place or Place(host.name)) for host in hosts for name, _ in host.env)


def _read_env_file(path: str) -> dict[str, str]:
    from meshrun.spec.envfile import parse_env_file

    return dict(parse_env_file(os.fsdecode(read_text_file(path, "env file")), path))


def read_node_rank(settings: Settings) -> int | None:
    """`--node-rank`, where `auto` is what Slurm or MPI told this process."""
    text = settings["node-rank"]
    if text is None or (text.isascii() and text.isdigit()):
        return None if text is None else int(text)
    if text != "auto":
        raise InputError(Problem(f"a whole number or auto is needed, got {text[:80]!r}", Place("--node-rank")))
    for name in RANK_VARIABLES:
        value = os.environ.get(name, "")
        if value.isascii() and value.isdigit():
            return int(value)
    hint = "say the number, or start this command with srun or mpirun"
    raise InputError(Problem(f"auto, but none of {', '.join(RANK_VARIABLES)} is set", Place("--node-rank"), hint=hint))


def read_show(settings: Settings, mesh: MeshSpec | None) -> None:
    """Only a look: the report reads `--show` again, when it knows the ranks."""
    show = parse_show(settings["show"])
    if mesh or settings["mesh"] is None:  # a mesh that could not be read may have any dim
        check_show(show, [name for name, _ in mesh.dims] if mesh else ["dp"])


def read_token(settings: Settings) -> bytes:
    """The shared secret of `--token-file`, without the newline that editors add."""
    path = settings["token-file"]
    if path is None or not by_hand(settings):
        return b""
    token = read_text_file(path, "token file", 4096).strip()
    if not token:
        raise InputError(Problem("the token file is empty", Place(path)))
    return token


# What each reader goes by, besides the files that it names itself. One that is not here needs every option.
_SCRIPT = ("script", "workdir", "module", "no-python")
_GOES_BY: dict[Callable[..., Any], tuple[str, ...]] = {
    read_hosts: ("hostfile", "hosts", "include", "exclude", "nodes"),
    read_script: (*_SCRIPT, "hostfile", "hosts", "include", "exclude", "nodes", "launcher", "local", "fake"),
    resolve_preload: (*_SCRIPT, "preload"),
    read_exports: ("env", "env-file"),
    refuse_ours: ("env", "env-file", "env-remote"),
    read_mesh: ("mesh", "init", "no-python", "preload"),
    read_node_rank: ("node-rank",),
    read_token: ("token-file", "nnodes"),
    read_show: ("show", "mesh"),
    check_named_files: ("ssh-config", "identity"),
}
