"""Owns: wrong arguments of collectives: `--fake` refuses what gloo refuses or cannot do, and takes the rest.
Must not: need root, an accelerator, or more than this machine.
Called by: pytest."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.command import run

pytestmark = pytest.mark.torch

# In a world of 2, on both ranks alike; `x` has 3 elements.
WRONG = """
dist.broadcast(x, 99)
dist.reduce(x, 99)
dist.all_gather([x.clone() for _ in range(3)], x)
dist.all_gather_into_tensor(torch.ones(4), x)
dist.reduce_scatter_tensor(x, torch.ones(4))
dist.gather(x, [x.clone()] * 3 if rank == 0 else None) if rank == 0 else refuse()
dist.scatter(x, [x] * 3 if rank == 0 else None) if rank == 0 else refuse()
dist.reduce_scatter(x, [x] * 3)
dist.all_to_all([x.clone()], [x])
dist.all_to_all_single(torch.ones(4), torch.ones(4), [1, 2], [1, 3])
"""
CRASHING = """
dist.all_to_all_single(torch.ones(3), x)
dist.send(x, 99)
dist.isend(x, 99)
dist.recv(x, src=-1)
dist.irecv(x, src=2)
dist.batch_isend_irecv([dist.P2POp(dist.isend, x, 99)])
"""
RIGHT = """
dist.broadcast(x, 1)
dist.reduce(x, 1)
dist.all_gather([x.clone() for _ in range(2)], x)
dist.all_gather_into_tensor(torch.ones(6), x)
dist.reduce_scatter_tensor(x, torch.ones(6))
dist.gather(x, [x.clone() for _ in range(2)] if rank == 0 else None)
dist.scatter(x, [x.clone() for _ in range(2)] if rank == 0 else None)
dist.reduce_scatter(x, [x.clone() for _ in range(2)])
dist.all_to_all([x.clone() for _ in range(2)], [x.clone() for _ in range(2)])
dist.all_to_all_single(torch.ones(4, 3), torch.ones(4, 3))
dist.all_to_all_single(torch.ones(2 + 2 * rank), torch.ones(3), [1 + rank] * 2, [1, 2])
[w.wait() for w in dist.batch_isend_irecv([dist.P2POp(op, x.clone(), 1 - rank) for op in (dist.isend, dist.irecv)])]
dist.broadcast(x, group_src=1, group=meshrun.mesh()["dp"].get_group())
"""
SCRIPT = """
import warnings, torch, torch.distributed as dist, meshrun
warnings.simplefilter("ignore")
meshrun.mesh()
rank = dist.get_rank()
def refuse(): raise ValueError("only the root says")
for line in LINES.strip().splitlines():
    x = torch.ones(3)
    try:
        eval(line)
    except Exception as error:
        print("refused", line, "//", *str(error).splitlines()[:1])
    else:
        print("taken", line)
"""


def outcomes(folder: Path, kind: str, lines: str) -> list[str]:
    """Of rank 0: `refused` or `taken` and the line."""
    (folder / "calls.py").write_text(f"LINES = {lines!r}\n{SCRIPT}")
    ended = run(folder, kind, "--hosts", "a:1,b:1", "--mesh", "dp=2", "--show", "0", "calls.py")
    assert ended.code == 0, ended
    return [line.split("] ", 1)[1].partition(" // ")[0] for line in ended.out.splitlines() if "[a:0" in line]


@pytest.mark.parametrize(("lines", "outcome"), [(WRONG, "refused"), (RIGHT, "taken")])
def test_a_rehearsal_judges_as_gloo_does(tmp_path: Path, lines: str, outcome: str) -> None:
    expected = [f"{outcome} {line}" for line in lines.strip().splitlines()]
    assert outcomes(tmp_path, "--fake", lines) == expected
    assert outcomes(tmp_path, "--local", lines) == expected


def test_what_gloo_takes_and_cannot_do_is_refused(tmp_path: Path) -> None:
    """It crashes or waits there, or returns what was in memory."""
    expected = [f"refused {line}" for line in CRASHING.strip().splitlines()]
    assert outcomes(tmp_path, "--fake", CRASHING) == expected


def test_the_message_has_both_sides(tmp_path: Path) -> None:
    (tmp_path / "t.py").write_text(
        "import torch, torch.distributed as dist, meshrun\nmesh = meshrun.mesh()\n"
        "dist.all_gather_into_tensor(torch.ones(4, 6), torch.ones(5), group=mesh['tp'].get_group())\n"
    )
    ended = run(tmp_path, "--fake", "--hosts", "n[01-64]:8", "--mesh", "dp=64,tp=8", "--ranks", "77", "t.py")
    assert ended.code == 1, ended
    assert "output is (4, 6), input (5,): 24 elements are not 8 ranks times 5" in ended.err
