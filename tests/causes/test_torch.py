"""Owns: faults inside torch on one rank: DataLoader workers, spawned processes, groups that cannot be made.
Must not: need a GPU or root; races between ranks are test_followers.py's.
Called by: pytest."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from tests.causes.fault import Fault, trials
from tests.e2e.command import run

pytestmark = pytest.mark.torch

DATA = """
    import os, signal, torch
    from torch.utils.data import DataLoader, Dataset
    class Data(Dataset):
        def __len__(self): return 8
        def __getitem__(self, i):
            if i == 5: {fault}
            return torch.ones(2)
    for batch in DataLoader(Data(), num_workers=1):  # here
        pass
"""

FAULTS = [
    Fault(
        "a DataLoader worker raises",
        DATA.format(fault='raise ValueError("bad sample 5")'),
        1,
        exception="ValueError",
        message="bad sample 5",
    ),
    Fault(
        "torch.multiprocessing.spawn",
        """
        import torch.multiprocessing as mp
        def work(i): raise ValueError(f"in process {i}")
        if __name__ == "__main__":
            mp.spawn(work, nprocs=1)  # here
        """,
        1,
        exception="torch.multiprocessing.spawn.ProcessRaisedException",
        message="ValueError: in process 0",
    ),
    Fault(
        "shapes that do not fit",
        "import torch\ntorch.ones(2, 3) @ torch.ones(2, 3)  # here\n",
        1,
        exception="RuntimeError",
        message="mat1 and mat2 shapes cannot be multiplied",
    ),
    Fault(
        "more memory than there is",
        "import torch\ntorch.empty(1 << 60, dtype=torch.uint8)  # here\n",
        1,
        exception="RuntimeError",
        message="can't allocate memory",
        cause="no more memory",
    ),
    Fault(
        "an abort in torch's native code",
        "import os, torch\ntorch.ones(8).sum()\nos.abort()\n",
        134,
        "signal",
        signal=6,
        said="Fatal Python error: Aborted",
        cause="gave up",
    ),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_named(fault: Fault, tmp_path: Path) -> None:
    fault.check(tmp_path, fault.start(tmp_path))


def test_nccl_without_a_gpu(tmp_path: Path) -> None:
    """The words depend on how torch was built; the cause does not."""
    text = "import os\nos.environ['CUDA_VISIBLE_DEVICES'] = ''\nimport torch.distributed as dist\n"
    (tmp_path / "script.py").write_text(text + "dist.init_process_group('nccl')\n")
    ended = run(tmp_path, "--device", "cpu", "--no-init", "script.py")
    first = ended.summary["first_failure"]
    assert (ended.code, first["kind"], first["exception"]["line"]) == (1, "exception", 4), ended
    assert "the nccl backend was asked for" in first["cause"]


@pytest.mark.parametrize("fault", ["os.kill(os.getpid(), signal.SIGKILL)", "os._exit(3)"])
def test_a_dataloader_worker_that_dies(fault: str, tmp_path: Path) -> None:
    """torch has four ways to say it, EOFError among them; it depends on what the rank was doing. The cause is one."""
    for folder in trials(tmp_path):
        (folder / "script.py").write_text(dedent(DATA.format(fault=fault)))
        ended = run(folder, "--no-init", "script.py")
        first = ended.summary["first_failure"]
        assert (ended.code, first["kind"], first["exception"]["line"]) == (1, "exception", 9), ended
        assert "a DataLoader worker process" in first["cause"], ended
