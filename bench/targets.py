"""Owns: what is to be reached, by row: the budgets of the design as data.
Must not: measure.
Called by: bench.__main__."""

from __future__ import annotations

from bench.peers import BY_HAND, LOOP, TORCHRUN
from bench.result import Bound, Targets

_LIGHT, _TORCH, _MESH = (
    "{} local ranks without torch",
    "{} local ranks that import torch",
    "{} local ranks, 2-D gloo mesh",
)

# Without a second core for a rank there is nothing to gain: then it must only not be slower.
_STEPS = {
    f"step, {ranks} with {cores} each{bind}": (Bound(limit, TORCHRUN, must=True), *by_hand)
    for ranks in ("1 rank", "2 ranks")
    for cores, limit in (("several cores", 0.8), ("one core", 1.1))
    for bind, by_hand in (("", ()), (", --bind cores", (Bound(1.1, BY_HAND, must=True),)))
}

TARGETS: Targets = {
    **{_MESH.format(n): (Bound(0.20, TORCHRUN), Bound(1.10 if n == 8 else 1.15, LOOP)) for n in (2, 4, 8, 16)},
    **{_TORCH.format(n): (Bound(1.15, LOOP),) for n in (1, 2, 4, 8)},
    _LIGHT.format(8): (Bound(0.15, TORCHRUN),),
    "4 SSH hosts x 2 ranks without torch": (Bound(0.35, "deepspeed + pdsh"),),
    "4 SSH hosts x 2 ranks, 2-D gloo mesh": (Bound(0.55, "deepspeed + pdsh"),),
    "memory of 8 ranks with torch (PSS)": (Bound(0.35, TORCHRUN),),
    "a rank fails to all gone, 4 hosts": (Bound(1.0),),
    "interrupt to back at the prompt, 8 ranks": (Bound(0.3),),
    "failure to 8 ranks back in the script": (Bound(0.15, TORCHRUN),),
    "output of 4 ranks": (Bound(2.0, TORCHRUN),),
    "large writes through the agent to files": (Bound(300.0, must=True), Bound(0.5, "cat", must=True)),
    "launcher CPU per SSH host": (Bound(15.0),),
    "launcher memory per SSH host": (Bound(0.5),),
    "agent (PSS)": (Bound(16.0),),
    "idle launcher": (Bound(0.5),),
    "idle agent": (Bound(0.5),),
    "before the fork server imports": (Bound(0.15),),
    **_STEPS,
    "plan of 1,024 x 8": (Bound(1.0),),
    "plan of 1,024 x 8 as JSON": (Bound(1.0),),
    "meshrun --help": (Bound(0.15),),
}
