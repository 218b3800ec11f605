"""Owns: tests of what facts make a node unfit.
Must not: talk to a node.
Called by: pytest."""

from typing import Any

import pytest

from meshrun.errors import CauseKind, Place
from meshrun.plan.checks import check_facts, check_script
from meshrun.spec.values import MeshSpec
from tests.plan.examples import facts, job


def kinds(changes: dict[str, Any], asked: dict[str, Any], first: dict[str, Any] | None = None) -> list[CauseKind]:
    found = check_facts(job(**asked), {0: facts(**(first or {})), 1: facts(**changes)})
    assert all(cause.message and cause.hint and not cause.heals for _, cause in found)
    return [cause.kind for node, cause in found if node == 1]


@pytest.mark.parametrize(
    ("changes", "asked", "expected"),
    [
        ({}, {}, []),
        ({"protocol": 99}, {}, [CauseKind.MISMATCH]),
        ({"python": "3.9.18"}, {}, [CauseKind.PYTHON_TOO_OLD]),
        ({"python": "3.10.0"}, {}, []),
        ({"python": "4.0"}, {}, []),
        ({"python": ""}, {}, [CauseKind.PYTHON_TOO_OLD]),
        ({"torch": ""}, {}, [CauseKind.NO_TORCH]),
        ({}, {"backend": "cpu:gloo,cuda:nccl"}, [CauseKind.SLOTS]),
        ({}, {"backend": "gloo"}, []),
        ({}, {"backend": "nccl", "init": "off"}, []),
        ({}, {"mesh": MeshSpec((("dp", None),), backend=(("dp", "NCCL"),))}, [CauseKind.SLOTS]),
        ({"device": "cuda", "devices": tuple("0123")}, {"backend": "nccl"}, []),
        ({"device": "npu", "devices": tuple("0123")}, {"backend": "cpu:gloo,npu:hccl"}, []),
        ({"device": "hpu", "devices": tuple("0123")}, {"backend": "hccl"}, []),
        ({"device": "xpu", "devices": tuple("0123")}, {"backend": "cpu:gloo,xpu:xccl"}, []),
        ({"device": "xpu", "devices": tuple("0123")}, {"backend": "nccl"}, [CauseKind.SLOTS]),
        ({"device": "npu", "device_problem": "no torch_npu", "device_hint": "h"}, {}, [CauseKind.DEVICE]),
        ({"device": "mps", "devices": ("0",), "slots": 2}, {}, [CauseKind.SLOTS]),
        ({"torch": ""}, {"form": "module"}, [CauseKind.NO_TORCH]),
        ({"torch": ""}, {"init": "off"}, []),
        ({"torch": ""}, {"form": "program"}, []),
        ({"torch": "2.13.0+cu130"}, {}, []),
        ({"torch": "2.13.0"}, {}, []),
        ({"torch": "2.12.0+cpu"}, {}, [CauseKind.TORCH_VERSION]),
        ({"torch": "2.12.0+cpu"}, {"init": "off"}, [CauseKind.TORCH_VERSION]),
        ({"torch": "2.12.0+cpu"}, {"form": "program"}, []),
        ({"workdir_error": "/data: no such directory"}, {}, [CauseKind.NO_WORKDIR]),
        ({"workdir_error": "/data: no such directory", "script_error": "missing"}, {}, [CauseKind.NO_WORKDIR]),
        ({"script_error": "missing", "script_hash": ""}, {}, [CauseKind.SCRIPT]),
        ({"script_error": "unreadable: denied", "script_hash": ""}, {}, [CauseKind.SCRIPT]),
        ({"script_hash": "other"}, {}, [CauseKind.SCRIPT]),
        ({"script_hash": "other"}, {"form": "module"}, []),
        ({"script_hash": "h"}, {"script_hash": "launcher"}, [CauseKind.SCRIPT]),
        ({"script_hash": "h"}, {"script_hash": "h"}, []),
        ({"device": "cuda", "devices": ("0",), "slots": 2}, {}, [CauseKind.SLOTS]),
        ({"device": "cuda", "devices": ("0", "1"), "slots": 2}, {}, []),
        ({"device": "cpu", "devices": (), "slots": 64}, {}, []),
        ({"files": 256, "slots": 64}, {}, []),
        ({"files": 256, "slots": 70}, {}, [CauseKind.SLOTS]),
        ({"files": 0, "slots": 4096}, {}, []),
        ({"python": "3.8", "torch": "2.1", "script_hash": "x"}, {}, ["python_too_old", "torch_version", "script"]),
    ],
)
def test_what_makes_a_node_unfit(changes: dict[str, Any], asked: dict[str, Any], expected: list[Any]) -> None:
    assert kinds(changes, asked) == [CauseKind(kind) for kind in expected]


def test_a_store_that_cannot_have_all_ranks_is_named_before_anything_starts() -> None:
    many = {node: facts(slots=8, files_most=1024 if node == 0 else 20) for node in range(128)}
    ((node, cause),) = check_facts(job(), many)
    assert (node, cause.kind) == (0, CauseKind.SLOTS)
    assert cause.message == "the store of 1024 ranks needs 1056 open files, and the hard limit there is 1024"
    assert "ulimit -Hn 2112" in cause.hint
    assert check_facts(job(), {node: many[node] for node in range(124)}) == []
    assert check_facts(job(), many | {0: facts(slots=8)}) == []  # no limit
    assert check_facts(job(form="program"), many) == check_facts(job(init="off"), many) == []  # nobody's, or its affair


def test_a_mask_is_named_when_accelerators_are_too_few() -> None:
    seen = facts(device="cuda", devices=("3",), slots=2, mask="CUDA_VISIBLE_DEVICES=3")
    ((_, cause),) = check_facts(job(), {0: seen})
    assert "2 workers are wanted, but 1 accelerators are visible (CUDA_VISIBLE_DEVICES=3 is in force)" in cause.message


def test_a_node_can_be_checked_before_node_0_has_greeted() -> None:
    assert check_facts(job(), {1: facts(torch="2.1")}) == []
    assert [cause.kind for _, cause in check_facts(job(), {1: facts(torch="")})] == [CauseKind.NO_TORCH]


def test_a_script_that_node_0_cannot_run_is_not_a_finding_of_the_others() -> None:
    missing = {"script_error": "missing", "script_hash": ""}
    assert kinds(missing, {}, missing) == []


def test_a_missing_script_is_bad_input() -> None:
    problem = check_script(job(), facts(script_error="missing"))
    assert problem is not None
    assert "there is no script /data/train.py on a" in problem.message
    assert problem.hint == ""


def test_a_syntax_error_has_its_place() -> None:
    problem = check_script(job(), facts(script_error="invalid syntax", script_file="/data/train.py", script_line=7))
    assert problem is not None
    assert problem.place == Place("/data/train.py", 7)
    assert "does not compile under python 3.11.7: invalid syntax" in problem.message


@pytest.mark.parametrize("argv", [("/data/hosts", "train.py"), ("/data/my.hostfile",), ("/data/cluster", "train.py")])
def test_a_script_that_looks_like_a_hostfile_gets_the_hint(argv: tuple[str, ...]) -> None:
    problem = check_script(job(argv=argv), facts(script_error="invalid syntax", script_file=argv[0], script_line=1))
    assert problem is not None
    assert "--hostfile" in problem.hint


def test_a_good_script_and_other_forms_are_no_problem() -> None:
    assert check_script(job(), facts()) is None
    assert check_script(job(form="module"), facts(script_error="missing")) is None
    unreadable = check_script(job(), facts(script_error="unreadable: Permission denied"))
    assert unreadable is not None
    assert "cannot be read on a: unreadable: Permission denied" in unreadable.message
