"""Owns: what `label=` on a host's line says: `r7` (its rack), or names and values, `rack:r7,room:b`.
Must not: know which labels a mesh asks for.
Called by: spec.hostkeys (is it sound?), plan.reach, plan.rules."""

from __future__ import annotations

from meshrun.spec.hostname import NameProblem
from meshrun.spec.mesh import is_name
from meshrun.spec.values import Host

RACK = "rack"  # what a label without a name is


def parse_label(text: str) -> dict[str, str]:
    """Names and values of a label; one without a name is the rack. Raises NameProblem with the offset."""
    found: dict[str, str] = {}
    at = 0
    for item in text.split(","):
        name, colon, value = item.partition(":") if ":" in item else (RACK, "", item)
        if not value:
            raise NameProblem(f"the label {name[:40]} has no value", at, "as in label=r7 or label=rack:r7,room:b")
        if colon and not is_name(name):
            raise NameProblem(f"'{name[:40]}' is not a name for a label", at, "letters, digits and _")
        if name in found:
            raise NameProblem(f"the label {name} is given twice", at)
        found[name] = value
        at += len(item) + 1
    return found


def labels_of(host: Host) -> dict[str, str]:
    """The labels of a host by name; none where its line has none."""
    return parse_label(host.label) if host.label else {}
