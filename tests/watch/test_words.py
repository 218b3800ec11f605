"""Owns: what is lifted from the end of a stderr: tables of recorded texts.
Must not: test the machine.
Called by: pytest."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshrun.watch.words import LIFTED_LINES, find_place, read_words

CRASH = """step 1
Fatal Python error: Segmentation fault

Thread 0x00007f01 (most recent call first):
  File "/w/data.py", line 9 in load

Current thread 0x00007f02 (most recent call first):
  File "/usr/lib/python3.11/ctypes/__init__.py", line 519 in string_at
  File "/w/train.py", line 3 in crash
  File "/w/train.py", line 6 in <module>
  File "bundle.zip/meshrun/worker/script.py", line 68 in <lambda>

Extension modules: numpy._core._multiarray_umath, torch._C (total: 2)
"""
GLOO = """terminate called after throwing an instance of 'gloo::IoException'
  what():  [../gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.0.1]:3
Exception raised from x at y.cpp:1 (most recent call first):
frame #0: c10::Error::Error() (0x7f in libc10.so)
"""
TRACE = """Traceback (most recent call last):
  File "/w/train.py", line 20, in <module>
    main()
  File "/w/train.py", line 7, in main
    json.loads("{")
  File "/usr/lib/python3.11/json/__init__.py", line 346, in loads
    return _default_decoder.decode(s)
           ^^^^^^^^^^^^^^^^^^^^^^^^^^
json.decoder.JSONDecodeError: Expecting: line 1
  second line of the message
"""
CHAINED = TRACE.replace("  second line of the message\n", "") + (
    "\nDuring handling of the above exception, another exception occurred:\n\n"
    'Traceback (most recent call last):\n  File "/w/a.py", line 2, in <module>\n    f()\nRuntimeError\n'
)
# As Python 3.13.0 wrote it into a pipe with FORCE_COLOR=1: colours, and marks below calls that fill their line.
COLOURED = """step
Traceback (most recent call last):
  File \x1b[35m"/w/train.py"\x1b[0m, line \x1b[35m6\x1b[0m, in \x1b[35m<module>\x1b[0m
    \x1b[31mg\x1b[0m\x1b[1;31m()\x1b[0m
    \x1b[31m~\x1b[0m\x1b[1;31m^^\x1b[0m
  File \x1b[35m"/w/train.py"\x1b[0m, line \x1b[35m5\x1b[0m, in \x1b[35mg\x1b[0m
    \x1b[1;31mraise ValueError("bad\\nsecond line")\x1b[0m
    \x1b[1;31m^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\x1b[0m
\x1b[1;35mValueError\x1b[0m: \x1b[35mbad
second line\x1b[0m
"""
COLOURED_SYNTAX = """  File \x1b[35m"/w/train.py"\x1b[0m, line \x1b[35m2\x1b[0m
    y = \x1b[1;31m=\x1b[0m 2
        \x1b[1;31m^\x1b[0m
\x1b[1;35mSyntaxError\x1b[0m: \x1b[35minvalid syntax\x1b[0m
"""
SYNTAX = '  File "/w/train.py", line 2\n    y = = 2\n        ^\nSyntaxError: invalid syntax\n'


def test_a_crash_is_its_headline_and_the_users_part_of_the_current_thread() -> None:
    words = read_words(CRASH)
    assert words.exception is None
    assert words.lifted.split("\n") == [
        "Fatal Python error: Segmentation fault",
        "Current thread 0x00007f02 (most recent call first):",
        '  File "/usr/lib/python3.11/ctypes/__init__.py", line 519 in string_at',
        '  File "/w/train.py", line 3 in crash',
        '  File "/w/train.py", line 6 in <module>',
    ]


def test_an_uncaught_cpp_exception_stands_before_the_stack() -> None:
    lines = read_words(f"x\n{GLOO}{CRASH.removeprefix('step 1')}").lifted.split("\n")
    assert lines[:2] == GLOO.split("\n")[:2]
    assert "Fatal Python error: Segmentation fault" in lines and not any("frame #" in line for line in lines)


def test_an_uncaught_cpp_exception_without_python() -> None:
    assert read_words(GLOO).lifted == "\n".join(GLOO.split("\n")[:2])


@pytest.mark.parametrize("prefix", ["", "[rank3]: "])
def test_a_traceback_at_the_end_is_an_exception(prefix: str) -> None:
    raised = read_words("".join(f"{prefix}{line}\n" for line in f"step\n{TRACE}".splitlines())).exception
    assert raised is not None
    assert raised.type == "json.decoder.JSONDecodeError"
    assert raised.message == "Expecting: line 1\n  second line of the message"
    assert (raised.file, raised.line) == ("/w/train.py", 7)


def test_the_last_of_a_chain_is_the_exception() -> None:
    raised = read_words(CHAINED).exception
    assert raised is not None and (raised.type, raised.message, raised.file) == ("RuntimeError", "", "/w/a.py")


def test_the_scripts_own_exception_is_named_alike_in_every_python() -> None:
    """3.10.13 writes `__main__.Wrong`, 3.11 and later `Wrong`."""
    text = 'Traceback (most recent call last):\n  File "/w/train.py", line 2, in <module>\n    raise Wrong("x")\n'
    for name in ("__main__.Wrong", "Wrong"):
        raised = read_words(f"{text}{name}: x\n").exception
        assert raised is not None and (raised.type, raised.message) == ("Wrong", "x")


def test_a_syntax_error_has_no_traceback() -> None:
    raised = read_words(f"warning\n{SYNTAX}").exception
    assert raised is not None
    assert (raised.type, raised.message, raised.file, raised.line) == (
        ("SyntaxError", "invalid syntax", "/w/train.py", 2)
    )


@pytest.mark.parametrize("prefix", ["", "[rank3]: "])
def test_colours_are_no_part_of_a_traceback(prefix: str) -> None:
    words = read_words("".join(f"{prefix}{line}\n" for line in COLOURED.splitlines()))
    raised = words.exception
    assert raised is not None and "\x1b" not in words.lifted
    assert (raised.type, raised.message) == ("ValueError", "bad\nsecond line")
    assert (raised.file, raised.line) == ("/w/train.py", 5)


def test_colours_are_no_part_of_a_syntax_error() -> None:
    raised = read_words(f"warning\n{COLOURED_SYNTAX}").exception
    assert raised is not None
    assert (raised.type, raised.message, raised.line) == ("SyntaxError", "invalid syntax", 2)


@pytest.mark.parametrize("head", ["Exception in thread Thread-1 (f):", "Process SpawnProcess-1:"])
def test_what_did_not_end_the_process_is_lifted_with_its_headline(head: str) -> None:
    words = read_words(f"step\n{head}\n{TRACE}")
    assert words.exception is None and words.lifted.startswith(f"{head}\nTraceback")


def test_a_traceback_far_above_the_end_is_lifted_and_no_exception() -> None:
    words = read_words(TRACE + "going on\n" * 100)
    assert words.exception is None and "JSONDecodeError" in words.lifted


def test_what_is_lifted_is_bounded() -> None:
    deep = (
        "Fatal Python error: Aborted\n\nCurrent thread 0x1 (most recent call first):\n"
        + '  File "a", line 1 in f\n' * 200
    )
    assert len(read_words(deep).lifted.split("\n")) == LIFTED_LINES + 1


@pytest.mark.parametrize(
    "text", ["", "\n\n", "step 1\nstep 2\n", "Traceback is a word\n", "Traceback (most recent call last):\n"]
)
def test_nothing_said(text: str) -> None:
    assert read_words(text).exception is None


def test_the_place_is_the_users() -> None:
    assert find_place(TRACE) == ("/w/train.py", 7)
    assert find_place('  File "<string>", line 3, in f') == ("<string>", 3)
    assert find_place("") == ("", 0)


PIECES = (
    CRASH,
    GLOO,
    TRACE,
    CHAINED,
    SYNTAX,
    COLOURED,
    "  + Exception Group Traceback (most recent call last):\n",
    "\n",
    "x",
    " ",
)


@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=20)), st.integers(0, 400))
def test_any_text_cut_anywhere_is_read(pieces: list[str], cut: int) -> None:
    read_words("".join(pieces)[cut:])
