"""Owns: tests of mesh.yaml.
Must not: read files of the machine.
Called by: pytest."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshrun.errors import InputError
from meshrun.spec.mesh_file import parse_mesh_file
from meshrun.spec.nodes import MAX_BYTES
from meshrun.spec.values import MeshSpec

FULL = b"""\
mesh:
  dims: {pp: 2, dp: auto, tp: 4}     # outermost first; the last varies fastest; one may be auto
  within_node: [tp]
  views:
    dp_tp: [dp, tp]
  factorings:
    expert: {pp: 2, edp: auto, ep: 4}
  backend: {dp: gloo, edp: "cpu:gloo,cuda:nccl"}
  timeout_s: {default: 600, tp: 60.5}
  device: cpu
"""


def test_a_full_mesh() -> None:
    assert parse_mesh_file(FULL, "mesh.yaml") == MeshSpec(
        dims=(("pp", 2), ("dp", None), ("tp", 4)),
        within_node=("tp",),
        views=(("dp_tp", ("dp", "tp")),),
        factorings=(("expert", (("pp", 2), ("edp", None), ("ep", 4))),),
        backend=(("dp", "gloo"), ("edp", "cpu:gloo,cuda:nccl")),
        timeout_s=(("default", 600.0), ("tp", 60.5)),
        device="cpu",
    )


@pytest.mark.parametrize("text", [b"mesh: {dims: {dp: 2}}", b"\xef\xbb\xbfmesh:\r\n  dims:\r\n    dp: 2\r\n"])
def test_only_dims_are_needed(text: bytes) -> None:
    assert parse_mesh_file(text, "m").dims == (("dp", 2),)


def test_words_that_yaml_takes_for_something_else_are_names() -> None:
    assert parse_mesh_file(b"mesh: {dims: {no: 2, on: 3}}", "m").dims == (("no", 2), ("on", 3))


DIMS = "mesh:\n  dims: {dp: 2, tp: 4}\n"


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("", "1:1", "no mesh in it"),
        ("mesh:", "1:6", "mesh must be a mapping"),
        ("- 1", "1:1", "the file must be a mapping"),
        ("mesh: {within_node: []}", "1:7", "the mesh has no dims"),
        ("mesh: {dims: {}}", "1:8", "one dim at least"),
        ("mesh: {dims: {dp: 2, dp: 3}}", "1:22", "stands twice"),
        ("mesh: {dims: {dp: '2'}}", "1:19", "without quotes"),
        ("mesh: {dims: {dp: 1_0}}", "1:19", "not a size"),
        ("mesh: {dims: {dp: 0}}", "1:19", "out of range"),
        ("mesh: {dims: {dp: [2]}}", "1:19", "not one value"),
        ("mesh: {dims: {d-p: 2}}", "1:15", "not a name"),
        ("mesh: {dims: {? [a] : 2}}", "1:17", "a key must be a name"),
        ("mesh: {dims: {a: auto, b: auto}}", "1:24", "only one dim can be auto"),
        ("mesh: {dims: dp=2}", "1:14", "dims must be a mapping"),
        ("mesh: {dim: {dp: 2}}", "1:8", "did you mean dims?"),
        ("mesh: {dims: {a: 1}}\nmash: 1", "2:1", "unknown key mash"),
        (DIMS + "  within_node: tp", "3:16", "must be a list"),
        (DIMS + "  within_node: [tx]", "3:17", "not a dim"),
        (DIMS + "  views: {x: [tp, dp]}", "3:11", "write [dp, tp]"),
        (DIMS + "  views: {x: [dp, dp]}", "3:11", "once"),
        (DIMS + "  views: {x: []}", "3:11", "once"),
        (DIMS + "  views: {x: [q]}", "3:11", "not a dim"),
        (DIMS + "  views: {tp: [tp]}", "3:11", "name of a dim"),
        (DIMS + "  factorings: {dp: {a: 8}}", "3:16", "name of a dim or view"),
        (DIMS + "  factorings: {e: {tp: 8}}", "3:20", "tp is 8 here, but 4 in the mesh"),
        (DIMS + "  factorings: {e: {dp: 4, ep: 2}}", "3:20", "dp is 4 here, but 2"),
        (DIMS + "  backend: {q: gloo}", "3:13", "not a dim"),
        (DIMS + "  backend: {dp: GLOO!}", "3:17", "not a backend"),
        (DIMS + "  backend: gloo", "3:12", "must be a mapping"),
        (DIMS + "  timeout_s: {q: 3}", "3:15", "not a dim"),
        (DIMS + "  timeout_s: {dp: soon}", "3:19", "not a number of seconds"),
        (DIMS + "  timeout_s: {dp: 0}", "3:19", "not a number of seconds"),
        (DIMS + "  timeout_s: {dp: 1e999}", "3:19", "not a number of seconds"),
        (DIMS + "  timeout_s: {dp: .nan}", "3:19", "not a number of seconds"),
        (DIMS + "  device: gpu", "3:3", "not a device"),
        (DIMS + '  device: "\\e[31m"', "3:11", "not one value"),
        ("mesh: {dims: &x {dp: 2}}", "1:14", "an anchor (&x)"),
        ("mesh: {dims: {dp: 2}, views: *x}", "1:30", "an alias (*x)"),
        ("mesh: {dims: {dp: !!int 2}}", "1:19", "a tag"),
        ("mesh: !!python/object:os.system {}", "1:7", "a tag"),
        ("mesh: {dims: {<<: {dp: 2}}}", "1:15", "not a name"),
        ("a: b: c", "1:5", "not allowed here"),
        ("mesh: {dims: {dp: 2}", "1:21", "expected ',' or '}'"),
        ("mesh: {}\n---\nmesh: {}", "2:1", "a second document"),
        ("[" * 2000, "1:17", "nested too deeply"),
        ("mesh:\n\x01", "2:1", "does not allow"),
        ("mesh:\n\tdims: 1", "2:1", "cannot start any token"),
    ],
)
def test_what_is_no_mesh_file_is_refused_with_its_place(text: str, place: str, words: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_mesh_file(text.encode(), "m.yaml")
    assert f"m.yaml:{place}: " in str(caught.value)
    assert words in str(caught.value)
    # And nothing that merely follows; where YAML's own forms are refused, what stands there is no value either.
    assert len(caught.value.problems) <= (2 if re.search(r"[*<]", text) else 1)


def test_all_problems_come_at_once_in_order() -> None:
    text = b"mesh:\n  dims: {dp: x, tp: 4, tp: 2}\n  device: [a]\n  back: {dp: gloo}\n"
    with pytest.raises(InputError) as caught:
        parse_mesh_file(text, "m")
    assert re.findall(r"^m:(\d+:\d+)", str(caught.value), re.MULTILINE) == ["2:14", "2:24", "3:11", "4:3"]


WRONG = """\
mesh:
  dims: {dp: 2, tp: 4, pp: x}
  within_node: [tpp, dp]
  views: {v: [tp, dp], w: [q], u: [dp, [tp]]}
  factorings: {e: {tp: 8, ep: y}, pp: {dp: 2, a: 4}}
  backend: {dp: GLOO!, tp: glo, zz: nccl}
  timeout_s: {dp: soon, qq: 3}
  options: {tp: {max_cta: 3}, dp: {min_ctas: -1}}
  device: gpu
  presets: megatron
"""


def test_what_can_be_read_is_judged_although_the_rest_cannot() -> None:
    with pytest.raises(InputError) as caught:
        parse_mesh_file(WRONG.encode(), "m")
    found = re.findall(r"^m:(\d+:\d+)", str(caught.value), re.MULTILINE)
    assert " ".join(found) == ("2:28 3:17 4:11 4:24 4:40 5:20 5:31 5:35 6:17 6:28 6:33 7:19 7:25 8:18 8:46 9:3 10:3")


PRESET = b"mesh:\n  preset: megatron\n  order: tp-cp-ep-dp-qq\n  dims: {tp: 2, ep: auto, zp: 1}\n  backend: {dp: glo}\n"


def test_a_preset_that_cannot_be_written_out_leaves_its_names_unjudged() -> None:
    with pytest.raises(InputError) as caught:
        parse_mesh_file(PRESET + b"  within_node: [edp]\n  device: gpu\n", "m")
    places = re.findall(r"^m:(\d+:\d+)", str(caught.value), re.MULTILINE)
    assert places == ["3:3", "4:27", "5:17", "7:3"]


@pytest.mark.parametrize(
    ("name", "registers", "early", "refused"),
    [
        ("glo", False, False, True),
        ("glo", True, True, False),
        ("mine", False, True, True),
        ("mine", False, False, False),
        ("NCCL", False, True, False),
    ],
)
def test_a_backend_that_there_is_not_has_its_place(name: str, registers: bool, early: bool, refused: bool) -> None:
    text = DIMS + f"  backend: {{dp: gloo, tp: {name}}}"
    if not refused:
        assert parse_mesh_file(text.encode(), "m", registers, early).backend[1] == ("tp", name.lower())
        return
    with pytest.raises(InputError, match=f"^m:3:27: no backend is named {name}"):
        parse_mesh_file(text.encode(), "m", registers, early)


def test_bytes_that_are_no_text_or_too_many() -> None:
    with pytest.raises(InputError, match="m:2:3: this is not UTF-8"):
        parse_mesh_file(b"a\nbc\xff", "m")
    with pytest.raises(InputError, match="at most"):
        parse_mesh_file(b"#" * (MAX_BYTES + 1), "m")


WORDS = st.sampled_from(
    ["mesh:", "dims:", " ", "\n", "  ", "{", "}", "[", "]", "dp: 2", "tp: auto", ",", "&a", "*a", "!!x", "- ", "'", ":"]
)


@settings(deadline=None)
@given(st.one_of(st.text(), st.lists(WORDS, max_size=25).map("".join), st.binary().map(lambda b: b.decode("latin1"))))
def test_any_text_gives_a_mesh_or_problems_with_places(text: str) -> None:
    try:
        parse_mesh_file(text.encode("utf-8", "replace"), "m")
    except InputError as error:
        assert all(p.place and p.place.line >= 1 for p in error.problems)
