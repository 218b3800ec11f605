"""Owns: tests of what known_hosts says about a key.
Must not: connect.
Called by: pytest."""

from __future__ import annotations

import base64
import subprocess
from pathlib import Path

import pytest

from meshrun.launch.known_hosts import (
    Verdict,
    find_types,
    index_entries,
    is_about,
    judge_key,
    make_fingerprint,
    parse_known_hosts,
    select_entries,
)
from meshrun.launch.ssh_files import add_known_host, read_known_hosts
from tests.cluster_parts import make_key

_KEY, _OTHER = b"key", b"other"
_A, _B = (base64.b64encode(key).decode() for key in (_KEY, _OTHER))


def _judge(
    text: str, name: str = "h", bare: str = "", key_type: str = "t", key: bytes = _KEY
) -> tuple[Verdict, list[int]]:
    names = (name, bare) if bare else (name,)
    verdict, found = judge_key(select_entries(index_entries(parse_known_hosts(text, "f")), names), name, "t", _KEY)
    return verdict, [entry.line for entry in found]


@pytest.mark.parametrize(
    "text, verdict, lines",
    [
        ("", Verdict.UNKNOWN, []),
        ("# h t x\n\nbroken\nh t ???\n", Verdict.UNKNOWN, []),
        (f"g,h t {_A} comment", Verdict.KNOWN, [1]),
        (f"g t {_A}", Verdict.UNKNOWN, []),
        (f"h t {_B}", Verdict.CHANGED, [1]),
        (f"h t {_B}\nh t {_A}", Verdict.KNOWN, [2]),
        (f"h u {_B}", Verdict.OTHER_TYPE, [1]),
        (f"*,!h t {_A}", Verdict.UNKNOWN, []),
        (f"H? t {_A}\n* t {_B}", Verdict.CHANGED, [2]),
        (f"h t {_A}\n@revoked * t {_A}", Verdict.REVOKED, [2]),
        (f"@revoked h t {_B}", Verdict.UNKNOWN, []),
        (f"@cert-authority *  t {_A}", Verdict.AUTHORITY, [1]),
    ],
)
def test_verdicts(text: str, verdict: Verdict, lines: list[int]) -> None:
    assert _judge(text) == (verdict, lines)


def test_a_port_that_is_not_22() -> None:
    assert _judge(f"[h]:7 t {_A}", "[h]:7", "h")[0] is Verdict.KNOWN
    assert _judge(f"h t {_A}", "[h]:7", "h")[0] is Verdict.KNOWN
    assert _judge(f"h t {_B}", "[h]:7", "h")[0] is Verdict.UNKNOWN
    assert _judge(f"[h]:7 t {_B}\nh t {_B}", "[h]:7", "h")[0] is Verdict.CHANGED
    assert _judge(f"@revoked h t {_A}\n[h]:7 t {_A}", "[h]:7", "h")[0] is Verdict.REVOKED


def test_types_known() -> None:
    assert find_types(parse_known_hosts(f"h t {_A}\n@revoked h u {_B}", "f")) == {"t"}


def test_as_ssh_keygen_hashes_and_prints(tmp_path: Path) -> None:
    make_key(tmp_path / "k")
    public = (tmp_path / "k.pub").read_text().split()
    key = base64.b64decode(public[1])
    file = tmp_path / "known_hosts"
    file.write_text(f"h {public[0]} {public[1]}\n[h]:7 {public[0]} {public[1]}\n")
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(file)], check=True, capture_output=True)
    assert "|1|" in file.read_text()
    for name, lines in (("h", [1]), ("[h]:7", [2]), ("g", [])):
        assert [entry.line for entry in select_entries(read_known_hosts((str(file),))[0], (name,))] == lines
    shown = subprocess.run(
        ["ssh-keygen", "-lf", str(tmp_path / "k")], check=True, capture_output=True, text=True
    ).stdout
    assert make_fingerprint(key) == shown.split()[1]


def test_a_new_key_is_a_whole_line_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "new" / "known_hosts"
    add_known_host(str(file), "h", "t", _KEY)
    file.write_text(file.read_text().rstrip("\n"))
    add_known_host(str(file), "g", "t", _OTHER)
    add_known_host(str(file), "g", "t", _OTHER)
    assert file.read_text() == f"h t {_A}\ng t {_B}\n"
    assert file.stat().st_mode & 0o777 == 0o600
    assert [
        entry.names for known in read_known_hosts((str(file), str(tmp_path / "nope"))) for entry in known.entries
    ] == ["h", "g"]


def test_an_index_finds_what_a_look_at_every_line_finds() -> None:
    lines = ["h,H2 t", "h* t", "!h,* u", "[h]:7 t", "@revoked h t", "|1|x|y t", "h3,h t", "* t"]
    entries = parse_known_hosts("\n".join(f"{line} {_A}" for line in lines), "f")
    for names in (("h",), ("[h]:7", "h"), ("H",), ("h2",), ("other",), ("h3", "H2")):
        every = tuple(entry for entry in entries if any(is_about(entry, name) for name in names))
        assert select_entries(index_entries(entries), names) == every and every
