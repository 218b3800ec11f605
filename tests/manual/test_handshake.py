"""Owns: tests of the first words on the by-hand line: who gets in, who is refused, and that nothing else can happen.
Must not: open a socket.
Called by: pytest."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshrun import wire
from meshrun.errors import CauseKind
from meshrun.launch.handshake import (
    PREAMBLE,
    Claim,
    Ear,
    Hello,
    Refusal,
    Refused,
    Side,
    Stage,
    Welcome,
    advance_gate,
    advance_node,
    find_differences,
    make_claim,
    make_welcome,
    render_mesh,
    tame,
)
from meshrun.spec.values import ByHand, EarlySignal, Host, Job, MeshSpec

CLAIM = Claim(2, 4, "gpu2", "dp=2,tp=4", "script", "", "ab" * 32, "eager")
OURS = replace(CLAIM, node_rank=0, hostname="gpu0")


def _side(token: bytes, fill: str, claim: Claim = CLAIM) -> Side:
    return Side(token, fill * 64, claim)


def _meet(gate_token: bytes, node_token: bytes, change: Any = lambda claim: claim) -> tuple[Claim, Welcome]:
    """A whole handshake; `change` is applied to the claim on its way."""
    gate, node = _side(gate_token, "1", OURS), _side(node_token, "2")
    gate, _ = advance_gate(gate, node.hello)
    node, claim = advance_node(node, gate.hello)
    gate, proven = advance_gate(gate, change(claim))
    assert proven is not None and gate.stage is Stage.JOINED
    node, welcome = advance_node(node, make_welcome(gate, "run-1"))
    assert node.stage is Stage.JOINED
    return proven, welcome


@pytest.mark.parametrize("token", [b"", b"secret"])
def test_the_same_token_or_none_on_both_ends_joins(token: bytes) -> None:
    proven, welcome = _meet(token, token)
    assert replace(proven, mac="") == CLAIM
    assert welcome.run_id == "run-1"


@pytest.mark.parametrize(
    ("gate_token", "node_token", "words"),
    [
        (b"secret", b"", "has no token"),
        (b"", b"secret", "wants a token"),
        (b"secret", b"Secret", "another token"),
    ],
)
def test_a_token_that_is_missing_or_wrong_is_refused(gate_token: bytes, node_token: bytes, words: str) -> None:
    with pytest.raises(Refused, match=words) as caught:
        _meet(gate_token, node_token)
    assert caught.value.kind is CauseKind.AUTH
    assert "--token-file" in caught.value.hint


def test_a_claim_that_was_changed_on_its_way_is_refused() -> None:
    with pytest.raises(Refused, match="another token"):
        _meet(b"secret", b"secret", lambda claim: replace(claim, node_rank=3))


def test_a_replayed_claim_is_refused_because_the_nonce_is_another() -> None:
    gate, node = _side(b"secret", "1", OURS), _side(b"secret", "2")
    gate, _ = advance_gate(gate, node.hello)
    _, recorded = advance_node(node, gate.hello)
    later, _ = advance_gate(_side(b"secret", "3", OURS), node.hello)
    with pytest.raises(Refused, match="another token"):
        advance_gate(later, recorded)


def test_node_0_must_prove_itself_too() -> None:
    node, _ = advance_node(_side(b"secret", "2"), Hello("1" * 64, True))
    with pytest.raises(Refused, match="could not prove"):
        advance_node(node, Welcome("run-1"))


def test_a_proof_cannot_be_reflected_to_its_maker() -> None:
    node, claim = advance_node(_side(b"secret", "2"), Hello("1" * 64, True))
    with pytest.raises(Refused, match="could not prove"):
        advance_node(node, Welcome("run-1", claim.mac))


@pytest.mark.parametrize("run_id", ["", "../../etc", "a b", "x" * 101, "-rf"])
def test_a_run_id_that_is_no_plain_name_is_refused(run_id: str) -> None:
    node, _ = advance_node(_side(b"", "2"), Hello("1" * 64, False))
    with pytest.raises(Refused):
        advance_node(node, Welcome(run_id))


@pytest.mark.parametrize(
    "heard",
    [CLAIM, Welcome("r"), wire.Beat(), Hello("short", False), Hello("G" * 64, False), wire.Output(0, 1, b"")],
)
def test_the_gate_hears_only_a_hello_first(heard: Any) -> None:
    with pytest.raises(Refused, match="does not speak"):
        advance_gate(_side(b"", "1", OURS), heard)


@pytest.mark.parametrize("heard", [Hello("2" * 64, False), Welcome("r"), wire.Leave(0, {}, ""), Refusal("x", "", "")])
def test_the_gate_hears_only_a_claim_second(heard: Any) -> None:
    gate, _ = advance_gate(_side(b"", "1", OURS), Hello("2" * 64, False))
    with pytest.raises(Refused, match="does not speak"):
        advance_gate(gate, heard)


def test_a_refusal_is_shown_without_control_characters() -> None:
    with pytest.raises(Refused) as caught:
        advance_node(_side(b"", "2"), Refusal("mismatch", "no\x1b[2J\nway", "h\x07"))
    assert caught.value.message == "no?[2J?way"
    assert caught.value.hint == "h?"
    assert caught.value.kind is CauseKind.MISMATCH


def test_a_refusal_of_unknown_kind_is_still_one() -> None:
    with pytest.raises(Refused) as caught:
        advance_node(_side(b"", "2"), Refusal("sudo", "no", ""))
    assert caught.value.kind is CauseKind.AUTH


# ---- bytes -----------------------------------------------------------------------------------------------------------


def test_an_ear_reads_one_byte_at_a_time() -> None:
    data = PREAMBLE + wire.encode(Hello("1" * 64, True)) + wire.encode(CLAIM)
    ear, heard = Ear(), []
    for at in range(len(data)):
        heard += ear.feed(data[at : at + 1])
    assert heard == [Hello("1" * 64, True), CLAIM]


def test_another_version_is_named() -> None:
    with pytest.raises(Refused, match=f"version 77 .* version {wire.PROTOCOL}") as caught:
        list(Ear().feed(b"meshrun:by-hand:77\n"))
    assert "same meshrun" in caught.value.hint


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n", b"SSH-2.0-x\r\n", b"\0", b"meshrun:by-hand:" + b"1" * 99])
def test_another_protocol_is_refused_at_once(data: bytes) -> None:
    with pytest.raises(Refused, match="does not speak"):
        list(Ear().feed(data))


def test_a_large_frame_is_refused_by_its_head_until_the_peer_is_trusted() -> None:
    head = wire.encode(wire.Stacks(0, "x" * 2 * wire.MAX_UNTRUSTED_FRAME))
    with pytest.raises(Refused, match="over the limit"):
        list(Ear().feed(PREAMBLE + head[:5]))
    ear = Ear()
    ear.trust(1 << 20)
    assert len(list(ear.feed(PREAMBLE + head))) == 1


def test_a_frame_cut_off_is_waited_for() -> None:
    assert list(Ear().feed(PREAMBLE + wire.encode(CLAIM)[:-1])) == []


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
_names = st.sampled_from(sorted(wire.MESSAGES)) | st.text(max_size=8)


def _frame(kind: int, body: bytes) -> bytes:
    return bytes([kind]) + len(body).to_bytes(4, "big") + body


_frames = st.builds(_frame, st.integers(0, 255), st.binary(max_size=60)) | st.builds(
    lambda name, fields: _frame(1, json.dumps([name, fields]).encode()), _names, _json
)
_fields = st.sampled_from([10**400, float("nan"), -1, "", "\ud800", None, True, [], {}, [[]], {"a": 1}])


@st.composite
def _near_misses(draw: st.DrawFn) -> bytes:
    """A real message with one field of another type: what a checker is most likely to let pass."""
    message = draw(st.sampled_from([CLAIM, Hello("1" * 64, False), Welcome("r"), wire.Ready(0, 0, 1.0), wire.Beat()]))
    body = {name: getattr(message, name) for name in message.__dataclass_fields__}
    if body:
        body[draw(st.sampled_from(sorted(body)))] = draw(_fields)
    return _frame(1, json.dumps([type(message).__name__, body]).encode())


@settings(max_examples=300, deadline=None)
@given(st.lists(st.binary(max_size=200) | _frames | _near_misses() | st.just(PREAMBLE), max_size=6), st.booleans())
def test_no_bytes_of_a_stranger_raise_anything_but_a_refusal(pieces: list[bytes], greeted: bool) -> None:
    for start, step in ((_side(b"secret", "1", OURS), advance_gate), (_side(b"", "1"), advance_node)):
        side, ear = start, Ear()
        try:
            for data in ([PREAMBLE] if greeted else []) + pieces:
                for heard in ear.feed(data):
                    side, _ = step(side, heard)  # type: ignore[operator]
        except Refused:
            pass
        if start.token:
            assert side.stage is not Stage.JOINED


@pytest.mark.parametrize("number", ["1" + "0" * 400, "NaN", "-" + "9" * 5000])
def test_a_number_that_is_none_is_a_malformed_message(number: str) -> None:
    body = json.dumps(["Ready", {"rank": 0, "attempt": 0, "age_s": 0}]).replace('"age_s": 0', f'"age_s": {number}')
    with pytest.raises(Refused, match=r"malformed|not a message"):
        list(Ear().feed(PREAMBLE + _frame(1, body.encode())))


# ---- claims ----------------------------------------------------------------------------------------------------------


def test_a_claim_has_the_job_but_neither_paths_nor_arguments() -> None:
    job = Job(
        run_id="r",
        form="script",
        argv=("/home/me/train.py", "--secret", "x"),
        hosts=(Host("gpu1"),),
        local=(True,),
        workdir="/home/me",
        python="/usr/bin/python",
        log_dir="/runs",
        script_hash="cd" * 32,
        mesh=MeshSpec((("dp", None), ("tp", 4))),
        env=(("PASSWORD", "hunter2"),),
        by_hand=ByHand(4, 1, "gpu0", 29500, b"secret"),
    )
    claim = make_claim(job, "gpu1")
    assert replace(claim, settings={}) == Claim(1, 4, "gpu1", "dp=auto,tp=4", "script", "", "cd" * 32, "lazy")
    module = make_claim(replace(job, form="module", argv=("pkg.train", "-x")), "gpu1")
    assert (module.target, module.script_hash) == ("pkg.train", "")


def test_a_mesh_text_has_everything_that_makes_two_meshes_differ() -> None:
    plain = MeshSpec((("dp", 2), ("tp", 4)))
    others = [
        replace(plain, dims=(("tp", 4), ("dp", 2))),
        replace(plain, within_node=("tp",)),
        replace(plain, views=(("all", ("dp", "tp")),)),
        replace(plain, factorings=(("expert", (("edp", None), ("ep", 4))),)),
        replace(plain, backend=(("dp", "gloo"),)),
        replace(plain, timeout_s=(("default", 60.0),)),
        replace(plain, device="cpu"),
    ]
    texts = {render_mesh(spec) for spec in (plain, None, *others)}
    assert len(texts) == len(others) + 2
    assert render_mesh(plain) == "dp=2,tp=4"


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("nnodes", 3, "--nnodes: node 0 has 4, node 2 (gpu2) has 3"),
        ("mesh", "dp=8", "--mesh: node 0 has dp=2,tp=4, node 2 (gpu2) has dp=8"),
        ("script_hash", "cd" * 32, "node 0 has abababababababab, node 2 (gpu2) has cdcdcdcdcdcdcdcd"),
        ("init", "off", "--init: node 0 has eager, node 2 (gpu2) has off"),
        ("form", "module", "node 0 has script, node 2 (gpu2) has module"),
        ("target", "evil\n", "node 0 has (nothing), node 2 (gpu2) has evil?"),
    ],
)
def test_a_difference_shows_both_values(field: str, value: Any, words: str) -> None:
    differences = find_differences(OURS, replace(CLAIM, **{field: value}))
    assert len(differences) == 1
    assert words in differences[0]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"max_restarts": 2}, "--max-restarts: node 0 has 0, node 1 (b) has 2"),
        ({"grace_s": 7.5}, "--grace: node 0 has 5, node 1 (b) has 7.5"),
        ({"time_limit_s": 60.0}, "--time-limit: node 0 has (nothing), node 1 (b) has 60"),
        ({"signal_workers": EarlySignal(10, 30.0)}, "--signal-workers: node 0 has (nothing), node 1 (b) has USR1@30"),
        ({"hang_timeout_s": 9.0}, "--hang-timeout: node 0 has (nothing), node 1 (b) has 9"),
        ({"start_timeout_s": 9.0}, "--start-timeout: node 0 has 300, node 1 (b) has 9"),
        ({"timeout_s": 60.0}, "--timeout: node 0 has (nothing), node 1 (b) has 60"),
        ({"backend": "gloo"}, "--backend: node 0 has (nothing), node 1 (b) has gloo"),
        ({"device": "cpu"}, "--device: node 0 has auto, node 1 (b) has cpu"),
    ],
)
def test_what_would_make_the_run_go_differently_must_be_the_same(change: dict[str, Any], words: str) -> None:
    assert find_differences(_claim(0), _claim(1, **change)) == [words]


def test_what_is_a_nodes_own_business_may_differ() -> None:
    own = {"python": "/p", "workdir": "/w", "show": "0", "quiet": True, "env": (("A", "1"),), "connect_timeout_s": 1.0}
    assert find_differences(_claim(0), _claim(1, **own, hosts=(Host("b", slots=7),))) == []


def _claim(rank: int, **changes: Any) -> Claim:
    values: dict[str, Any] = {"hosts": (Host("b"),), "workdir": "/", "python": "/usr/bin/python3", **changes}
    hand = ByHand(2, rank, "a", 29500)
    job = Job(run_id="r", form="script", argv=("/t.py",), local=(True,), log_dir="/runs", by_hand=hand, **values)
    return make_claim(job, "b")


def test_nodes_that_differ_in_rank_and_name_alone_fit() -> None:
    assert find_differences(OURS, CLAIM) == []


@given(st.text(max_size=500))
def test_tamed_text_is_printable_and_short(text: str) -> None:
    assert tame(text).isprintable()
    assert len(tame(text)) <= 203
