"""Owns: which of the launcher's variables travel: `-x NAME`, `-x NAME=VALUE`, `-x 'NCCL_*'`.
Must not: read the environment (it is an argument) or show a value.
Called by: cli."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

from meshrun.errors import InputError, Place, Problem
from meshrun.spec.near import find_near

# What describes one machine, one login or one run: right here, wrong on another node. A glob never takes these.
MACHINE_OWN = (
    *("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "NCCL_IB_HCA", "TP_SOCKET_IFNAME", "HCCL_SOCKET_IFNAME"),
    *("UCX_NET_DEVICES", "OMPI_MCA_btl_tcp_if_*", "OMPI_MCA_oob_tcp_if_*", "FI_*_IFACE", "HCCL_IF_IP"),
    *("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"),
    *("GPU_DEVICE_ORDINAL", "ZE_AFFINITY_MASK", "ONEAPI_DEVICE_SELECTOR", "ASCEND_*VISIBLE_DEVICES"),
    *("HABANA_VISIBLE_*", "HLS_MODULE_ID", "TMPDIR", "TMP", "TEMP", "TEMPDIR", "HOSTNAME", "HOST", "HOSTTYPE"),
    *("SSH_*", "PWD", "OLDPWD", "SHLVL", "_", "HOME", "USER", "LOGNAME", "USERNAME", "SHELL", "MAIL", "TTY"),
    *("DISPLAY", "WAYLAND_DISPLAY", "XAUTHORITY", "XDG_*", "DBUS_*", "WINDOWID", "COLUMNS", "LINES", "BASH_FUNC_*"),
    *("TMUX", "TMUX_*", "STY", "GPG_*", "KRB5CCNAME", "SUDO_*", "INVOCATION_ID", "JOURNAL_STREAM", "CGROUP_*"),
    *("SLURMD_*", "SLURM_NODEID", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_GTIDS", "SLURM_TASK_PID"),
    *("SLURM_TOPOLOGY_ADDR", "SLURM_LAUNCH_NODE_IPADDR", "OMPI_COMM_*", "OMPI_UNIVERSE_*", "PMI_*", "PMIX_*"),
    *("MESHRUN_*", "TORCHELASTIC_*", "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK"),
    *("GROUP_WORLD_SIZE", "NODE_RANK", "ROLE_RANK", "ROLE_WORLD_SIZE", "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT"),
)
# What every worker gets from meshrun itself, whatever else is said.
OURS = frozenset(
    (
        *("RANK", "ROLE_RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "CROSS_RANK", "ROLE_NAME"),
        *("WORLD_SIZE", "ROLE_WORLD_SIZE", "LOCAL_WORLD_SIZE", "LOCAL_SIZE", "GROUP_WORLD_SIZE", "CROSS_SIZE"),
        *("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"),
        *("TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_ERROR_FILE"),
        *("MESHRUN_RUN_ID", "MESHRUN_MARK", "MESHRUN_LOG_DIR", "MESHRUN_MESH", "MESHRUN_COORDS"),
    )
)
_GLOB = "*?["


def select_exports(requests: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that `-x` names, in order; a later request wins. A glob takes what fits, but the machine's own.

    Raises InputError for names that are not set (with the nearest one that is) and for what is no name."""
    chosen: dict[str, str] = {}
    problems: list[Problem] = []
    for request in requests:
        name, equals, value = request.partition("=")
        if not name or "\0" in request or (equals and any(char in name for char in _GLOB)):
            shown = f"'{name[:60]}'" if name else "an empty text"
            problems.append(Problem(f"{shown} is not the name of a variable", Place("-x")))
        elif equals:
            chosen[name] = value
        elif any(char in name for char in _GLOB):
            chosen.update({k: v for k, v in sorted(environ.items()) if fnmatchcase(k, name) and not is_machine_own(k)})
        elif name in environ:
            chosen[name] = environ[name]
        else:
            problems.append(_unset(name, environ))
    if problems:
        raise InputError(problems)
    return chosen


def find_idle_globs(requests: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """A remark for each pattern of `-x` that passes nothing on: no error, as in a script that runs on many clusters."""
    remarks = []
    for name in dict.fromkeys(requests):
        if "=" in name or not any(char in name for char in _GLOB):
            continue
        fits = sorted(key for key in environ if fnmatchcase(key, name))
        if not fits:
            remarks.append(f"-x {name!r} passes nothing on: no variable that is set here has such a name")
        elif all(map(is_machine_own, fits)):
            only = f"{fits[0]} and {len(fits) - 1} more" if len(fits) > 1 else fits[0]
            remarks.append(f"-x {name!r} passes nothing on: a pattern leaves out {only}, this machine's own; name it")
    return remarks


def is_machine_own(name: str) -> bool:
    """True if a variable describes one machine, login or run (DESIGN §6)."""
    return any(fnmatchcase(name, pattern) for pattern in MACHINE_OWN)


def refuse_ours(named: Iterable[tuple[str, Place]]) -> None:
    """Raises InputError for variables that would not count: the plan decides them. `named`: by whom each is set."""
    problems = []
    for name, place in dict.fromkeys(named):
        if name in OURS:
            master = name.startswith("MASTER_")
            hint = f"leave it out; --{name.lower().replace('_', '-')} pins it" if master else "leave it out"
            problems.append(Problem(f"{name} is set by meshrun itself, for each worker", place, hint=hint))
    if problems:
        raise InputError(problems)


def _unset(name: str, environ: Mapping[str, str]) -> Problem:
    shown = name[:80]
    near = find_near(shown, environ)
    hint = f"did you mean {near[0]}? {shown}=VALUE gives it a value" if near else f"{shown}=VALUE gives it a value"
    return Problem(f"{shown} is not set here", Place("-x"), hint=hint)
