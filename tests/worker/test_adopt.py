"""Owns: what a script's own init, destroy and init_device_mesh do in workers that meshrun started.
Must not: test the meshes themselves (test_groups).
Called by: pytest."""

from __future__ import annotations

import pytest

from tests.worker.player import Player
from tests.worker.probes import run, script

pytestmark = pytest.mark.torch

ADOPTED = """
    before = groups()
    dist.init_process_group({arguments})
    print(groups() == before, dist.get_backend(), timeout(dist.group.WORLD), timeout(meshrun.mesh().get_group("tp")))
    print(total())
    try:
        dist.init_process_group("gloo")
    except ValueError as error:
        print(error)
"""


@pytest.mark.parametrize(
    ("arguments", "same", "backend", "seconds"),
    [
        ("", True, "gloo", 60.0),
        ("'gloo'", True, "gloo", 60.0),
        ("backend='gloo', init_method='env://', rank=int(os.environ['RANK']), world_size=4", True, "gloo", 60.0),
        ("timeout=timedelta(seconds=44)", True, "gloo", 44.0),
        ("'cpu:gloo'", True, "cpu:gloo", 60.0),
        ("'GLOO'", True, "gloo", 60.0),
    ],
)
def test_a_scripts_own_init_is_adopted(
    player: Player, arguments: str, same: bool, backend: str, seconds: float
) -> None:
    ends = run(player, ADOPTED.format(arguments=arguments), 4, {"dp": 2, "tp": 2})
    for end in ends:
        assert end.out.splitlines()[0] == f"{same} {backend} {seconds} {seconds}"
        assert end.out.splitlines()[1:] == ["6", "trying to initialize the default process group twice!"]


def test_another_backend_is_honoured(player: Player) -> None:
    text = """
        options = dist.ProcessGroupGloo._Options()
        dist.init_process_group("gloo", pg_options=options, timeout=timedelta(seconds=9))
        print(dist.get_backend(), timeout(dist.group.WORLD), len(groups()), total(meshrun.mesh().get_group("tp")))
        """
    ends = run(player, text, 4, {"dp": 2, "tp": 2})
    assert ends[3].out == "gloo 9.0 3 5\n"


@pytest.mark.parametrize("arguments", ["world_size=4, rank=0", "world_size=8", "rank=3"])
def test_another_world_is_refused(player: Player, arguments: str) -> None:
    text = f"dist.init_process_group('gloo', {arguments})"
    ends = player.run(player.order(script(player, text), init="eager", mesh={"dims": {"dp": 2}}), 2)
    for end in ends:
        assert end.code == 1
        raised = end.raised
        assert (raised.type, raised.phase) == ("ValueError", "script")
        assert f"this worker is rank {end.rank} of 2" in raised.message
        assert "meshrun/" not in end.err


def test_a_mesh_of_the_same_shape_and_names_is_the_one_that_exists(player: Player) -> None:
    (end, *_) = run(
        player,
        """
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed import device_mesh
        before = groups()
        same = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        print(same is meshrun.mesh(), dist.init_device_mesh is device_mesh.init_device_mesh, groups() == before)
        other = init_device_mesh("cpu", mesh_shape=(2, 2), mesh_dim_names=("x", "y"))
        print(other == same, len(groups()) > len(before), end=" ")
        print(init_device_mesh("cpu", (2, 2), mesh_dim_names=("x", "y")) is other)
        import inspect
        print("device_id" in inspect.signature(dist.init_process_group).parameters, dist.init_process_group.__name__)
        """,
        4,
        {"dp": 2, "tp": 2},
    )
    assert end.out.splitlines() == ["True True True", "False True True", "True init_process_group"]


@pytest.mark.parametrize("init", ["eager", "lazy"])
def test_destroy_and_init_again(player: Player, init: str) -> None:
    ends = run(
        player,
        """
        kept = None
        for round in range(3):
            if round or meshrun:
                dist.init_process_group("gloo", timeout=timedelta(seconds=20 + round))
            mesh = meshrun.mesh()
            print(total(), total(mesh.get_group("tp")), timeout(mesh.get_group("dp")))
            kept = mesh  # as frameworks do
            dist.destroy_process_group()
            try:
                meshrun.mesh()
            except RuntimeError as error:
                print("was destroyed" in str(error))
        meshrun.init()
        print(total(meshrun.mesh().get_group("tp")))
        """,
        4,
        {"dp": 2, "tp": 2},
        init=init,
    )
    expected = [line for seconds in ("20.0", "21.0", "22.0") for line in (f"6 1 {seconds}", "True")]
    assert ends[0].out.splitlines() == [*expected, "1"]


def test_no_mesh_is_kept_after_destroy(player: Player) -> None:
    (end, _) = run(
        player,
        """
        import gc, weakref
        mesh = weakref.ref(meshrun.mesh())
        dist.destroy_process_group()
        gc.collect()
        print(mesh())
        """,
        2,
        {"dp": 1, "tp": 2},
    )
    assert end.out == "None\n"


def test_a_destroyed_group_outlives_what_may_hang_on_it(player: Player) -> None:
    """A DDP model that outlives destroy_process_group must not hold the last reference: dropping it from C++ with the
    GIL held hung the end of good scripts. Only the last generation is kept, so that init and destroy may repeat."""
    (end, _) = run(
        player,
        """
        from meshrun.worker.session import current
        for round in range(3):
            dist.init_process_group("gloo")
            model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
            model(torch.ones(1, 2)).sum().backward()
            before = set(c10d._world.pg_map)
            dist.destroy_process_group()
            print(set(current().retired) == before, len(before))
            del model, before
        """,
        2,
        {"dp": 2},
        init="lazy",
    )
    assert end.out == "True 1\n" * 3
