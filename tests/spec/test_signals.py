"""Owns: tests of signals by name and of --signal-workers.
Must not: send a signal.
Called by: pytest."""

import pytest

from meshrun.errors import InputError
from meshrun.spec.signals import parse_early_signal, render_early_signal, signal_name
from meshrun.spec.values import EarlySignal


@pytest.mark.parametrize("text", ["USR1@60", "SIGUSR1@60", "usr1@60s", "10@60", " USR1@60.0 "])
def test_spellings(text: str) -> None:
    assert parse_early_signal(text) == EarlySignal(10, 60.0)


@pytest.mark.parametrize("early", [EarlySignal(15, 0.5), EarlySignal(1, 3600.0), EarlySignal(12, 123.25)])
def test_what_is_rendered_is_read_again(early: EarlySignal) -> None:
    assert parse_early_signal(render_early_signal(early)) == early


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("USR1", "SIG@SECONDS is needed"),
        ("@60", "SIG@SECONDS is needed"),
        ("USR1@", "SIG@SECONDS is needed"),
        ("USR1@1e3", "SIG@SECONDS is needed"),
        ("USR1@-5", "SIG@SECONDS is needed"),
        ("USR1@0", "more than 0 seconds"),
        ("USR1@" + "9" * 400, "more than 0 seconds"),
        ("URS1@60", "did you mean USR1?"),
        ("HELLO@60", "unknown signal HELLO"),
        ("0@60", "unknown signal 0"),
        ("99@60", "unknown signal 99"),
        ("KILL@60", "no program can handle KILL"),
        ("19@60", "no program can handle 19"),
    ],
)
def test_refused(text: str, words: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_early_signal(text)
    assert words in str(caught.value) and "--signal-workers" in str(caught.value)


def test_names() -> None:
    assert [signal_name(number) for number in (9, 15, 31, 32, 0)] == [
        "SIGKILL", "SIGTERM", "SIGSYS", "signal 32", "signal 0",
    ]  # fmt: skip
