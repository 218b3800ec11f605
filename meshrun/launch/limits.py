"""Owns: how many files the launcher may have open: enough for all lines, or words that say what is missing.
Must not: touch the limit where it is high enough: what is started here inherits it.
Called by: cli.runner."""

from __future__ import annotations

import resource

from meshrun.errors import ClusterError

# SSH needs two, and a third while it connects; a child process (an agent here, the system's ssh) has three pipes.
FILES_OF_LINE, MOST_OF_LINE = 3, 4
FILES_OF_LAUNCHER = 64  # its own, those of the run directory


def raise_file_limit(lines: int) -> None:
    """Let this process have open what so many lines need. Raises ClusterError where the hard limit forbids it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = lines * FILES_OF_LINE + FILES_OF_LAUNCHER
    wanted = lines * MOST_OF_LINE + FILES_OF_LAUNCHER
    if _reaches(soft, wanted):
        return
    if not _reaches(hard, needed):
        hint = f"`ulimit -Hn {wanted}` as root, or LimitNOFILE, limits.conf; or start by hand from several machines"
        hosts = "1 host needs" if lines == 1 else f"{lines} hosts need"
        raise ClusterError(f"{hosts} {needed} open files here, and the hard limit is {hard}; {hint}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted if _reaches(hard, wanted) else hard, hard))


def _reaches(limit: int, count: int) -> bool:
    return limit == resource.RLIM_INFINITY or limit >= count
