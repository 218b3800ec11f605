"""Owns: tiny stand-ins for meshrun.plan's functions, for as long as they are not merged.
Must not: be used once the real ones exist.
Called by: tests/watch/conftest.py."""

from types import ModuleType

from meshrun import wire
from meshrun.errors import Cause, CauseKind, InputError, Problem
from meshrun.plan.values import Mesh, NodePlan, Plan, WorkerPlan


def known_slots(host, nproc):
    return host.slots if host.slots is not None else nproc


def devices_of(host, slots, found):
    if found and len(found) < slots:
        raise InputError(f"{slots} slots, but {len(found)} devices")
    return found[:slots] if found else tuple(map(str, range(slots)))


def make_plan(hosts, slots, devices, spec):
    total = sum(slots)
    size = spec.dims[0][1] if spec else total
    if size != total:
        raise InputError(f"the mesh needs {size} slots, there are {total}")
    nodes, workers = [], []
    for rank, (host, count, names) in enumerate(zip(hosts, slots, devices)):
        nodes.append(NodePlan(rank, host, count, names, len(workers)))
        for local in range(count):
            at = len(workers)
            workers.append(WorkerPlan(at, rank, local, host.name, names[local], (("dp", at),)))
    return Plan("f", Mesh((("dp", total),)), tuple(nodes), tuple(workers), (), ())


def make_brief(job, node, slots):
    return wire.Brief(
        protocol=wire.PROTOCOL,
        run_id=job.run_id,
        form=job.form,
        argv=job.argv,
        init=job.init,
        start_method=job.start_method,
        preload=(),
        workdir=job.workdir,
        env={},
        env_remote={},
        slots=slots,
        device="cpu",
        devices=(),
        log_dir="",
        offers=node == 0,
        offer_port=0,
        check_script=node == 0,
        grace_s=job.grace_s,
        silence_s=job.silence_s,
        window_bytes=1 << 20,
    )


def make_assign(job, plan, node, facts):
    slots = tuple(
        wire.WorkerSlot(w.rank, w.local_rank, w.device, dict(w.coords)) for w in plan.workers if w.node_rank == node
    )
    return wire.Assign(node, len(plan.nodes), plan.world_size, "f", "cpu", "", 600.0, {}, slots, 0)


def check_facts(job, facts):
    found = []
    for node, fact in sorted(facts.items()):
        if not fact.torch and job.form != "program":
            found.append((node, Cause(CauseKind.NO_TORCH, "no torch")))
        elif 0 in facts and facts[0].torch and fact.torch != facts[0].torch:
            found.append((node, Cause(CauseKind.TORCH_VERSION, f"torch {fact.torch}, not {facts[0].torch}")))
    return found


def check_script(job, facts):
    return Problem(facts.script_error) if facts.script_error and facts.script_line else None


def _module(name, *functions):
    module = ModuleType(name)
    for function in functions:
        setattr(module, function.__name__, function)
    return module


checks = _module("checks", check_facts, check_script)
orders = _module("orders", make_brief, make_assign)
placement = _module("placement", known_slots, devices_of, make_plan)
