"""Owns: groups and meshes in real workers: eager, lazy, off, sharing, mismatch.
Must not: test what a script's own calls do (test_adopt), how it is run (test_parity) or recorded (test_failures).
Called by: pytest."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshrun import wire
from tests.worker.player import Player
from tests.worker.probes import run, script

pytestmark = pytest.mark.torch


def test_eight_ranks_on_a_grid(player: Player) -> None:
    ends = run(
        player,
        """
        mesh = meshrun.mesh()
        print(mesh.mesh_dim_names, tuple(mesh.shape), meshrun.coords(), list(mesh.get_coordinate()))
        print(total(mesh.get_group("dp")), total(mesh.get_group("tp")), total(), dist.get_backend(), meshrun.device())
        print(len(groups()))
        """,
        8,
        {"dp": 2, "tp": 4},
    )
    for rank, end in enumerate(ends):
        dp, tp = divmod(rank, 4)
        lines = end.out.splitlines()
        assert lines[0] == f"('dp', 'tp') (2, 4) {{'dp': {dp}, 'tp': {tp}}} [{dp}, {tp}]"
        assert lines[1] == f"{2 * tp + 4} {sum(range(4 * dp, 4 * dp + 4))} 28 gloo cpu"
        assert lines[2] == "3"
        assert end.ready


def test_time_outs_and_backends_are_those_of_each_dim(player: Player) -> None:
    (end, *_) = run(
        player,
        """
        mesh = meshrun.mesh()
        print([timeout(g) for g in (dist.group.WORLD, mesh.get_group("dp"), mesh.get_group("tp"))])
        print(dist.get_backend(mesh.get_group("tp")), dist.get_timeout() if hasattr(dist, "get_timeout") else "")
        """,
        4,
        {"dp": 2, "tp": 2},
        {"timeout_s": {"tp": 33}, "backend": {"tp": "cpu:gloo"}},
        timeout_s=77.0,
    )
    assert end.out.splitlines()[0] == "[77.0, 77.0, 33.0]"
    assert end.out.splitlines()[1].startswith("cpu:gloo")


def test_views_and_factorings_share_equal_groups(player: Player) -> None:
    ends = run(
        player,
        """
        mesh, outer, whole = meshrun.mesh(), meshrun.mesh("outer"), meshrun.mesh("whole")
        expert, only = meshrun.mesh("expert"), meshrun.mesh("only")
        print(whole.get_group() is dist.group.WORLD, outer.mesh.tolist(), only.mesh_dim_names, expert.mesh_dim_names)
        print(expert.get_group("pp") is mesh.get_group("pp"), meshrun.mesh("same").get_group() is outer.get_group())
        print(len(groups()), total(outer.get_group()), meshrun.mesh("tp").mesh.tolist())
        try:
            meshrun.mesh("none")
        except KeyError as error:
            print(error)
        """,
        8,
        {"pp": 2, "dp": 2, "tp": 2},
        {
            "views": {"outer": ["pp", "dp"], "same": ["dp", "pp"], "whole": ["pp", "dp", "tp"], "only": ["dp"]},
            "factorings": {"expert": {"pp": 2, "ep": 4}},
        },
    )
    lines = ends[3].out.splitlines()
    assert lines[0] == "True [1, 3, 5, 7] ('dp',) ('pp', 'ep')"
    assert lines[1] == "True True"
    assert lines[2] == "6 16 [2, 3]"  # world, pp, dp, tp, outer, ep
    assert "known: pp, dp, tp, ep, expert, outer, same, whole, only" in lines[3]


def test_torchtitans_grids_share_their_groups(player: Player) -> None:
    """Six grids' worth of names over 8 ranks are eight groups a rank: each set of ranks once, the world included."""
    mesh = {
        "factorings": {
            "dataloading": {"pp": 2, "batch": 2, "cp": 1, "tp": 2},
            "dense": {"pp": 2, "dp_replicate": 1, "fsdp": 2, "tp": 2},
            "sparse": {"pp": 2, "dp_replicate": 1, "efsdp": 1, "ep": 4},
        },
        "views": {"loss": ["dp_replicate", "dp_shard", "cp"], "moe": ["efsdp", "ep"], "all": ["pp", "efsdp", "ep"]},
    }
    ends = run(
        player,
        """
        mesh = meshrun.mesh()
        same = [meshrun.mesh(name).get_group() is mesh.get_group("dp_shard") for name in ("batch", "fsdp", "loss")]
        print(same, meshrun.mesh("dense").get_group("tp") is mesh.get_group("tp"))
        print(meshrun.mesh("all").get_group() is dist.group.WORLD, meshrun.mesh("moe").mesh.tolist())
        print(tuple(meshrun.mesh("sparse").shape), meshrun.mesh("dense")["dp_replicate", "fsdp"].mesh.tolist())
        print(total(meshrun.mesh("ep").get_group()), len(groups()))
        print([meshrun.is_first(name) for name in ("pp", "ep", "loss")], meshrun.is_last("ep"), meshrun.is_last("cp"))
        """,
        8,
        {"pp": 2, "dp_replicate": 1, "dp_shard": 2, "cp": 1, "tp": 2},
        mesh,
    )
    assert ends[4].out.splitlines() == [
        "[True, True, True] True",
        "True [4, 5, 6, 7]",
        "(2, 1, 1, 4) [[4, 6]]",
        "22 6",  # world, pp, dp_shard, tp, ep, and one of size 1
        "[False, True, True] False True",
    ]
    assert ends[7].out.splitlines()[4] == "[False, False, False] True True"


def test_megatrons_inner_order_gives_real_groups(player: Player) -> None:
    """`order: tp-cp-ep-pp-dp`: dp outermost; the expert grid shares pp in its middle."""
    ends = run(
        player,
        """
        mesh, expert = meshrun.mesh(), meshrun.mesh("expert")
        print(total(mesh.get_group("dp")), total(mesh.get_group("pp")), total(expert.get_group("ep")))
        print(expert.get_group("pp") is mesh.get_group("pp"), expert.get_group("ep") is mesh.get_group("tp"))
        """,
        8,
        {"dp": 2, "pp": 2, "tp": 2},
        {"factorings": {"expert": {"edp": 2, "pp": 2, "ep": 2}}},
    )
    for rank, end in enumerate(ends):
        dp, pp, tp = rank // 4, rank // 2 % 2, rank % 2
        sums = (2 * (2 * pp + tp) + 4, 2 * (4 * dp + tp) + 2, 2 * (4 * dp + 2 * pp) + 1)
        assert end.out.splitlines() == [" ".join(map(str, sums)), "True True"]


def test_options_for_nccl_are_said_to_be_left_out_on_gloo_once(player: Player) -> None:
    mesh = {"options": {"tp": {"max_ctas": 4}}}
    order = player.order(
        script(player, "print(len(groups()))"), init="eager", mesh={"dims": {"dp": 2, "tp": 2}, **mesh}
    )
    ends = player.run(order, 4)
    assert [(end.code, end.out) for end in ends] == [(0, "3\n")] * 4
    assert "the options of tp are NCCL's; its group here is cpu:gloo" in ends[0].err
    assert [end.err for end in ends[1:]] == [""] * 3


def test_gloo_groups_beside_a_world_that_is_bound_to_a_device(player: Player) -> None:
    """Without the bond taken off, torch would have the ranks outside split a communicator of that device."""
    ends = run(
        player,
        """
        from meshrun.worker.mesh import side_groups
        world = dist.group.WORLD
        world.bound_device_id = torch.device("cuda", 0)
        with side_groups("gloo"):
            made = [dist.new_group([rank], backend="gloo") for rank in range(2)]
        print(world.bound_device_id, total(made[dist.get_rank()]))
        try:
            if dist.get_rank() == 1:
                dist.new_group([0], backend="gloo")  # the last thing this world does
        except AttributeError as error:
            print("perform_nocolor_split" in str(error))
        world.bound_device_id = None
        """,
        2,
        {"dp": 2},
    )
    assert [end.out.splitlines() for end in ends] == [["cuda:0 0"], ["cuda:0 1", "True"]]


def test_a_world_that_is_bound_to_a_device_is_split_once_for_each_dim(player: Player) -> None:
    """Through a stand-in for `split_group` that takes the same arguments; never run with NCCL."""
    ends = run(
        player,
        """
        import inspect
        from meshrun.worker.mesh import build_meshes
        real, asked, world = inspect.signature(dist.split_group), [], dist.group.WORLD
        backend = type(world._get_backend(torch.device("cpu")))
        def split(*args, **kwargs):
            given = real.bind(*args, **kwargs).arguments
            asked.append((given["split_ranks"], given["group_desc"], given["timeout"].total_seconds()))
            world.bound_device_id = None
            made = [dist.new_group(ranks) for ranks in given["split_ranks"]]
            world.bound_device_id = torch.device("cuda", 0)
            return next(group for group in made if dist.get_rank(group) >= 0)
        dist.split_group = split
        torch.accelerator.is_available = lambda: True
        torch.accelerator.current_accelerator = lambda: torch.device("cpu")
        backend.supports_splitting = True
        world.bound_device_id = torch.device("cuda", 0)
        asks = {"dims": {"dp": 2, "tp": 2}, "factorings": {"e": {"edp": 2, "ep": 2}}, "timeout_s": {"tp": 7}}
        mesh = build_meshes(asks, "cpu", 4, 60).meshes[""]
        world.bound_device_id = None
        print(asked[0], asked[1], asked[2:])
        print(total(mesh.get_group("dp")), total(mesh.get_group("tp")))
        """,
        4,
        {"dp": 4},
    )
    rows, columns = "[[0, 1], [2, 3]]", "[[0, 2], [1, 3]]"
    splits = f"({columns}, 'mesh_dp', 60.0) ({rows}, 'mesh_tp', 7.0) [({rows}, 'mesh_ep', 60.0)]"
    sums = [(2, 1), (4, 1), (2, 5), (4, 5)]
    assert [end.out for end in ends] == [f"{splits}\n{dp} {tp}\n" for dp, tp in sums]


def test_children_know_their_places_in_factorings_too(player: Player) -> None:
    (_, end, *_) = run(
        player,
        """
        import multiprocessing as mp
        os.environ["MESHRUN_MESH"] = '{"dims": {"dp": 4}, "factorings": {"e": {"edp": 2, "ep": 2}}}'
        p = mp.get_context("fork").Process(target=lambda: print(meshrun.is_last("ep"), flush=True))
        p.start(); p.join()
        """,
        4,
        {"dp": 4},
        {"factorings": {"e": {"edp": 2, "ep": 2}}},
    )
    assert end.out.split() == ["True"]


def test_size_one_dims_make_one_group_between_them(player: Player) -> None:
    (end, _) = run(player, "print(len(groups()))", 2, {"a": 1, "b": 1, "c": 2})
    assert end.out == "2\n"


def test_fsdp_over_a_view_and_tensor_parallel_combine(player: Player) -> None:
    (end, *_) = run(
        player,
        """
        from torch.distributed.fsdp import fully_shard
        from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
        model = torch.nn.Sequential(torch.nn.Linear(8, 8))
        parallelize_module(model, meshrun.mesh()["tp"], {"0": ColwiseParallel()})
        fully_shard(model, mesh=meshrun.mesh("dp_cp"))
        warnings.simplefilter("ignore")
        model(torch.ones(2, 8)).sum().backward()
        print(model[0].weight.device_mesh.mesh_dim_names)
        """,
        4,
        {"dp": 2, "cp": 1, "tp": 2},
        {"views": {"dp_cp": ["dp", "cp"]}},
    )
    assert end.out == "('dp_cp', 'tp')\n"


def test_lazy_builds_the_mesh_with_what_the_script_asked(player: Player) -> None:
    ends = run(
        player,
        """
        print(dist.is_initialized())
        dist.init_process_group("cpu:gloo", timeout=timedelta(seconds=21))
        mesh = meshrun.mesh()
        print(dist.get_backend(), mesh.mesh_dim_names, timeout(mesh.get_group("tp")), total(mesh.get_group("tp")))
        """,
        4,
        {"dp": 2, "tp": 2},
        init="lazy",
    )
    assert ends[3].out.splitlines() == ["False", "cpu:gloo ('dp', 'tp') 21.0 5"]


def test_lazy_init_without_arguments_names_its_backend(player: Player) -> None:
    (end,) = run(player, "dist.init_process_group(); print(dist.get_backend())", 1, {"dp": 1}, init="lazy")
    assert end.out == "gloo\n"


def test_lazy_without_a_mesh_makes_no_group_more(player: Player) -> None:
    (end, _) = run(
        player,
        """
        print(meshrun.coords(), dist.is_initialized())
        print(meshrun.mesh().mesh_dim_names, dist.is_initialized(), groups(), dist.get_backend())
        dist.init_process_group()
        """,
        2,
        {"dp": 2},
        init="lazy",
    )
    assert end.out.splitlines() == ["{'dp': 0} False", "('dp',) True ['0'] gloo"]


def test_lazy_starts_at_init_device_mesh_too(player: Player) -> None:
    (end, _) = run(
        player,
        """
        mesh = dist.init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
        print(mesh is meshrun.mesh(), groups(), dist.get_backend())
        """,
        2,
        {"dp": 2},
        init="lazy",
    )
    assert end.out == "True ['0'] gloo\n"


def test_off_changes_nothing(player: Player) -> None:
    (end, _) = run(
        player,
        """
        print(hasattr(dist.init_process_group, "meshrun_original"), hasattr(dist.init_device_mesh, "meshrun_original"))
        try:
            meshrun.mesh()
        except RuntimeError as error:
            print(error)
        dist.init_process_group("gloo")
        print(timeout(dist.group.WORLD), meshrun.coords())
        print(meshrun.init().mesh_dim_names, total(meshrun.mesh().get_group()))
        """,
        2,
        {"dp": 2},
        init="off",
    )
    assert end.out.splitlines() == [
        "False False",
        "--init off builds no mesh: call meshrun.init() first",
        "1800.0 {'dp': 0}",
        "('dp',) 1",
    ]


def test_the_scripts_mesh_counts_where_the_command_line_has_none(player: Player) -> None:
    (end, *_) = run(
        player, "print(list(meshrun.init('a=2,b=auto').shape), meshrun.coords())", 4, {"dp": 4}, init="lazy"
    )
    assert end.out == "[2, 2] {'a': 0, 'b': 0}\n"


def test_different_plans_end_before_any_group_is_made(player: Player) -> None:
    path = script(player, "print('never')")
    with player.store(2) as port:
        workers = []
        for rank, fingerprint in enumerate(("aaaa", "bbbb")):
            order = player.order(path, init="eager", mesh={"dims": {"dp": 2}}, fingerprint=fingerprint, timeout_s=5.0)
            assert player.line is not None
            player.line.sendall(wire.encode(order))
            workers.append(player.fork(rank, player.env(rank, 2, port)))
        ends = [worker.wait() for worker in workers]
    assert [end.code for end in ends] == [1, 1]
    assert not any(end.ready or "never" in end.out for end in ends)
    raised = next(e.raised for e in ends if e.raised.type.endswith("PlanMismatch"))
    assert raised.phase == "init"
    for word in ("rank 0", "rank 1", "aaaa", "bbbb"):
        assert word in raised.message


def test_a_mesh_that_does_not_cover_the_world_is_an_init_failure(player: Player) -> None:
    ends = player.run(player.order(script(player, "print('never')"), init="eager", mesh={"dims": {"dp": 3}}), 2)
    for end in ends:
        assert (end.code, end.out, end.ready) == (1, "", False)
        assert (end.raised.phase, end.raised.type, end.raised.exit_code) == ("init", "ValueError", 1)
        assert "dp=3 does not have 2 places" in end.raised.message


def test_rank_zero_may_leave_first(player: Player) -> None:
    """No rank hosts the store, so the others can use it when rank 0 is gone."""
    text = """
        if os.environ["RANK"] == "0":
            sys.exit(0)
        from torch.distributed.rendezvous import rendezvous
        os.read(0, 1)
        store, rank, size = next(rendezvous("env://"))
        store.set("key", "value")
        print(store.get("key"), rank, size)
        """
    order = player.order(script(player, text), init="off", mesh={"dims": {"dp": 2}})
    with player.store(2) as port:
        first, second = player.launch(order, 2, port)
        assert first.wait().code == 0
        end = second.wait()
    assert (end.code, end.out) == (0, "b'value' 1 2\n"), end.err


def test_a_scripts_children_are_no_ranks(player: Player) -> None:
    (end, _) = run(
        player,
        """
        import multiprocessing as mp
        def child():
            print(meshrun.coords(), hasattr(dist.init_process_group, "meshrun_original"), flush=True)
        p = mp.get_context("fork").Process(target=child); p.start(); p.join()
        print(p.exitcode, total())
        """,
        2,
        {"dp": 2},
    )
    assert end.out.splitlines() == ["{'dp': 0} True", "0 1"]


def test_the_ddp_example_runs_unchanged(player: Player) -> None:
    example = Path(__file__).resolve().parents[2] / "examples" / "ddp.py"
    for init in ("eager", "lazy", "off"):
        ends = player.run(player.order(example, init=init, mesh={"dims": {"dp": 2}}), 2)
        assert [(end.code, end.err) for end in ends] == [(0, ""), (0, "")]
        assert ends[0].out.startswith("step 0  loss ")
