"""Owns: the table of recorded error texts and the causes that they are.
Must not: test the machine.
Called by: pytest."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from meshrun.watch.recognise import RULES, explain, name_early
from meshrun.watch.values import Failure, RaisedException

BACKEND, STORE = "torch.distributed.DistBackendError", "torch.distributed.DistStoreError"
NCCL = "NCCL error in: /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:3690"

RAISED = [
    (
        "torch._subclasses.fake_tensor.DynamicOutputShapeException",
        "aten.nonzero.default",
        "the result of aten.nonzero depends on numbers",
    ),
    (
        "torch.OutOfMemoryError",
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB of which ...",
        "the accelerator's memory is used up: 2.00 GiB more was asked for",
    ),
    (
        "RuntimeError",
        "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported",
        "the GPU's memory",
    ),
    (
        BACKEND,
        f"{NCCL}, unhandled cuda error (run with NCCL_DEBUG=INFO for details), NCCL version 2.27.7\n"
        "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 'invalid argument'",
        "NCCL failed: Cuda failure 'invalid argument'",
    ),
    (
        BACKEND,
        f"{NCCL}, unhandled cuda error (run with NCCL_DEBUG=INFO for details), NCCL version 2.27.7\n"
        "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\n",
        "a CUDA call inside NCCL failed",
    ),
    (
        BACKEND,
        f"{NCCL}, unhandled cuda error, NCCL version 2.27.7\nLast error:\nCuda failure 'out of memory'",
        "the GPU's",
    ),
    (
        BACKEND,
        f"{NCCL}, invalid usage (run with NCCL_DEBUG=WARN for details), NCCL version 2.27.7\nncclInvalidUsage: This "
        "usually reflects invalid usage of NCCL library.\nLast error:\nDuplicate GPU detected : rank 1 and rank 0 both "
        "on CUDA device 50000",
        "two ranks use the same GPU",
    ),
    (
        BACKEND,
        f"{NCCL}, unhandled system error, NCCL version 2.21.5\nncclSystemError: System call (e.g. socket, malloc) or "
        "external library call failed. \nLast error:\nsocketPollConnect: connect returned No route to host",
        "NCCL failed: socketPollConnect: connect returned No route to host",
    ),
    (BACKEND, "ncclSystemError: System call (e.g. socket, malloc) failed", "a system call inside NCCL failed"),
    (
        BACKEND,
        f"{NCCL}, invalid argument\nncclInvalidArgument: Invalid value for an argument",
        "a way that it does not",
    ),
    (BACKEND, f"{NCCL}, internal error, NCCL version 2.27.7", "NCCL failed"),
    (
        BACKEND,
        "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5, OpType=ALLREDUCE, NumelIn=1, "
        "NumelOut=1, Timeout(ms)=600000) ran for 600015 milliseconds before timing out.",
        "the NCCL collective ALLREDUCE timed out",
    ),
    (
        "torch.AcceleratorError",
        "CUDA error: device-side assert triggered\nSearch for ...",
        "an assertion failed in a CUDA",
    ),
    ("RuntimeError", "CUDA error: an illegal memory access was encountered", "CUDA: an illegal memory access was"),
    (
        "RuntimeError",
        "CUDA error: invalid device ordinal\nGPU device may be out of range",
        "asked for a GPU that gpu02 does",
    ),
    ("RuntimeError", "CUDA error: no kernel image is available for execution on the device", "not built for the GPU"),
    ("RuntimeError", "Found no NVIDIA driver on your system. Please check that you have", "no NVIDIA driver"),
    ("AssertionError", "Torch not compiled with CUDA enabled", "asks for a GPU, and gpu02 has none"),
    ("AttributeError", "module 'torch._C' has no attribute '_cuda_setDevice'", "asks for a GPU"),
    ("RuntimeError", "torch.cuda.Stream requires CUDA support", "asks for a GPU"),
    ("RuntimeError", "No CUDA GPUs are available", "asks for a GPU"),
    ("RuntimeError", "Cannot access accelerator device when none is available.", "asks for a GPU"),
    ("RuntimeError", "Distributed package doesn't have NCCL built in", "the nccl backend was asked for"),
    (
        "RuntimeError",
        "[enforce fail at ../gloo/transport/tcp/pair.cc:456] op.preamble.length <= op.nbytes. 16384 vs 16",
        "different shapes or types",
    ),
    (
        "RuntimeError",
        "Detected mismatch between collectives on ranks. Rank 1 is running collective: CollectiveFingerPrint(...), but "
        "Rank 0 is running collective: ...",
        "different shapes or types",
    ),
    (
        "RuntimeError",
        "[../gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 1800000ms for recv operation to complete",
        "another rank did not come to a collective within 1800000 ms (recv)",
    ),
    ("RuntimeError", "Rank 0: Ranks 2, 3 failed to pass monitoredBarrier in 1500 ms", "rank(s) 2, 3 did not come"),
    (STORE, "wait timeout after 600000ms, keys: /default_pg/0//cpu//0/2", "(/default_pg/0//cpu//0/2)"),
    (
        STORE,
        "Timed out after 301 seconds waiting for clients. 3/4 clients joined.",
        "not every rank reached the rendezvous",
    ),
    (
        "RuntimeError",
        "DataLoader worker (pid 77) is killed by signal: Bus error. It is possible that dataloader's workers are out "
        "of shared memory.",
        "the shared memory of gpu02 is full",
    ),
    ("RuntimeError", "DataLoader worker (pid 77) is killed by signal: Killed. ", "was killed: Killed"),
    ("RuntimeError", "DataLoader worker (pid(s) 77, 78) exited unexpectedly", "a DataLoader worker process ended"),
    ("RuntimeError", "DataLoader worker (pid 7) exited unexpectedly with exit code 3. Details", "worker process ended"),
    (
        "RuntimeError",
        "unable to open shared memory object </torch_1_2> in read-write mode: Too many open files (24)",
        "open",
    ),
    (
        "RuntimeError",
        "unable to write to file </torch_1_2>: No space left on device (28)",
        "the shared memory of gpu02",
    ),
    ("OSError", "[Errno 28] No space left on device: '/dev/shm/x'", "the shared memory of gpu02 is full"),
    ("OSError", "[Errno 28] No space left on device", "a disk of gpu02 is full"),
    ("OSError", "[Errno 122] Disk quota exceeded: 'ckpt.pt'", "or its quota"),
    (
        "torch.distributed.DistNetworkError",
        "The server socket has failed to listen on any local network address. port: 29500, useIpv6: false, code: -98, "
        "name: EADDRINUSE, message: address already in use",
        "another process on gpu02 has that port",
    ),
    ("ModuleNotFoundError", "No module named 'flash_attn'", "/opt/py on gpu02 has no module flash_attn"),
    ("ImportError", "libcudart.so.12: cannot open shared object file: No such file or directory", "libcudart.so.12"),
    (
        "ImportError",
        "/lib/x86_64-linux-gnu/libstdc++.so.6: version `GLIBCXX_3.4.32' not found (required by x)",
        "too old",
    ),
    ("PermissionError", "[Errno 13] Permission denied: '/data/x'", "may not do this"),
    ("bdb.BdbQuit", "", "neither breakpoint() nor input()"),
    ("EOFError", "EOF when reading a line", "neither breakpoint() nor input()"),
    ("", "meshrun: cannot run ./train.py: Permission denied", "./train.py is not executable on"),
    ("RuntimeError", "can't start new thread", "the limit of processes or threads"),
    ("BlockingIOError", "[Errno 11] Resource temporarily unavailable", "the limit of processes or threads"),
    ("MemoryError", "", "no more memory"),
    (
        "RuntimeError",
        "[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: you tried",
        "no more",
    ),
    ("RecursionError", "maximum recursion depth exceeded", "calls itself without end"),
]

UNKNOWN = [
    ("ValueError", "boom"),
    ("KeyError", "'memory'"),
    ("AssertionError", ""),
    ("RuntimeError", "mat1 and mat2 shapes cannot be multiplied"),
    ("ConnectionResetError", "[Errno 104] Connection reset by peer"),
    ("ConnectionError", "the licence server refused"),
    ("ValueError", "module 'x' has no attribute {host}"),
]


def raised(type_name: str, message: str, traceback: str = "") -> Failure:
    exception = RaisedException(type_name, message, "/w/t.py", 1, traceback=traceback)
    return Failure(3, 1, 0.0, "exception", 1, exception=exception)


def explained(failure: Failure, said: str = "") -> tuple[str, str]:
    found = explain(failure, said, "gpu02", "/opt/py")
    return found.cause, found.hint


@pytest.mark.parametrize(("type_name", "message", "cause"), RAISED)
def test_known(type_name: str, message: str, cause: str) -> None:
    found, hint = explained(raised(type_name, message))
    assert cause in found and "{" not in found + hint


@pytest.mark.parametrize(("type_name", "message"), UNKNOWN)
def test_unknown(type_name: str, message: str) -> None:
    assert explained(raised(type_name, message)) == ("", "")


@pytest.mark.parametrize(
    ("rehearsal", "words"),
    [("", "--fake rehearses"), ("local", "--fake takes a script"), ("fake", "how-to/rehearse.md")],
)
def test_a_script_that_needs_gpus_is_told_how_to_rehearse_it(rehearsal: str, words: str) -> None:
    for message in ("Torch not compiled with CUDA enabled", "Distributed package doesn't have NCCL built in"):
        assert words in explain(raised("RuntimeError", message), "", "gpu02", "/opt/py", rehearsal).hint


def test_every_rule_has_a_text() -> None:
    texts = [f"{type_name}: {message}" for type_name, message, _ in RAISED]
    firsts = {next((n for n, rule in enumerate(RULES) if re.search(rule.pattern, text)), -1) for text in texts}
    assert firsts == set(range(len(RULES)))


def test_braces_in_a_text_are_only_text() -> None:
    assert "{host}{0}" in explained(raised("ImportError", f"{NCCL}\nLast error:\n{{host}}{{0}}"))[0]


def test_a_wrapped_error_is_found_in_the_chain() -> None:
    trace = "OSError: [Errno 28] No space left on device\n\nThe above ...\n\nTraceback ...\ntrainer.Failed: step 7\n"
    assert (
        explained(raised("trainer.Failed", "step 7", trace))[0]
        == "a disk of gpu02 is full, or its quota or inodes used up"
    )


def test_the_source_lines_of_a_traceback_are_no_words_of_an_error() -> None:
    trace = (
        'Traceback ...\n  File "t.py", line 3, in f\n    raise Failed("No space left on device, Error?")\nFailed: x\n'
    )
    assert explained(raised("Failed", "x", trace)) == ("", "")


def test_a_vague_error_gives_way_to_what_it_is_chained_to() -> None:
    last = "DataLoader worker (pid(s) 7) exited unexpectedly"
    trace = f"RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed. \n\nRuntimeError: {last}\n"
    assert "was killed: Killed" in explained(raised("RuntimeError", last, trace))[0]


FETCH = """Traceback (most recent call last):
  File "/v/torch/multiprocessing/reductions.py", line 538, in rebuild_storage_fd
    fd = df.detach()
  File "/usr/lib/python3.11/multiprocessing/connection.py", line 399, in _recv
    raise EOFError
"""


@pytest.mark.parametrize("last", ["EOFError", "ConnectionResetError: [Errno 104] Connection reset by peer"])
def test_a_tensor_whose_sender_has_ended(last: str) -> None:
    type_name, _, message = last.partition(": ")
    assert "while its tensor was fetched" in explained(raised(type_name, message, f"{FETCH}{last}\n"))[0]
    assert explained(raised(type_name, message, f"Traceback ...\n{last}\n")) == ("", "")


def test_a_broken_connection_without_a_known_cause() -> None:
    follower = replace(
        raised("RuntimeError", "[gloo/transport/tcp/pair.cc:534] Connection closed by peer"), follower=True
    )
    assert "the connection to another rank broke" in explained(follower)[0]


def ended(signal: int, **more: str) -> Failure:
    return Failure(3, 1, 0.0, "signal", 128 + signal, signal, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("failure", "cause"),
    [
        (ended(9, oom="yes", oom_where="the limit of 4 GiB of the cgroup /x"), "(the limit of 4 GiB of the cgroup /x)"),
        (ended(9, oom="yes"), "out of memory"),
        (ended(9, oom="no"), "SIGKILL came from outside the run"),
        (ended(10), "SIGUSR1 came"),
        (ended(15), "SIGTERM came from outside the run"),
        (ended(11), "memory that is not its own"),
        (ended(11, said="Fatal Python error: Stack overflow"), "calls itself without end"),
        (ended(6, said="terminate called after throwing an instance of 'std::bad_alloc'"), "no more memory"),
        (ended(4), "an instruction that the CPU of gpu02 does not have"),
    ],
)
def test_signals(failure: Failure, cause: str) -> None:
    assert cause in explained(failure)[0]


@pytest.mark.parametrize("failure", [ended(9, oom="unknown"), ended(9), ended(34)])
def test_signals_that_say_nothing(failure: Failure) -> None:
    assert explained(failure) == ("", "")


def test_the_last_lines_count_for_an_exit_and_not_for_a_signal() -> None:
    said = "x\naccept: Too many open files\n"
    exited = Failure(3, 1, 0.0, "exit", 4)
    assert "open files" in explained(exited, said)[0]
    assert explained(exited, said + "step\n" * 20) == ("", "")
    assert "SIGTERM" in explained(ended(15), said)[0]


def test_ranks_that_ended_early_are_named_for_a_broken_connection_only() -> None:
    follower = Failure(0, 0, 0.0, "exception", 1, follower=True)
    assert "rank(s) 1, 2 had already ended with exit code 0" in name_early(follower, (1, 2)).cause
    assert "rank(s) 0, 1, 2, 3, 4, 5, 6, 7, ..." in name_early(follower, tuple(range(9))).cause
    assert name_early(follower, ()) is follower
    own = Failure(0, 0, 0.0, "exception", 1)
    assert name_early(own, (1,)) is own
