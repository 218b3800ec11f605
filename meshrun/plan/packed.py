"""Owns: the short form of a plan that crosses the line by hand: hosts, what each has, the mesh; and the plan from it.
Must not: trust it: whatever does not give the plan that it names is a WireError.
Called by: watch.planning (node 0), watch.relay_orders (the others)."""

from __future__ import annotations

from typing import Any

from meshrun.dataclass import fields
from meshrun.errors import InputError, WireError
from meshrun.plan.describe import describe_mesh
from meshrun.plan.placement import make_plan, with_shares
from meshrun.plan.reread import read_count, read_label, read_mesh, read_text
from meshrun.plan.values import Mesh, NodePlan, Plan
from meshrun.spec.labels import labels_of
from meshrun.spec.values import Host, MeshSpec
from meshrun.wire import Share
from meshrun.wire.cpus import parse_cpus

Kind = tuple[int, tuple[str, ...], str | None, tuple[Share, ...]]  # slots, devices, label, CPUs of the workers


def pack_plan(plan: Plan) -> dict[str, Any]:
    """The plan as plain JSON values that `unpack_plan` makes the same plan of (hosts: name and label only).

    Its size is that of the host names: nodes that are alike in everything else are told together, and ranks,
    coordinates and groups follow from the rest. So it is no plan of a few ranks (`--fake`)."""
    kinds: dict[Any, int] = {}
    kind_of = [kinds.setdefault(_describe_kind(plan, node), len(kinds)) for node in plan.nodes]
    mesh = plan.mesh
    return {
        "fingerprint": plan.fingerprint,
        "mesh": describe_mesh(plan),
        "rules": [mesh.device, list(mesh.within_node), list(mesh.across_nodes), dict(mesh.within_label)],
        "hosts": [node.host.name for node in plan.nodes],
        "kinds": [
            [slots, list(devices), dict(labels), [[share.cpus, share.threads] for share in shares]]
            for slots, devices, labels, shares in kinds
        ],
        "kind_of": kind_of,
    }


def _describe_kind(plan: Plan, node: NodePlan) -> Any:
    shares = tuple(worker.share for worker in plan.workers[node.first_rank : node.first_rank + node.slots])
    known = shares if any(share.cpus for share in shares) else ()
    return node.slots, node.devices, tuple(labels_of(node.host).items()), known


def unpack_plan(plain: dict[str, Any]) -> Plan:
    """The plan that `pack_plan` wrote, made anew by what made it there. Raises WireError if it is anything else."""
    try:
        kinds = [_read_kind(*kind) for kind in plain["kinds"]]
        mine = [kinds[read_count(number)] for number in plain["kind_of"]]
        hosts = [Host(read_text(name), label=kind[2]) for name, kind in zip(plain["hosts"], mine, strict=True)]
        spec = _read_spec(plain)
        plan = make_plan(hosts, [kind[0] for kind in mine], [kind[1] for kind in mine], spec)
        plan = with_shares(plan, {node: kind[3] for node, kind in enumerate(mine)})
        said = read_text(plain["fingerprint"])
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError, InputError) as error:
        raise WireError(f"a plan that cannot be read: {error}") from None
    if plan.fingerprint != said:
        raise WireError(f"a plan that is {plan.fingerprint} here and {said} on node 0")
    return plan


def _read_kind(slots: Any, devices: Any, labels: Any, shares: Any) -> Kind:
    ids = tuple(map(read_text, devices))
    if len(ids) != read_count(slots):
        raise ValueError(f"{slots} workers with {len(ids)} devices")
    return slots, ids, read_label(labels), tuple(_read_share(*share) for share in shares)


def _read_share(cpus: Any, threads: Any) -> Share:
    parse_cpus(read_text(cpus))
    return Share(cpus, read_count(threads))


def _read_spec(plain: dict[str, Any]) -> MeshSpec:
    mesh = read_mesh(plain["mesh"])
    device, within, across, labels = plain["rules"]
    known = {field.name: getattr(mesh, field.name) for field in fields(Mesh)}
    known |= {
        "device": read_text(device),
        "within_node": tuple(map(read_text, within)),
        "across_nodes": tuple(map(read_text, across)),
        "within_label": tuple((read_text(dim), read_text(label)) for dim, label in labels.items()),
    }
    return MeshSpec(**known)
