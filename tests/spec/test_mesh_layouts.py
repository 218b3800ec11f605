"""Owns: tests of what a mesh file says beyond dims: order, presets, rules, options; refusals with their places.
Must not: read files of the machine.
Called by: pytest."""

from __future__ import annotations

import pytest

from meshrun.errors import InputError, Place
from meshrun.spec.labels import parse_label
from meshrun.spec.mesh_file import parse_mesh_file
from meshrun.spec.solve import solve_mesh
from meshrun.spec.values import MeshSpec

DIMS = "mesh:\n  dims: {dp: 2, tp: 4}\n"


def read(text: str) -> MeshSpec:
    return parse_mesh_file(text.encode(), "m.yaml")


def test_order_is_innermost_first_and_outweighs_the_sequence_of_dims() -> None:
    for dims in ("{tp: 4, dp: auto, pp: 2}", "{pp: 2, dp: auto, tp: 4}", "{dp: auto, tp: 4, pp: 2}"):
        assert read(f"mesh: {{order: tp-cp-ep-dp-pp, dims: {dims}}}").dims == (("pp", 2), ("dp", None), ("tp", 4))
    text = "mesh: {order: b-x-a, dims: {a: 2, b: 2}, factorings: {f: {x: 4}}}"
    assert read(text).dims == (("a", 2), ("b", 2))


def test_rules_options_and_their_places() -> None:
    spec = read(
        "mesh:\n  dims: {pp: 2, dp: 2, tp: 4}\n  across_nodes: [dp]\n  within_label: {pp: rack}\n"
        "  options:\n    tp: {is_high_priority_stream: true, max_ctas: 16, net_name: IB}\n"
    )
    assert spec.across_nodes == ("dp",)
    assert spec.within_label == (("pp", "rack"),)
    assert spec.options == (("tp", (("is_high_priority_stream", 1), ("max_ctas", 16), ("net_name", "IB"))),)
    assert spec.place_of("across_nodes", "0") == Place("m.yaml", 3, 18)
    assert spec.place_of("within_label", "pp") == Place("m.yaml", 4, 18)
    assert spec.place_of("options", "tp", "max_ctas") == Place("m.yaml", 6, 41)
    assert spec.place_of("views", "x") == Place("m.yaml", 1, 1)


def test_a_preset_writes_the_grids_out() -> None:
    spec = read("mesh: {preset: megatron, dims: {tp: 2, pp: 2, ep: 4}, within_node: [ep_etp], backend: {edp: gloo}}")
    assert spec.dims == (("pp", 2), ("dp", None), ("cp", 1), ("tp", 2))
    assert spec.factorings == (("expert", (("pp", 2), ("edp", None), ("ep", 4), ("etp", 2))),)
    solved = solve_mesh(spec, 16)
    assert solved.dims == (("pp", 2), ("dp", 4), ("cp", 1), ("tp", 2))
    assert dict(solved.factorings)["expert"] == (("pp", 2), ("edp", 1), ("ep", 4), ("etp", 2))
    assert read("mesh: {preset: torchtitan}").dims[2] == ("dp_shard", None)
    assert read("mesh: {preset: accelerate, dims: {tp: 2, cp: 1}}").dims == (("dp_shard", None), ("tp", 2))
    more = read("mesh: {preset: accelerate, dims: {dp_shard: 4, tp: 2}, views: {all: [dp_shard, tp]}}")
    assert dict(more.views)["all"] == ("dp_shard", "tp")


def test_an_auto_that_a_factoring_shares_is_the_meshs() -> None:
    spec = read("mesh: {dims: {pp: auto, dp: 2, tp: 2}, factorings: {expert: {pp: auto, edp: auto, ep: 4}}}")
    assert dict(solve_mesh(spec, 16).factorings)["expert"] == (("pp", 4), ("edp", 1), ("ep", 4))


def test_what_would_fit_keeps_the_dims_that_are_shared() -> None:
    with pytest.raises(InputError, match="factoring e pp=2,ep=3 needs 6 slots, but 8") as caught:
        solve_mesh(read("mesh: {dims: {pp: 2, dp: 4}, factorings: {e: {pp: 2, ep: 3}}}"), 8)
    assert [problem.hint for problem in caught.value.problems] == ["pp=2,ep=4 would fit"]


@pytest.mark.parametrize(
    ("dims", "words"),
    [
        ("{dp: 2, cp: 2, tp: 2}, factorings: {e: {tp: 2, ep: 4}}", "tp has 4 ranks further right in the factoring e"),
        ("{a: 2, b: 4}, factorings: {e: {x: 4, y: 2}, f: {x: 2, y: 4}}", "x is 2 in the factoring f, but 4 in the f"),
        ("{a: 2, b: auto}, factorings: {e: {b: 8, x: auto}}", "b is 8 in the factoring e, but 4 in the mesh"),
    ],
)
def test_a_shared_name_has_the_same_groups(dims: str, words: str) -> None:
    with pytest.raises(InputError) as caught:
        solve_mesh(read(f"mesh: {{dims: {dims}}}"), 8)
    assert words in str(caught.value)
    assert str(caught.value).startswith("m.yaml:1:")


def test_an_inner_dim_may_be_shared_where_its_groups_are_the_same() -> None:
    spec = read("mesh: {dims: {dp: 2, cp: 2, tp: 2}, factorings: {dense: {fsdp: 4, tp: 2}}}")
    assert dict(solve_mesh(spec, 8).factorings)["dense"] == (("fsdp", 4), ("tp", 2))


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        (DIMS + "  order: tp", "3:3", "order does not name dp"),
        (DIMS + "  order: tp-dq", "3:3", "did you mean dp?"),
        (DIMS + "  order: tp-dp-tp", "3:10", "tp stands twice"),
        (DIMS + "  order: tp--dp", "3:10", "not an order"),
        (DIMS + "  order: [tp, dp]", "3:10", "not one value"),
        (DIMS + "  preset: megatro", "3:11", "did you mean megatron?"),
        ("mesh:\n  preset: megatron\n  dims: {tpp: 4}", "3:10", "did you mean tp?"),
        ("mesh:\n  preset: torchtitan\n  order: tp-pp", "3:3", "torchtitan has an order of its own"),
        ("mesh:\n  preset: megatron\n  order: tp-dp-xp", "3:3", "does not know xp"),
        ("mesh:\n  preset: megatron\n  order: tp-dp-pp\n  dims: {cp: 2}", "3:3", "does not name cp"),
        ("mesh:\n  preset: megatron\n  dims: {ep: auto}", "3:10", "ep cannot be auto"),
        ("mesh:\n  preset: torchtitan\n  dims: {etp: 2}", "3:10", "there is no ep"),
        ("mesh:\n  preset: accelerate\n  dims: {cp: 2, sp: 2}", "3:17", "cp or sp, not both"),
        ("mesh:\n  preset: accelerate\n  dims: {dp_replicate: 2, dp_shard: 1, tp: 2}", "3:10", "dp_replicate alone"),
        ("mesh:\n  preset: megatron\n  views: {dp_cp: [dp, cp]}", "3:11", "has views of its own"),
        (DIMS + "  across_nodes: [tx]", "3:18", "not a dim"),
        (DIMS + "  within_label: {pp: rack}", "3:18", "not a dim"),
        (DIMS + "  within_label: {dp: a-b}", "3:22", "not a name for a label"),
        (DIMS + "  within_label: [dp]", "3:17", "must be a mapping"),
        (DIMS + "  options: {tq: {max_ctas: 1}}", "3:13", "not a dim"),
        (DIMS + "  options: {tp: {max_cta: 1}}", "3:18", "did you mean max_ctas?"),
        (DIMS + "  options: {tp: {high_priority: true}}", "3:18", "did you mean is_high_priority_stream?"),
        (DIMS + "  options: {tp: {colour: 1}}", "3:18", "NCCL's options are"),
        (DIMS + "  options: {tp: {max_ctas: 0}}", "3:28", "a number from 1"),
        (DIMS + "  options: {tp: {is_high_priority_stream: 1}}", "3:43", "true or false"),
        (DIMS + "  options: {tp: {net_name: 'a b'}}", "3:28", "a word"),
        (DIMS + "  options: {tp: 3}", "3:17", "must be a mapping"),
        (DIMS + "  backend: {tp: gloo}\n  options: {tp: {max_ctas: 1}}", "4:13", "gloo takes no options"),
        (DIMS + "  device: cpu\n  options: {tp: {max_ctas: 1}}", "4:13", "device cpu takes no options"),
        (DIMS + "  factorings: {e: {x: 2, y: 4}}\n  views: {v: [dp, x]}", "4:11", "dims of several grids"),
    ],
)
def test_what_cannot_be_is_refused_with_its_place(text: str, place: str, words: str) -> None:
    with pytest.raises(InputError) as caught:
        read(text)
    assert f"m.yaml:{place}: " in str(caught.value)
    assert words in str(caught.value)


def test_labels_of_a_host() -> None:
    assert parse_label("r7") == {"rack": "r7"}
    assert parse_label("rack:r7,room:b") == {"rack": "r7", "room": "b"}


@pytest.mark.parametrize(
    ("text", "offset"), [("rack:", 0), ("a:1,,b:2", 4), ("a:1,a:2", 4), ("r7,rack:r8", 3), ("1:x", 0)]
)
def test_what_is_no_label(text: str, offset: int) -> None:
    with pytest.raises(ValueError) as caught:
        parse_label(text)
    assert vars(caught.value)["offset"] == offset
