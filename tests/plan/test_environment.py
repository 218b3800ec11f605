"""Owns: tests of which variables travel.
Must not: read the environment of the machine.
Called by: pytest."""

import pytest

from meshrun.errors import InputError
from meshrun.plan.environment import is_machine_own, select_exports

ENVIRON = {
    "WANDB_MODE": "offline",
    "NCCL_DEBUG": "INFO",
    "NCCL_SOCKET_IFNAME": "eth0",
    "CUDA_VISIBLE_DEVICES": "1",
    "PATH": "/bin",
    "LD_LIBRARY_PATH": "/lib",
    "PYTHONPATH": "/src",
    "HOSTNAME": "here",
    "TMPDIR": "/tmp/x",
    "SSH_AUTH_SOCK": "/tmp/agent",
    "PWD": "/",
    "HOME": "/root",
    "MESHRUN_RUN_ID": "r0",
    "MESHRUN_MARK": "m",
    "RANK": "3",
    "RAW": "\udcff",
}


@pytest.mark.parametrize(
    ("requests", "chosen"),
    [
        ([], {}),
        (["NCCL_DEBUG"], {"NCCL_DEBUG": "INFO"}),
        (["A=1=2", "B="], {"A": "1=2", "B": ""}),
        (["NCCL_*"], {"NCCL_DEBUG": "INFO"}),
        (["NCCL_*", "NCCL_SOCKET_IFNAME"], {"NCCL_DEBUG": "INFO", "NCCL_SOCKET_IFNAME": "eth0"}),
        (["[VW]ANDB_M?DE"], {"WANDB_MODE": "offline"}),
        (["NOTHING_*"], {}),
        (["NCCL_DEBUG", "NCCL_DEBUG=WARN"], {"NCCL_DEBUG": "WARN"}),
        (["RAW"], {"RAW": "\udcff"}),
        (["A=*"], {"A": "*"}),
        (["nccl_*"], {}),
    ],
)
def test_what_travels(requests: list[str], chosen: dict[str, str]) -> None:
    assert select_exports(requests, ENVIRON) == chosen


def test_everything_leaves_out_what_is_the_machines_own() -> None:
    chosen = select_exports(["*"], ENVIRON)
    assert sorted(chosen) == ["LD_LIBRARY_PATH", "NCCL_DEBUG", "PATH", "PYTHONPATH", "RAW", "WANDB_MODE"]


@pytest.mark.parametrize("name", ["SSH_CONNECTION", "HIP_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES", "_", "SHLVL"])
def test_names_of_the_machine(name: str) -> None:
    assert is_machine_own(name)


def test_names_that_are_not_set_are_refused_together_with_the_nearest() -> None:
    with pytest.raises(InputError) as caught:
        select_exports(["NCCL_DEBUGG", "QQQ", "", "=x", "A*=1"], ENVIRON)
    text = str(caught.value)
    assert "-x: NCCL_DEBUGG is not set here" in text
    assert "did you mean NCCL_DEBUG?" in text
    assert "QQQ is not set here" in text
    assert "'A*' is not the name of a variable" in text
    assert len(caught.value.problems) == 5
    assert "INFO" not in text
