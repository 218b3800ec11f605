"""Owns: tests of what an ssh config says about a host.
Must not: connect; `ssh -G` is asked where it is installed, as the judge.
Called by: pytest."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from pathlib import Path

import pytest

from meshrun.errors import InputError
from meshrun.launch.ssh_config import Asker, Target, match_patterns, parse_lines, resolve, restrict
from meshrun.launch.ssh_files import read_hops, read_target
from meshrun.launch.ssh_target import Asked, make_target, parse_jump
from meshrun.spec.values import SshSettings

_ASKER = Asker("me", "/home/me", run=lambda command: command == "test h1.example = h1.example")


def _target(text: str, name: str = "h1", settings: SshSettings | None = None, **includes: str) -> Target:
    def include(pattern: str) -> list[tuple]:  # type: ignore[type-arg]
        return [parse_lines(includes[pattern], pattern)]

    options = resolve([parse_lines(text, "config")], name, {}, _ASKER, include)
    return make_target(Asked(name), settings or SshSettings(), options, _ASKER)


def test_nothing_said() -> None:
    target = _target("")
    assert (target.hostname, target.port, target.user, target.key_name) == ("h1", 22, "me", "h1")
    assert not (target.user_said or target.port_said or target.accept_new or target.identities)
    assert target.default_keys[-1] == "/home/me/.ssh/id_ed25519"
    assert target.known_hosts[0] == "/home/me/.ssh/known_hosts"


def test_the_first_value_wins_and_identities_add_up() -> None:
    target = _target(
        """
        Host h?
          HostName %h.example   # a remark
          Port=2222
          IdentityFile ~/.ssh/%h_%r
        Host h* !h1
          User wrong
        Host *
          user "right"
          Port 1
          IdentityFile /keys/b
          UserKnownHostsFile ~/a "/b c"
          ProxyCommand nc %h %p
        """
    )
    assert (target.hostname, target.port, target.user) == ("h1.example", 2222, "right")
    assert target.identities == ("/home/me/.ssh/h1.example_right", "/keys/b") and target.default_keys == ()
    assert target.known_hosts[:2] == ("/home/me/a", "/b c")
    assert target.key_name == "[h1.example]:2222"
    assert target.proxy_command == "nc h1.example 2222"


def test_line_over_command_line_over_config() -> None:
    options = {"user": ["config"], "port": ["3"]}
    settings = SshSettings(user="flag", port=2, identity="~/mine")
    assert make_target(Asked("h", "line", 1), settings, options, _ASKER).user == "line"
    target = make_target(Asked("h"), settings, options, _ASKER)
    assert (target.user, target.port, target.identities) == ("flag", 2, ("/home/me/mine",))
    assert make_target(Asked("h"), SshSettings(), options, _ASKER).port == 3


@pytest.mark.parametrize(
    "match, holds",
    [
        ("all", True),
        ("host h1.example", True),
        ("host h1", False),
        ("originalhost h1,h2 user me", True),
        ("!user me", False),
        ("localuser you", False),
        ('exec "test %h = h1.example"', True),
        ('exec "test %h = other"', False),
        ("originalhost other exec nonsense", False),
        ("final", False),
    ],
)
def test_match(match: str, holds: bool) -> None:
    assert (_target(f"Host h1\n HostName h1.example\nMatch {match}\n Port 7").port == 7) is holds


def test_an_include_counts_where_its_block_does() -> None:
    inner = "Host *\n Port 7\n"
    assert _target("Host h1\n Include a\n User x", a=inner).port == 7
    assert _target("Host h2\n Include a\nHost *\n User x", a=inner).port == 22
    assert _target("Include a\nPort 8", a="Host h2\n User y").port == 8
    with pytest.raises(InputError, match="nested"):
        _target("Include a", a="Include a")


@pytest.mark.parametrize("text", ["RevokedHostKeys /x", "Port abc", "Match tagged x\n Port 1", "Port 70000"])
def test_what_cannot_be_honoured_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        _target(text)


@pytest.mark.parametrize(
    "flag, config, accepts",
    [
        ("", "accept-new", True),
        ("", "no", True),
        ("", "ask", False),
        ("", "", False),
        ("strict", "no", False),
        ("accept-new", "yes", True),
    ],
)
def test_host_key_policy(flag: str, config: str, accepts: bool) -> None:
    text = f"StrictHostKeyChecking {config}" if config else ""
    assert _target(text, settings=SshSettings(host_key_policy=flag)).accept_new is accepts


def test_jumps() -> None:
    assert _target("ProxyJump a,me@b:22\nProxyCommand x").proxy_jump == ("a", "me@b:22")
    assert _target("ProxyJump none").proxy_jump == ()
    assert parse_jump("u@v@host:7") == Asked("host", "u@v", 7)
    assert parse_jump("ssh://[fe80::1]:7") == Asked("fe80::1", None, 7)
    assert parse_jump("fe80::1") == Asked("fe80::1")
    with pytest.raises(InputError):
        parse_jump("host:x")


def test_patterns_and_algorithm_lists() -> None:
    assert match_patterns("Node1", ["node?"]) and not match_patterns("n[1]", ["n[1"])
    assert not match_patterns("a", ["*", "!a"]) and not match_patterns("a", ["!b"])
    have = ("aes128-ctr", "aes256-ctr", "3des-cbc")
    assert restrict(have, "aes256-ctr,unknown,aes*") == ("aes256-ctr", "aes128-ctr")
    assert restrict(have, "-3des*") == have[:2]
    assert restrict(have, "^3des-cbc") == ("3des-cbc", "aes128-ctr", "aes256-ctr")
    assert restrict(have, "+x") == have


def test_a_named_config_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot read the ssh config"):
        read_target("h", None, None, SshSettings(config=str(tmp_path / "nope")))
    assert read_target("h", None, None, SshSettings(config="none")).port == 22


def test_as_ssh_itself_reads_it(tmp_path: Path) -> None:
    ssh = shutil.which("ssh")
    assert ssh, "these tests need OpenSSH's client"
    (tmp_path / "inner").write_text(
        f"Host *.in\n  Port 31\nMatch user root,{pwd.getpwuid(os.getuid()).pw_name}\n  Port 32\n"
    )
    config = tmp_path / "config"
    config.write_text(
        f"Host a*\n  Include {tmp_path}/inner\n  HostName %h.real\nHost b.in\n  User bob\n  HostKeyAlias Alias\n"
        f"Host c\n  ProxyJump a1,b.in:99\n  IdentityFile {tmp_path}/%r\n"
        "Host *\n  User u\n  IdentityFile ~/k\n  Port 33\n"
    )
    settings = SshSettings(config=str(config))
    for name in ("a1", "a.in", "b.in", "c", "d"):
        said = subprocess.run([ssh, "-G", "-F", str(config), name], capture_output=True, text=True, check=True).stdout
        want: dict[str, list[str]] = {}
        for line in said.splitlines():
            key, _, value = line.partition(" ")
            want.setdefault(key, []).append(value)
        mine = read_target(name, None, None, settings)
        assert [mine.hostname, str(mine.port), mine.user] == [want[k][0] for k in ("hostname", "port", "user")], name
        assert list(mine.identities) == [os.path.expanduser(p).replace("%r", mine.user) for p in want["identityfile"]]
        assert ",".join(mine.proxy_jump) == want.get("proxyjump", [""])[0]
    hops = read_hops("c", None, None, settings)[:-1]
    assert [(hop.name, hop.hostname, hop.port) for hop in hops] == [("a1", "a1.real", 32), ("b.in", "b.in", 99)]
    assert hops[1].key_name == "Alias"
