"""Owns: presets compared with the groups that the frameworks' own code made (frameworks/*.json name file and commit).
Must not: need a framework.
Called by: pytest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from meshrun.plan.placement import make_plan
from meshrun.plan.reach import named_axes
from meshrun.spec.mesh_file import parse_mesh_file
from meshrun.spec.values import Host

FOLDER = Path(__file__).parent / "frameworks"
CASES = [
    pytest.param(path.stem.partition("_")[0], case, id=f"{path.stem}-{case['world']}-{at}")
    for path in sorted(FOLDER.glob("*.json"))
    for at, case in enumerate(json.loads(path.read_text())["cases"])
]


@pytest.mark.parametrize(("preset", "case"), CASES)
def test_a_presets_groups_are_the_frameworks_own(preset: str, case: dict[str, Any]) -> None:
    mesh = {"preset": preset, "dims": case["dims"]} | ({"order": case["order"]} if "order" in case else {})
    spec = parse_mesh_file(json.dumps({"mesh": mesh}).encode(), "m.yaml")
    world = case["world"]
    plan = make_plan([Host("a")], [world], [tuple(map(str, range(world)))], spec)
    groups = {name: [list(group) for group in axis.groups()] for name, axis in named_axes(plan.mesh)}
    assert {name: groups.get(name) for name in case["groups"]} == case["groups"]
    if "mesh" in case:
        assert list(plan.mesh.names) == case["mesh"]
