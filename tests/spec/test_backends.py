"""Owns: which names of backends are refused, with which hint.
Must not: import torch.
Called by: pytest."""

from __future__ import annotations

import pytest

from meshrun.spec.backends import check_backend, find_misfit, find_names

FINE = ["gloo", "NCCL", "cpu:gloo,cuda:nccl", "cpu:gloo", "hccl", "fake", "mccl"]


@pytest.mark.parametrize("text", FINE)
def test_names_that_exist(text: str) -> None:
    assert check_backend(text, registers=False, early=True) is None


@pytest.mark.parametrize(
    ("text", "registers", "early", "hint"),
    [
        ("ncll", False, True, "did you mean nccl?"),
        ("ncll", False, False, "did you mean nccl?"),
        ("cpu:glo,cuda:nccl", False, False, "did you mean gloo?"),
        ("foo", False, True, "torch has gloo nccl mpi ucc xccl hccl;"),
        ("foo", False, False, None),  # the script may import what brings it
        ("foo", True, True, None),
        ("ncll", True, True, None),
        ("", True, True, "as in gloo,"),
        ("gloo,nccl", True, True, "as in gloo,"),
        ("cpu:gloo,", True, True, "as in gloo,"),
        ("gloo\n", True, True, "as in gloo,"),
        ("nccl é", True, True, "as in gloo,"),
    ],
)
def test_names_that_do_not(text: str, registers: bool, early: bool, hint: str | None) -> None:
    wrong = check_backend(text, registers, early)
    assert (wrong is None) == (hint is None)
    assert wrong is None or wrong[1].startswith(hint or "")


@pytest.mark.parametrize(
    ("text", "device", "name"),
    [
        ("nccl", "cpu", "nccl"),
        ("cpu:gloo,cuda:NCCL", "cpu", "nccl"),
        ("nccl", "cuda", ""),
        ("hccl", "hpu", ""),
        ("xccl", "cuda", "xccl"),
        ("gloo", "cuda", ""),
        ("foo", "cpu", ""),
        ("", "cpu", ""),
    ],
)
def test_what_needs_another_device(text: str, device: str, name: str) -> None:
    assert find_misfit(text, device) == name


def test_names_of_a_list() -> None:
    assert find_names("cpu:gloo,cuda:NCCL") == ("gloo", "nccl") and find_names("") == ()
