"""Owns: tests that the table of keywords is complete, and says of each what is true of the code.
Must not: connect.
Called by: pytest."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from meshrun.launch import ssh_canonical, ssh_config, ssh_target
from meshrun.launch.ssh_keywords import ALIASES, KEYWORDS, Use, check_value
from tests.launch.ssh_oracle import ask_ssh, ssh_defaults


def test_every_keyword_that_ssh_shows_is_classified() -> None:
    shown = {"host", *ssh_defaults()}
    assert len(shown) > 60 and shown - set(KEYWORDS) == set()


def test_no_word_in_the_program_is_a_keyword_that_we_do_not_know(tmp_path: Path) -> None:
    """Every lower-case word that stands in ssh's own file is tried as a keyword: it must refuse all but those of the
    table. So a keyword that a newer ssh brings is found, also if `ssh -G` does not show it."""
    program = Path(str(shutil.which("ssh"))).read_bytes()
    words = {found.decode() for found in re.findall(rb"(?<=\0)[a-z][a-z0-9]{3,39}(?=\0)", program)}
    assert {"hostkeyalias", "identityagent"} < words, "this is not where ssh keeps its keywords"
    unknown = words - set(KEYWORDS) - set(ALIASES)
    config = tmp_path / "config"
    config.write_text("Host nobody\n" + "".join(f"{word} x\n" for word in sorted(unknown)))
    refused = set(re.findall(r"Bad configuration option: (\w+)", ask_ssh(config, "x").refused))
    assert unknown - refused == set()


def test_every_keyword_of_ours_is_one_of_ssh(tmp_path: Path) -> None:
    """A keyword that OpenSSH does not know would be a spelling mistake; newer ones than the installed may stand."""
    vendors = {"rsaminsize", "protocolkeepalives", "setuptimeout", "useblacklistedkeys"}
    newer = {"channeltimeout", "obscurekeystroketiming", "versionaddendum", "warnweakcrypto", "refuseconnection", "tag"}
    config = tmp_path / "config"
    config.write_text("".join(f"{name} x\n" for name in sorted({*KEYWORDS, *ALIASES} - newer - {"match"})))
    unknown = re.findall(r"Bad configuration option: (\w+)", ask_ssh(config, "x").refused)
    assert set(unknown) - vendors - {name for name in KEYWORDS if name.startswith("gssapi")} == set()


def test_aliases_lead_to_keywords() -> None:
    assert set(ALIASES.values()) <= set(KEYWORDS) and not set(ALIASES) & set(KEYWORDS)


def test_what_is_called_honoured_is_read_somewhere() -> None:
    text = "".join(Path(str(module.__file__)).read_text() for module in (ssh_canonical, ssh_config, ssh_target))
    honoured = {name for name, keyword in KEYWORDS.items() if keyword.use is Use.HONOURED}
    assert {name for name in honoured if f'"{name}"' not in text} == set()
    harmless = {name for name, keyword in KEYWORDS.items() if keyword.use is Use.HARMLESS}
    assert {name for name in harmless if f'"{name}"' in text} == set()


def test_what_is_ignored_says_why() -> None:
    assert [name for name, k in KEYWORDS.items() if k.use in (Use.NOTED, Use.REFUSED) and not k.why] == []


@pytest.mark.parametrize("name", [name for name, keyword in KEYWORDS.items() if keyword.use is Use.REFUSED])
def test_nothing_that_is_refused_is_refused_by_default(name: str) -> None:
    assert all(value.lower() in KEYWORDS[name].unless for value in ssh_defaults().get(name, []))


@pytest.mark.parametrize(
    "keyword, words, says",
    [
        ("port", ("22",), ""),
        ("port", ("٣",), "1 to 65535"),
        ("identitiesonly", ("YES",), ""),
        ("identitiesonly", ("y",), "none of"),
        ("connecttimeout", ("1h30",), ""),
        ("connecttimeout", ("soon",), "not a time"),
        ("requiredrsasize", ("x",), "not a number"),
        ("user", (), "missing"),
        ("user", ("a", "b"), "one value only"),
        ("revokedhostkeys", ("none", "x"), "alone"),
    ],
)
def test_values(keyword: str, words: tuple[str, ...], says: str) -> None:
    problem = check_value(keyword, words)
    assert (says in problem) if says else problem == ""


# ---- the manual ----

_GUIDE = Path(__file__).parents[2] / "docs" / "how-to" / "ssh.md"


def _list(use: Use) -> str:
    return ", ".join(f"`{k.name}`" for k in sorted(KEYWORDS.values(), key=lambda k: k.name.lower()) if k.use is use)


@pytest.mark.parametrize(
    "title, use",
    [
        ("**Honoured:**", Use.HONOURED),
        ("**Refused by name**", Use.REFUSED),
        ("**Ignored, and said once:**", Use.NOTED),
        ("**Harmless here**", Use.HARMLESS),
    ],
)
def test_the_guide_lists_the_table(title: str, use: Use) -> None:
    paragraphs = [" ".join(text.split()) for text in _GUIDE.read_text().split("\n\n")]
    [paragraph] = [text for text in paragraphs if text.startswith(title)]
    assert paragraph.endswith((f": {_list(use)}.", f":** {_list(use)}.")), _list(use)


def test_every_keyword_in_the_guide_is_one() -> None:
    """A word in code that looks like a keyword of ssh_config (a capital within) is in the table, or sshd's."""
    text = _GUIDE.read_text()
    sshd = {"MaxStartups", "MaxAuthTries", "MaxSessions", "AllowTcpForwarding", "ForceCommand", "AcceptEnv"}
    words = set(re.findall(r"`([A-Z][a-z]+[A-Z][A-Za-z]+)\b", text))
    assert words > {"ProxyJump", "IdentitiesOnly"}
    assert {word for word in words if word.lower() not in KEYWORDS} - sshd == set()
