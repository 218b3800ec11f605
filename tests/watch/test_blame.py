"""Owns: the table of error texts: which is a broken connection to a peer, which is not.
Must not: test the machine.
Called by: pytest."""

import pytest

from meshrun.watch.blame import describe_failure, find_first, is_follower, make_exit_failure, make_raised_failure
from meshrun.watch.values import Failure, RaisedException
from tests.watch.history import exited, raised

PAIR = "[../third_party/gloo/gloo/transport/tcp/pair.cc:534]"
NET, BACKEND = "torch.distributed.DistNetworkError", "torch.distributed.DistBackendError"
FAILED_TO_RECV = "Failed to recv, got 0 bytes. Connection was likely closed. Did the remote server shutdown or crash?"
REQUESTS = "('Connection aborted.', ConnectionResetError(104, 'Connection reset by peer'))"

FOLLOWERS = [
    ("RuntimeError", f"{PAIR} Connection closed by peer [10.0.0.1]:33211"),
    ("RuntimeError", f"{PAIR} Read error [127.0.0.1]:5: Connection reset by peer"),
    ("RuntimeError", f"{PAIR} writev [127.0.0.1]:5: Broken pipe"),
    ("torch.distributed.DistBackendError", f"Gloo connectFullMesh failed with {PAIR} no error"),
    ("RuntimeError", f"Rank 0 failed in barrier. Original exception: \n{PAIR} Connection closed by peer [::1]:80"),
    (NET, "Connection reset by peer"),
    (NET, "Broken pipe"),
    (NET, FAILED_TO_RECV),
    (NET, f"recvValueWithTimeout failed on SocketImpl(fd=3): {FAILED_TO_RECV}"),
    (BACKEND, "NCCL error in: x.cpp:1, remote process exited or there was a network error, NCCL version 2.27"),
    (
        BACKEND,
        "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
    ),
    (BACKEND, "NCCL communicator was aborted on rank 1."),
    (BACKEND, "[1] is setting up NCCL communicator ... store->get('0') got error: Connection reset by peer"),
    ("RuntimeError", "socketProgress: Connection closed by remote peer node7<41000>"),
    ("RuntimeError", "Rank 1 successfully reached monitoredBarrier, but received errors while waiting for send/recv"),
    ("lightning.SomeWrapper", f"training failed: {PAIR} Connection closed by peer [10.0.0.1]:1"),
]

CAUSES = [
    ("ConnectionResetError", "[Errno 104] Connection reset by peer"),
    ("BrokenPipeError", "[Errno 32] Broken pipe"),
    ("requests.exceptions.ConnectionError", REQUESTS),
    ("urllib3.exceptions.ProtocolError", REQUESTS),
    ("ConnectionRefusedError", "[Errno 111] Connection refused"),
    ("user.DistNetworkError", "Connection reset by peer"),
    ("RuntimeError", f"{PAIR} Timed out waiting 600000ms for recv operation to complete"),
    ("torch.distributed.DistStoreError", "Timed out after 301 seconds waiting for clients. 3/4 clients joined."),
    (NET, "The server socket has failed to listen on any local network address. port: 80, EADDRINUSE"),
    ("RuntimeError", "Rank 0: Ranks 2, 3 failed to pass monitoredBarrier in 1500 ms"),
    ("RuntimeError", "DataLoader worker (pid 3) is killed by signal: Killed."),
    ("torch.OutOfMemoryError", "CUDA out of memory"),
    ("ValueError", "gloo is not a backend of mine"),
    ("RuntimeError", "Connection reset by peer"),
]


def exception(type_name, message, traceback=""):
    return RaisedException(type_name, message, "t.py", 1, traceback=traceback)


@pytest.mark.parametrize(("type_name", "message"), FOLLOWERS)
def test_broken_connections_to_a_peer(type_name, message):
    assert is_follower(exception(type_name, message))


@pytest.mark.parametrize(("type_name", "message"), CAUSES)
def test_everything_else(type_name, message):
    assert not is_follower(exception(type_name, message))


def test_a_wrapped_error_is_seen_in_the_traceback():
    text = f"RuntimeError: {PAIR} Connection closed by peer [::1]:80\n\nThe above exception was the direct cause ..."
    assert is_follower(exception("trainer.TrainingFailed", "step 7", text))


def test_order_of_failures():
    def failure(rank, when, follower=False):
        return Failure(rank, 0, when, "exit", 1, follower=follower)

    first, later, broken = failure(5, 2.0), failure(1, 2.5), failure(0, 1.0, True)
    assert find_first([broken, later, first]) is first
    assert find_first([broken, failure(3, 0.5, True)]).rank == 3
    assert find_first([failure(4, 1.0), failure(2, 1.0)]).rank == 2
    assert find_first([]) is None


GLOO_ABORT = (
    f"terminate called after throwing an instance of 'gloo::IoException'\n  what():  {PAIR} Connection closed by peer\n"
)
C10D_ABORT = "terminate called after throwing an instance of 'c10::DistNetworkError'\n  what():  Broken pipe\n"
GLOO_TRACE = (
    f'Traceback (most recent call last):\n  File "t.py", line 3\nRuntimeError: {PAIR} Connection closed by peer\n'
)


@pytest.mark.parametrize(
    ("how", "said", "follower"),
    [
        ({"signal": 6}, GLOO_ABORT, True),
        ({"signal": 6}, C10D_ABORT + "Fatal Python error: Aborted\n", True),
        ({"signal": 6}, "terminate called after throwing an instance of 'std::bad_alloc'\n", False),
        ({"signal": 6}, "", False),
        ({"signal": 11}, GLOO_ABORT, False),
        ({"exit_code": 1}, GLOO_TRACE, True),
        ({"exit_code": 3}, GLOO_TRACE, True),
        ({"exit_code": 1}, f"{PAIR} Connection closed by peer\nnow something else\n", False),
    ],
)
def test_an_end_without_a_record_follows_by_its_last_words(how, said, follower):
    assert make_exit_failure(0, exited(1, said=said, **how), 1.0).follower is follower


def test_a_program_whose_stderr_ends_in_a_traceback_has_that_exception():
    found = make_exit_failure(0, exited(1, 1, said=GLOO_TRACE), 1.0)
    assert (found.kind, found.exception.type, found.exception.line, found.said) == ("exit", "RuntimeError", 3, "")
    other = make_exit_failure(0, exited(1, 7, said=GLOO_TRACE), 1.0)
    assert other.exception is None and "RuntimeError" in other.said


@pytest.mark.parametrize("message", [exited(0), exited(0, signal=15, stopped=True), exited(0, 1, stopped=True)])
def test_ends_that_are_no_failure(message):
    assert make_exit_failure(0, message, 1.0) is None


def test_a_signal_that_was_not_ours():
    failure = make_exit_failure(2, exited(7, signal=9, oom="no", age_s=0.25), 1.0)
    assert (failure.rank, failure.node_rank, failure.when, failure.exit_code, failure.signal, failure.oom) == (
        (7, 2, 0.75, 137, 9, "no")
    )
    assert describe_failure(failure) == "was killed by signal 9"


def test_a_record_is_never_exit_code_zero():
    assert make_raised_failure(0, raised(0, exit_code=0), 1.0).exit_code == 1
