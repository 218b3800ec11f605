"""Owns: causes that we know: a failure's words or signal → a short sentence and what to do. Patterns as tables.
Must not: do I/O; or replace the program's own words: this stands beside them.
Called by: watch.running, watch.ending."""

from __future__ import annotations

import re
from collections.abc import Iterator

from meshrun.dataclass import dataclass, replace
from meshrun.watch.values import Failure

TAIL_LINES = 10  # of a stderr without a traceback: what stands earlier explains no end
_EXCEPTION_LINE = re.compile(r"^[\s|+]*([A-Za-z_][\w.]*(?:Error|Exception|Interrupt)\b.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Rule:
    """`cause` and `hint` may name the pattern's groups, {host} and {python}. The pattern is text: compiled, all of them
    would cost each start 6 ms."""

    pattern: str
    cause: str
    hint: str
    vague: bool = False  # counts only if nothing that the exception is chained to says more


_GPU_MEMORY = (
    "a smaller batch or shard, activation checkpointing, or -x PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True; "
    "nvidia-smi on {host} shows who else holds memory"
)
_LATE = "look at the last lines of the ranks that did not come; --timeout S waits longer"
_ORDER = "every rank of a group must call the same collectives in the same order with the same shapes and types"
_NCCL = "-x NCCL_DEBUG=WARN (or INFO) shows which call failed and why"
_CUDA_ASYNC = "-x CUDA_LAUNCH_BLOCKING=1 shows the line that did it: CUDA reports it late"
_SHM = "df -h /dev/shm on {host}; fewer DataLoader workers, or a container with --shm-size"
_HOST_MEMORY = "fewer DataLoader workers, smaller caches, fewer ranks on {host}, or a higher limit"

# Texts of torch 2.5 to 2.13, gloo, NCCL 2.2x, CPython 3.10 to 3.14 and glibc. The first that is found counts.
RULES = (
    Rule(
        r"(?:DynamicOutputShape|DataDependentOutput)Exception: (?P<op>aten\.\w+)",
        "the result of {op} depends on numbers, and the tensors of a rehearsal with --fake have none",
        "--tensors real gives them some (wrong ones, and the memory of a real run)",
    ),
    Rule(
        r"(?:CUDA|HIP|XPU|NPU) out of memory\. Tried to allocate (?P<size>[\d.]+ \w+)",
        "the accelerator's memory is used up: {size} more was asked for",
        _GPU_MEMORY,
    ),
    Rule(
        r"CUDA(?: error:|\serror)? out of memory|Cuda failure.*out of memory",
        "the GPU's memory is used up",
        _GPU_MEMORY,
    ),
    Rule(
        r"Duplicate GPU detected",
        "two ranks use the same GPU",
        "give each rank its own: torch.cuda.set_device(LOCAL_RANK) or meshrun.device(), and no more slots than GPUs",
    ),
    Rule(
        r"Watchdog caught collective operation timeout: WorkNCCL\(SeqNum=\d+, OpType=(?P<op>\w+)",
        "the NCCL collective {op} timed out: some rank did not take part in time",
        _LATE,
    ),
    Rule(r"(?i:NCCL error)[\s\S]*Last error:\s*(?P<last>[^\n]*\w[^\n]*)", "NCCL failed: {last}", _NCCL),
    Rule(r"unhandled cuda error|ncclUnhandledCudaError", "a CUDA call inside NCCL failed", _NCCL),
    Rule(
        r"unhandled system error|ncclSystemError",
        "a system call inside NCCL failed (network, shared memory, descriptors)",
        f"{_NCCL}; NCCL_SOCKET_IFNAME and /dev/shm on {{host}} are the usual places",
    ),
    Rule(r"ncclInvalidUsage|ncclInvalidArgument", "NCCL was used in a way that it does not allow", _NCCL),
    Rule(r"NCCL error|ncclInternalError", "NCCL failed", _NCCL),
    Rule(
        r"device-side assert triggered",
        "an assertion failed in a CUDA kernel (most often an index or label out of range)",
        _CUDA_ASYNC,
    ),
    Rule(r"CUDA error: (?P<what>an illegal memory access[^\n]*)", "CUDA: {what}", _CUDA_ASYNC),
    Rule(
        r"CUDA error: invalid device ordinal",
        "this rank asked for a GPU that {host} does not have (or does not show)",
        "no more slots than GPUs; devices= of the hostfile and CUDA_VISIBLE_DEVICES say which are shown",
    ),
    Rule(
        r"no kernel image is available",
        "this torch was not built for the GPU of {host}",
        "install a torch with kernels for it: torch.cuda.get_arch_list() shows which it has",
    ),
    Rule(
        r"Found no NVIDIA driver|driver version is insufficient|NVIDIA driver on your system is too old",
        "{host} has no NVIDIA driver, or one too old for this torch",
        "nvidia-smi on {host}; --device cpu runs without; {gpus}",
    ),
    Rule(
        r"Torch not compiled with (?:CUDA|XPU) enabled|module 'torch\._C' has no attribute '_(?:cuda|xpu)_"
        r"|torch\.(?:cuda|xpu)\.\w+ requires \w+ support|No (?:CUDA GPUs|XPU devices?) are available"
        r"|Cannot access accelerator device when none is available",
        "the script asks for a GPU, and {host} has none that this torch can use",
        "meshrun.device() is the device that there is; {gpus}",
    ),
    Rule(
        r"doesn't have NCCL built in|ProcessGroupNCCL is only supported with GPUs",
        "the nccl backend was asked for, but {host} has no GPU that this torch can use",
        "init_process_group() without a backend takes what fits (--backend gloo says it outright); {gpus}",
    ),
    Rule(
        r"op\.preamble\.length <= op\.nbytes|Detected mismatch between collectives on ranks",
        "ranks went into the same collective with different shapes or types, or into different collectives",
        f"{_ORDER}; -x TORCH_DISTRIBUTED_DEBUG=DETAIL names them",
    ),
    Rule(
        r"Timed out waiting (?P<ms>\d+)ms for (?P<op>\w+)",
        "another rank did not come to a collective within {ms} ms ({op})",
        _LATE,
    ),
    Rule(
        r"Ranks? (?P<ranks>[\d, ]+) failed to pass monitoredBarrier",
        "rank(s) {ranks} did not come to the barrier in time",
        _LATE,
    ),
    Rule(
        r"wait timeout after (?P<ms>\d+)ms, keys: (?P<keys>\S+)",
        "a key was not in the store within {ms} ms ({keys}): the rank that sets it did not come so far",
        _LATE,
    ),
    Rule(
        r"Timed out after (?P<s>\d+) seconds waiting for clients",
        "not every rank reached the rendezvous within {s} s",
        _LATE,
    ),
    Rule(
        r"DataLoader worker \(pid(?:\(s\))? (?P<pid>[\d, ]+)\) is killed by signal: Bus error"
        r"|unable to allocate shared memory|unable to (?:write to|mmap|resize) file </torch_",
        "the shared memory of {host} is full",
        _SHM,
    ),
    Rule(
        r"DataLoader worker \(pid(?:\(s\))? (?P<pid>[\d, ]+)\) is killed by signal: (?P<signal>[\w ]+\w)",
        "a DataLoader worker process was killed: {signal}",
        "Killed: most often by the kernel's OOM killer (dmesg on {host}); num_workers=0 shows what fails in the rank",
    ),
    Rule(
        r"DataLoader worker \(pid(?:\(s\))? (?P<pid>[\d, ]+)\) exited unexpectedly",
        "a DataLoader worker process ended",
        "its own words stand above in the rank's stderr; num_workers=0 shows what fails in the rank itself",
        vague=True,
    ),
    Rule(
        r"Too many open files|\[Errno 24\]",
        "the limit of open files is reached on {host}",
        "ulimit -n there (--prelude 'ulimit -n 65536' raises it up to the hard limit); for DataLoader workers "
        "torch.multiprocessing.set_sharing_strategy('file_system')",
    ),
    Rule(
        r"No space left on device: '?/dev/shm|\[Errno 28\][^\n]*/dev/shm", "the shared memory of {host} is full", _SHM
    ),
    Rule(
        r"No space left on device|\[Errno 28\]|Disk quota exceeded|\[Errno 122\]",
        "a disk of {host} is full, or its quota or inodes used up",
        "df -h and df -i for that path on {host}",
    ),
    Rule(
        r"Address already in use|EADDRINUSE|\[Errno 98\]",
        "another process on {host} has that port",
        "use MASTER_PORT as meshrun gives it, or port 0 (the system picks); ss -ltnp on {host} shows who has it",
    ),
    Rule(
        r"No module named '?(?P<name>[\w.]+)'?",
        "{python} on {host} has no module {name}",
        "install it there, or name the right interpreter: --python PATH, or python= on that host's line",
    ),
    Rule(
        r"(?:ImportError: |OSError: |libraries: )(?P<lib>lib[\w.+-]+): cannot open shared object file",
        "{host} lacks the shared library {lib}, or does not find it",
        "-x LD_LIBRARY_PATH passes yours on; --prelude 'module load ...' sets up the node",
    ),
    Rule(
        r"version `(?P<version>[\w.]+)' not found",
        "a system library of {host} is too old ({version} is missing)",
        "use a build made for that system",
    ),
    Rule(
        r"can't start new thread|pthread_create failed|\[Errno 11\]|Resource temporarily unavailable",
        "the limit of processes or threads is reached on {host}",
        "ulimit -u and the container's pids limit there; fewer DataLoader workers or OMP_NUM_THREADS",
    ),
    Rule(
        r"^MemoryError\b|can't allocate memory|Cannot allocate memory|\[Errno 12\]|std::bad_alloc",
        "{host} gave this process no more memory",
        f"ulimit -v there, or the memory is used up; {_HOST_MEMORY}",
    ),
    Rule(
        r"\bbdb\.BdbQuit\b|EOFError: EOF when reading a line",
        "the script reads stdin, which is /dev/null on every rank: neither breakpoint() nor input() can work",
        "a log instead, or one process under plain python with meshrun.init()",
    ),
    Rule(
        r"meshrun: cannot run (?P<name>.*): Permission denied",
        "{name} is not executable on {host}",
        "chmod +x there; a Python script runs without --no-python",
    ),
    Rule(
        r"Permission denied|\[Errno 13\]",
        "the user on {host} may not do this",
        "who owns that path there, and does the run have the user that you mean (user=)?",
    ),
    Rule(
        r"Stack overflow|maximum recursion depth exceeded",
        "a function calls itself without end",
        "",
    ),
)

# Errors that say nothing; where they came up does. Looked for in the traceback when no rule above is met.
PLACES = (
    Rule(
        r'torch/multiprocessing/reductions\.py", line \d+, in rebuild_[\s\S]*\n(?:EOFE|Connection\w+E|FileNotFoundE)',
        "a DataLoader worker process (or another that sends tensors) ended while its tensor was fetched",
        "out of memory? dmesg on {host}; num_workers=0 shows what fails in the rank itself",
    ),
)

_SIGNALS = {
    1: ("SIGHUP came from outside the run", "a terminal or a session that was closed"),
    2: ("SIGINT came from outside the run", ""),
    4: (
        "native code used an instruction that the CPU of {host} does not have, or stopped on purpose",
        "was a library built for a newer CPU?",
    ),
    6: ("native code gave up (abort)", "its own words stand above the abort in the rank's stderr"),
    7: ("memory that is mapped from a file could not be read or written, most often because /dev/shm is full", _SHM),
    8: ("native code divided an integer by zero or overflowed", ""),
    9: (
        "SIGKILL came from outside the run: neither meshrun nor the kernel's OOM killer sent it",
        "a user, a scheduler's limit, a container that was stopped",
    ),
    10: ("SIGUSR1 came, and the script has no handler for it", "--signal-workers sends it before --time-limit"),
    11: (
        "native code used memory that is not its own, or its stack overflowed",
        "the Python stack shows which call; is a library built for another torch or Python?",
    ),
    15: (
        "SIGTERM came from outside the run",
        "a scheduler (time limit, preemption) or somebody's kill",
    ),
    24: ("the limit of CPU time is reached", "ulimit -t on {host}"),
    25: ("the limit of file size is reached", "ulimit -f on {host}"),
}
_BROKEN = (
    "the connection to another rank broke, and no rank is known to have failed before",
    "a rank that ended early with exit code 0, or a host or network that went away",
)
# What {gpus} is, by the kind of run.
_GPUS = {
    "": "--fake rehearses a script for GPUs on any machine",
    "local": "--fake takes a script that insists on GPUs: a few ranks, each alone",
    "fake": "docs/how-to/rehearse.md lists what a rehearsal stands in for",
}
_OUT_OF_MEMORY = "out of memory: the kernel ended this rank"


def explain(failure: Failure, said: str, host: str, python: str, rehearsal: str = "") -> Failure:
    """`failure` with its cause and hint, if it is one that we know. `said`: the end of its stderr. `rehearsal`: local,
    fake, or "" in a real run."""
    cause, hint, groups = _find(failure, said)
    known = {"host": host, "python": python or "Python", "gpus": _GPUS[rehearsal], **groups}
    return replace(failure, cause=cause.format(**known), hint=hint.format(**known))


def _find(failure: Failure, said: str) -> tuple[str, str, dict[str, str]]:
    matches = [match for text in _texts(failure, said) if (match := _match(RULES, text))]
    if not matches and failure.exception and (place := _match(PLACES, failure.exception.traceback)):
        matches = [place]
    if not matches:
        return (*(_BROKEN if failure.follower else _explain_signal(failure)), {})
    rule, found = next((match for match in matches if not match[0].vague), matches[0])
    return rule.cause, rule.hint, {name: word or "" for name, word in found.groupdict().items()}


def _match(rules: tuple[Rule, ...], text: str) -> tuple[Rule, re.Match[str]] | None:
    return next(((rule, found) for rule in rules if (found := re.search(rule.pattern, text))), None)


def _texts(failure: Failure, said: str) -> Iterator[str]:
    """Where a cause may stand, the nearest first: the exception, then what it is chained to, last one first."""
    raised = failure.exception
    if raised is not None:
        yield f"{raised.type}: {raised.message}"
        yield from reversed(_EXCEPTION_LINE.findall(raised.traceback))
    elif failure.said:
        yield failure.said
    elif not failure.signal:
        yield "\n".join(said.rstrip().split("\n")[-TAIL_LINES:])


def _explain_signal(failure: Failure) -> tuple[str, str]:
    if failure.signal == 9 and failure.oom == "yes":
        where = f" ({failure.oom_where})" if failure.oom_where else ""
        return _OUT_OF_MEMORY + where, _HOST_MEMORY
    if failure.signal == 9 and failure.oom != "no":
        return "", ""
    return _SIGNALS.get(failure.signal, ("", "")) if failure.exception is None else ("", "")


def name_early(failure: Failure, ended: tuple[int, ...]) -> Failure:
    """A broken connection that no failure explains: the ranks that had `ended` with 0 by then may have been its other
    side."""
    if not failure.follower or not ended:
        return failure
    ranks = ", ".join(map(str, ended[:8])) + (", ..." if len(ended) > 8 else "")
    cause = f"the connection to another rank broke; rank(s) {ranks} had already ended with exit code 0"
    return replace(failure, cause=cause, hint="does every rank make the same number of steps?")
