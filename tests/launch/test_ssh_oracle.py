"""Owns: tests that an ssh config means to us what it means to the installed OpenSSH: a table, and made-up ones.
Must not: connect.
Called by: pytest."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.launch.ssh_oracle import ME, ask_ours, ask_ssh, compare

# Each is asked for all these names.
NAMES = ("a", "a1", "A1", "b.in", "host.example.org", "10.0.0.1", "::1")

# `|` ends a line.
CONFIGS = {
    "nothing": "",
    "patterns": "Host a? !a1|Port 1|Host *.in b*|Port 2|Host !a *|Port 3|",
    "negation alone": "Host !a|Port 1|Host *|Port 2",
    "case": "Host A1|Port 1|Host a1|Port 2|Host HOST.*|Port 3|",
    "brackets are no pattern": "Host [ab]*|Port 1|Host a[1]|Port 2|",
    "equals": "Port=1|User = u|HostName=%h.x|Host = q|Port==3",
    "equals twice": "User ==u",
    "quotes": 'User "a b"|IdentityFile "/k/with blank"|IdentityFile /k/\\ blank|HostKeyAlias \'x\'y"z"|',
    "a quoted keyword": '"Port" 7|Us"er" me|',
    "a quoted keyword with equals": '"Port"=7|',
    "a keyword whose quote is open": '"Port 7|Po"rt 8|User u',
    "an open quote": 'User "u',
    "an open quote in a block that does not hold": "Host zzz|User 'u|",
    "escapes": 'User a\\"b|HostKeyAlias x\\\\y|IdentityFile /k\\n|IdentityFile "/q\\ r"|',
    "comments": "#Port 1| # Port 2|User u # me|IdentityFile /k#1|HostKeyAlias x#y #z|Port 3#4|",
    "comments in commands": "ProxyCommand nc %h # port|",
    "blanks": "\t User\t u  \t|\f||Port 7 \f|\r|",
    "crlf": "Host *\r| User u\r| Port 7\r|",
    "no newline at the end": "Host *|Port 9",
    "leading equals": "= User u|",
    "no argument": "User|",
    "an empty argument": 'User ""|',
    "too many arguments": "User a b|",
    "an unknown keyword": "Host zz|Nonsense yes|",
    "an unknown keyword that is ignored": "IgnoreUnknown Non*,UseKeychain|Nonsense yes|UseKeychain yes|Port 7|",
    "ignored too late": "Nonsense yes|IgnoreUnknown Non*|",
    "ignored in a block": "Host a1|IgnoreUnknown Non*|Host *|Nonsense x|",
    "a bad port": "Port 70000|",
    "port zero": "Port 0|",
    "a bad flag": "IdentitiesOnly maybe|",
    "a bad flag elsewhere": "Host zz|TCPKeepAlive 1|",
    "a bad time": "ConnectTimeout 1x|",
    "times": "ConnectTimeout 1m30|ServerAliveInterval 2H|ForwardX11Timeout 1w2d|",
    "true and false": "IdentitiesOnly true|TCPKeepAlive FALSE|HashKnownHosts Yes|",
    "first wins": "Host a*|User one|Port 1|Host *|User two|Port 2|HostName x|",
    "identities add up": "IdentityFile /a|Host a*|IdentityFile /b|IdentityFile /a|Host *|IdentityFile ~/c%r|",
    "no identity": "IdentityFile none|",
    "certificates": "CertificateFile /c1|CertificateFile ~/c2|",
    "known hosts": 'UserKnownHostsFile ~/k1 "/k 2" /k%h.%p|GlobalKnownHostsFile /g1 /g2|',
    "no known hosts": "UserKnownHostsFile none|",
    "none with others": "UserKnownHostsFile none /x|",
    "environment": "UserKnownHostsFile ${ORACLE}/k|ControlPath ~/${ORACLE}-%n-%p-%r|",
    "an alias": "HostKeyAlias Alias|UserKnownHostsFile /%k|",
    "hostname": "Host a*|HostName %h.Example.ORG|Host b*|HostName 10%%1|",
    "hostname with a token of others": "HostName %n|",
    "an address": "HostName FE80::0001|",
    "match all": "Match all|Port 1|",
    "match original host": "Match originalhost a*,!a1|Port 1|Match originalhost A1|Port 2|",
    "match host after HostName": "Host a1|HostName real.example|Match host real.*|Port 1|Match host a1|Port 2|",
    "match host sees %h": "Host a*|HostName %h.real|Match host *.real|Port 1|",
    "match several": f"Match originalhost a* user {ME.pw_name},x localuser {ME.pw_name}|Port 1|Match !host a*|"
    f"Port 2|",
    "match user set before": "Host a*|User bob|Match user bob|Port 1|Match user BOB|Port 2|Match !user bob|Port 3|",
    "match exec": 'Match exec "test %n = a1"|Port 1|Match !exec "test %h = a"|Port 2|',
    "match exec last": "Match originalhost zz exec \"exit 0\"|Port 1|Match exec false|Port 2|",
    "match with equals": "Match host=a1|Port 1|Match originalhost=b.in,c user=nobody|Port 2|",
    "match final": "Host a*|HostName real.org|Match final host real.org|Port 1|Host real.org|User late|",
    "match final negated": "Match !final|Port 1|Match final|Port 2|User u|",
    "match final makes a second pass": "Host *.real|Port 4|Host a*|HostName %h.real|Match final|User u|",
    "match final in a block of another": "Host zz|Port 1|Match final|IdentityFile /f|Match final all|"
    "IdentityFile /g|",
    "match canonical": "Match canonical|Port 1|Match canonical final|Port 3|",
    "match all with others": "Match host a all|Port 1|Match user x host a all|Port 2|",
    "match all first": "Match all host a|Port 1|",
    "match nothing": "Match|Port 1|",
    "match unknown": "Match nonsense x|Port 1|",
    "match without argument": "Match host|Port 1|",
    "match with a comment": "Match host a1 # yes|Port 1|",
    "canonical and no domains": "CanonicalizeHostname yes|Host a*|HostName A.real|Match canonical|Port 5|"
    "Host a.real|User c|",
    "canonical always final": "CanonicalizeHostname always|Match final|Port 5|Match !canonical|User early|",
    "a jump": "Host a*|ProxyJump j1,u@j2:99|Host b*|ProxyCommand nc %h %p|ProxyJump j|",
    "a jump first": "ProxyJump j|ProxyCommand nc|",
    "no jump": "ProxyJump none|ProxyCommand nc %h|",
    "no command": "ProxyCommand none|ProxyJump j|",
    "a bad jump": "ProxyJump j:x|",
    "agents": "Host a*|IdentityAgent ~/agent-%r|Host b*|IdentityAgent none|Host *|IdentityAgent SSH_AUTH_SOCK|",
    "an agent by variable": "IdentityAgent ${ORACLE}/sock|",
    "set env": 'SetEnv A=1 "B=2 3"|SetEnv C=4|SendEnv LC_*|',
    "lists": "Ciphers aes128-ctr,aes256-ctr|MACs hmac-sha2-256|KexAlgorithms curve25519-sha256|"
    "HostKeyAlgorithms ssh-ed25519|",
    "more": "AddressFamily inet6|BindAddress 127.0.0.9|BindInterface lo|Compression yes|RequiredRSASize 2048|"
    "StrictHostKeyChecking accept-new|NoHostAuthenticationForLocalhost yes|PreferredAuthentications publickey|"
    "PubkeyAuthentication host-bound|RevokedHostKeys /r|CheckHostIP yes|VerifyHostKeyDNS ask|",
    "strictness": "Host a*|StrictHostKeyChecking off|Host b*|StrictHostKeyChecking ask|Host *|"
    "StrictHostKeyChecking yes|",
    "old spellings": "KeepAlive no|DSAAuthentication no|PubkeyAcceptedKeyTypes ssh-ed25519|IdentityFile2 /x|"
    "Protocol 2|Cipher 3des|",
    "harmless": "ForwardX11 yes|EscapeChar none|LogLevel DEBUG|ControlMaster auto|ControlPath none|"
    "RequestTTY force|Tunnel yes|",
}  # fmt: skip


def _differences(config: Path, name: str) -> list[str]:
    answer = ask_ssh(config, name)
    options, refused = ask_ours(config, name)
    if answer.refused or refused:
        said = f"{name}: ssh says {answer.refused or 'nothing against it'!r}, we say {refused or 'nothing'!r}"
        return [] if answer.refused and refused else [said]
    return compare(options, answer, name)


@pytest.mark.parametrize("title", CONFIGS)
def test_a_config_means_what_it_means_to_ssh(tmp_path: Path, title: str) -> None:
    config = tmp_path / "config"
    config.write_bytes(CONFIGS[title].replace("|", "\n").encode())
    assert [text for name in NAMES for text in _differences(config, name)] == []


def test_includes_mean_what_they_mean_to_ssh(tmp_path: Path) -> None:
    parts = {
        "config": f"Host a*\n Include {tmp_path}/part*\n User one\n"
        f"Host *\n Include {tmp_path}/deep/*.conf {tmp_path}/nope\n User two\n",
        "part1": "Port 1\nHost b*\n Port 9\n",
        "part2": "IdentityFile /2\nMatch final\n HostKeyAlias late\n",
        "part10": "IdentityFile /10\nHost zz\n",
        "deep/x.conf": f"Include {tmp_path}/deep/y\nHost b.in\n HostName inner\n",
        "deep/y": "Host b.in\n Port 77\n",
        "deep/.hidden.conf": "Port 99\n",
    }  # fmt: skip
    (tmp_path / "deep").mkdir()
    for path, text in parts.items():
        (tmp_path / path).write_text(text)
    assert [text for name in NAMES for text in _differences(tmp_path / "config", name)] == []


def test_an_error_in_an_include_that_does_not_hold(tmp_path: Path) -> None:
    (tmp_path / "inner").write_text("Nonsense x\n")
    (tmp_path / "config").write_text(f"Host zz\n Include {tmp_path}/inner\n")
    assert _differences(tmp_path / "config", "a") == []
    assert f"{tmp_path}/inner:1" in ask_ours(tmp_path / "config", "a")[1]


def test_what_the_command_line_says_comes_first(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("Match user flag\n Port 7\n IdentityFile /f\nHost *\n User u\n Port 8\n")
    answer = ask_ssh(config, "a", "-l", "flag", "-p", "99")
    assert compare(ask_ours(config, "a", {"user": "flag", "port": "99"})[0], answer, "a") == []


# ---- made up ----

_WORD = st.sampled_from(["a", "a1", "b.in", "*", "a*", "?1", "!a1", "!b*", "*.in", "real.org", "A1", '"a"', "a\\ b"])
_SETTING = st.sampled_from(
    ["Port 1", "Port=2", "User u", 'User "v w"', "HostName real.org", "HostName %h.in", "IdentityFile /k",
     "IdentityFile ~/k%r", "HostKeyAlias Al", "ProxyJump j", "ProxyJump none", "ProxyCommand nc %h",
     "ProxyCommand none", "UserKnownHostsFile /k /l", "StrictHostKeyChecking no", "ConnectTimeout 3", "Compression yes",
     "CanonicalizeHostname yes", "IgnoreUnknown Odd*", "Oddity 1", "TCPKeepAlive no", "# User c", "Port", "User 'x",
     "CertificateFile /c", "IdentityAgent none", "SetEnv A=b"]
)  # fmt: skip
_CRITERION = st.one_of(
    st.sampled_from(["all", "final", "!final", "canonical", f"localuser {ME.pw_name}", "user u", "!user u,v",
                     "exec true"]),
    st.builds(lambda how, words: f"{how} {','.join(words)}", st.sampled_from(["host", "originalhost", "!host"]),
              st.lists(st.sampled_from(["a*", "!a1", "*.in", "real.org", "A1"]), min_size=1, max_size=2)),
)  # fmt: skip
_BLOCK = st.one_of(
    st.builds(lambda words: f"Host {' '.join(words)}", st.lists(_WORD, min_size=1, max_size=3)),
    st.builds(lambda criteria: f"Match {' '.join(criteria)}", st.lists(_CRITERION, min_size=1, max_size=3)),
)
_LINES = st.lists(st.one_of(_SETTING, _SETTING, _BLOCK), max_size=9)


@given(lines=_LINES, name=st.sampled_from(NAMES))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_made_up_configs(tmp_path: Path, lines: list[str], name: str) -> None:
    config = tmp_path / "config"
    config.write_text("\n".join(lines))
    assert _differences(config, name) == []
