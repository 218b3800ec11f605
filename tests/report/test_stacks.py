"""Owns: what is read from faulthandler's text, and the words made of it.
Must not: start processes.
Called by: pytest."""

from __future__ import annotations

import pytest

from meshrun.report.stacks import describe, find_main, group_stacks, name_ranks, read_frames, render_groups
from tests.report.make import make_plan

PLAN = make_plan({"gpu01": 4, "gpu02": 4}, dp=2, tp=4)
TORCH = "/v/lib/python3.11/site-packages/torch"
OUTER = (
    '  File "/w/train.py", line 50 in <module>\n'
    '  File "bundle.zip/meshrun/worker/script.py", line 69 in <lambda>\n'
    '  File "<string>", line 1 in <module>\n'
)
LOADS = f'  File "/w/train.py", line 41 in load_batch\n{OUTER}'
REDUCES = (
    f'  File "{TORCH}/distributed/distributed_c10d.py", line 3252 in all_reduce\n'
    f'  File "{TORCH}/distributed/c10d_logger.py", line 83 in wrapper\n'
    f'  File "/w/train.py", line 43 in step\n{OUTER}'
)
THREAD = '  File "/v/lib/python3.11/threading.py", line 331 in wait\n'


def dump(main: str, *others: str) -> str:
    """As faulthandler writes it: the oldest thread last."""
    threads = "".join(f"Thread 0x00007f{n:010x} (most recent call first):\n{text}\n" for n, text in enumerate(others))
    return f"{threads}Current thread 0x00007fffffffffff (most recent call first):\n{main}"


# What faulthandler wrote in one place of one program, a method that the garbage collector calls, while a thread of
# Python's and one without a frame exist: alike in CPython 3.10.13, 3.11.7, 3.12.1 and 3.13.0 but for the lines of the
# library. Only 3.10 and 3.11 show a comprehension as a frame of its own.
COLLECTING = """\
Thread 0x00007fbc0611c6c0 (most recent call first):
  <no Python frame>

Thread 0x00007fbc0691d6c0 (most recent call first):
  File "/w/train.py", line 2 in load
  File "/p/lib/python{python}/threading.py", line {run} in run
  File "/p/lib/python{python}/threading.py", line {bootstrap} in _bootstrap_inner
  File "/p/lib/python{python}/threading.py", line {bootstrap} in _bootstrap

Current thread 0x00007fbc074aeb80 (most recent call first):
  Garbage-collecting
  File "/w/train.py", line 11 in __del__
  File "/w/train.py", line 13 in <module>
"""


@pytest.mark.parametrize(
    ("python", "run", "bootstrap"),
    [("3.10", 953, 1016), ("3.11", 982, 1045), ("3.12", 1010, 1073), ("3.13", 992, 1041)],
)
def test_the_main_thread_in_every_python(python: str, run: int, bootstrap: int) -> None:
    frames = read_frames(find_main(COLLECTING.format(python=python, run=run, bootstrap=bootstrap)))
    assert [(frame.line, frame.name) for frame in frames] == [("11", "__del__"), ("13", "<module>")]
    assert describe(frames) == ("__del__ (train.py:11)", False)


def test_a_comprehension_is_a_frame_of_its_own_before_3_12() -> None:
    old = '  File "/w/train.py", line 14 in <listcomp>\n  File "/w/train.py", line 14 in step\n'
    new = '  File "/w/train.py", line 14 in step\n'
    assert describe(read_frames(old)) == ("<listcomp> (train.py:14)", False)
    assert describe(read_frames(new)) == ("step (train.py:14)", False)


@pytest.mark.parametrize(
    ("text", "where", "waits"),
    [
        (LOADS, "load_batch (train.py:41)", False),
        (REDUCES, "all_reduce (train.py:43 in step)", True),
        (f'  File "/v/lib/python3.11/queue.py", line 171 in get\n{LOADS}', "get (train.py:41 in load_batch)", False),
        (
            f'  File "{TORCH}/autograd/graph.py", line 8 in _engine_run_backward\n'
            f'  File "{TORCH}/_tensor.py", line 5 in backward\n{LOADS}',
            "backward (train.py:41 in load_batch)",
            False,
        ),
        (
            f'  File "{TORCH}/nn/modules/module.py", line 1 in _call_impl\n{LOADS}',
            "load_batch (train.py:41)",
            False,
        ),
        (
            f'  File "{TORCH}/distributed/distributed_c10d.py", line 9 in barrier\n',
            "barrier (distributed_c10d.py:9)",
            True,
        ),
        ('  File "/w/train.py", line 2 in wait\n', "wait (train.py:2)", False),
    ],
)
def test_where_a_rank_is(text: str, where: str, waits: bool) -> None:
    assert describe(read_frames(text)) == (where, waits)


def test_the_main_thread_speaks_for_its_rank() -> None:
    assert find_main(dump(LOADS, THREAD, THREAD)) == LOADS.rstrip()
    assert find_main(LOADS) == LOADS.rstrip()
    old = find_main(
        f"Current thread 0x1 (most recent call first):\n{THREAD}\nThread 0x2 (most recent call first):\n{LOADS}"
    )
    assert old == LOADS.rstrip()


def test_the_odd_one_is_first_even_among_two() -> None:
    groups = group_stacks([(0, dump(REDUCES)), (1, dump(LOADS, THREAD))])
    assert [(group.ranks, group.waits) for group in groups] == [((1,), False), ((0,), True)]


def test_many_who_do_not_come_are_before_the_few_who_wait() -> None:
    groups = group_stacks([*((rank, LOADS) for rank in range(5)), (5, REDUCES)])
    assert [group.ranks for group in groups] == [(0, 1, 2, 3, 4), (5,)]


def test_words() -> None:
    stacks = [(rank, dump(LOADS if rank == 6 else REDUCES)) for rank in range(8)]
    lines = render_groups(stacks, PLAN)
    assert lines[0] == "  rank 6 (dp=1,tp=2) on gpu02 is in load_batch (train.py:41)"
    assert lines[1] == "  the other 7 wait in all_reduce (train.py:43 in step)"
    assert not any("bundle.zip" in line for line in lines)


def test_a_process_without_stacks_is_a_group_of_its_own() -> None:
    lines = render_groups([(0, REDUCES), (1, "(the process did not answer: it is stopped or in the kernel)")], None)
    assert lines[0] == "  rank 1: the process did not answer: it is stopped or in the kernel"
    assert [line for line in lines if "stack of" in line] == ["  stack of rank 0:"]


def test_ranks_with_what_they_share() -> None:
    assert name_ranks([2, 6], PLAN) == "ranks 2,6 (tp=2)"
    assert name_ranks([0, 1, 2, 3], PLAN) == "ranks 0-3 (dp=0) on gpu01"
    assert name_ranks([3, 4], None) == "ranks 3-4"
