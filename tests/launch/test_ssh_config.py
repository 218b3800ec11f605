"""Owns: tests of what an ssh config says about a host.
Must not: connect; what OpenSSH itself makes of a config is test_ssh_oracle.py's.
Called by: pytest."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshrun.errors import InputError
from meshrun.launch import ssh_files
from meshrun.launch.ssh_config import Source, parse_lines, resolve
from meshrun.launch.ssh_files import read_hops, read_target
from meshrun.launch.ssh_jump import Asked, parse_jump
from meshrun.launch.ssh_match import World
from meshrun.launch.ssh_target import Target, make_target
from meshrun.launch.ssh_words import WordsError, match_host, match_patterns, restrict
from meshrun.spec.values import SshSettings

_WORLD = World(
    "me",
    "/home/me",
    1000,
    "desk.office",
    {"SSH_AUTH_SOCK": "/sock", "OTHER": "/other", "LC_ALL": "C", "LANG": "de", "SECRET": "x"},
    run=lambda command: command == "test h1.example = h1.example",
    home_of={"bob": "/home/bob"}.get,
    look_up={"h1.two.": "real.two.", "gate.two.": "gate.two."}.get,
    addresses=lambda: ("10.1.2.3", "fe80::1"),
    version=lambda: "OpenSSH_9.9p1",
)


def _target(text: str, name: str = "h1", settings: SshSettings | None = None, **includes: str) -> Target:
    def include(pattern: str, user: bool) -> list[tuple]:  # type: ignore[type-arg]
        return [parse_lines(includes[pattern], pattern)]

    options = resolve([Source(parse_lines(text, "config"))], name, {}, _WORLD, include, command="the command")
    return make_target(Asked(name), settings or SshSettings(), options, _WORLD)


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
    options = {line.keyword: [line] for line in parse_lines("User config\nPort 3\n", "config")}
    settings = SshSettings(user="flag", port=2, identity="~/mine")
    assert make_target(Asked("h", "line", 1), settings, options, _WORLD).user == "line"
    target = make_target(Asked("h"), settings, options, _WORLD)
    assert (target.user, target.port, target.identities) == ("flag", 2, ("/home/me/mine",))
    assert make_target(Asked("h"), SshSettings(), options, _WORLD).port == 3


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
        ("final", True),
        ("!final", True),  # in the first pass
        ("localnetwork 10.1.0.0/16", True),
        ("localnetwork 10.2.0.0/16,fe80::/10", True),
        ("localnetwork 192.168.0.0/24", False),
        ("version OpenSSH_9.*", True),
        ("version OpenSSH_10*", False),
        ('tagged ""', True),
        ("tagged fast", False),
        ("command the*", True),
        ('command ""', False),
        ("sessiontype exec,shell", True),
        ("sessiontype=subsystem", False),
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


def test_a_tag_is_matched() -> None:
    assert _target("Host h1\n Tag fast\nMatch tagged f*\n Port 7").port == 7


@pytest.mark.parametrize(
    "text, says",
    [
        ("Port abc", "config:1: the ssh config says Port abc: a port is 1 to 65535"),
        ("Host x\n Nonsense 1", "config:2: the ssh config says nonsense 1: OpenSSH knows no such keyword"),
        ("User 'x", "config:1: the ssh config says User 'x: a quote is not closed"),
        ("Match nonsense x", "Match nonsense is not known"),
        ("HostName %n", "%n is no token here"),
        ("IdentityFile %z", "config:1: the ssh config says IdentityFile %z: %z is no token here"),
        ("IdentityFile ${NOPE}/x", "the environment variable NOPE is not set"),
        ("IdentityFile ~nobody-here/x", "there is no user nobody-here here"),
        ("ProxyCommand nc %u", "%u is no token here"),
        ("KnownHostsCommand /bin/x", "config:1: the ssh config sets KnownHostsCommand, which meshrun cannot honour"),
        ("CheckHostIP yes", "sets CheckHostIP"),
        ("ProxyCommand x\nProxyUseFdpass yes", "config:2: the ssh config sets ProxyUseFdpass"),
        ("Match localnetwork 10.1.2.3/8\n Port 1", "Match localnetwork"),
        ("Host h1\n RefuseConnection 'use the other one'", "refuses this host"),
        ("Include ~/a\nPort 0", "a port is 1 to 65535"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name_and_place(text: str, says: str) -> None:
    with pytest.raises(InputError) as caught:
        _target(text, **{"~/a": "Port 1"})
    assert says in str(caught.value)


def test_all_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(InputError) as caught:
        _target("Port x\nNonsense y\nUser a b")
    assert [problem.place.line for problem in caught.value.problems if problem.place] == [1, 2, 3]


@pytest.mark.parametrize("text", ["KnownHostsCommand none", "CheckHostIP no", "ProxyUseFdpass yes", "Tunnel no"])
def test_what_asks_for_nothing_is_fine(text: str) -> None:
    assert _target(text).notes == ()


def test_what_is_ignored_is_noted_with_its_place() -> None:
    target = _target("Host *\n ForwardAgent yes\n RemoteCommand tmux\n LocalForward 1 h:2\n ControlMaster auto")
    assert target.notes == (
        "config:2: ForwardAgent is ignored: no agent is forwarded to the nodes",
        "config:3: RemoteCommand is ignored: meshrun runs its own command",
        "config:4: LocalForward is ignored: no port is forwarded",
    )


def test_tokens() -> None:
    target = _target("HostName %h.example\nPort 7\nUser u-%L-%n\nIdentityFile ~/%d_%h_%i_%k_%l_%L_%n_%p_%r_%u_%j_%%\n")
    assert target.user == "u-desk-h1"
    assert target.identities == ("/home/me//home/me_h1.example_1000_h1_desk.office_desk_h1_7_u-desk-h1_me__%",)
    assert _target("UserKnownHostsFile ~bob/k ${OTHER}/k").known_hosts[:2] == ("/home/bob/k", "/other/k")


@pytest.mark.parametrize(
    "text, agent",
    [
        ("", "/sock"),
        ("IdentityAgent SSH_AUTH_SOCK", "/sock"),
        ("IdentityAgent $OTHER", "/other"),
        ("IdentityAgent $NOPE", None),
        ("IdentityAgent none", None),
        ("IdentityAgent ~/a.%r", "/home/me/a.me"),
        ("IdentityAgent ${OTHER}/a", "/other/a"),
    ],
)
def test_the_agent(text: str, agent: str | None) -> None:
    assert _target(text).agent == agent


def test_keys_that_may_not_be_used() -> None:
    assert not _target("PubkeyAuthentication unbound\nPreferredAuthentications keyboard-interactive,publickey").no_keys
    assert "config:1 (PubkeyAuthentication no)" in _target("PubkeyAuthentication no").no_keys
    assert "--ssh-client openssh" in _target("PreferredAuthentications gssapi-with-mic,password").no_keys
    none = _target("IdentityFile none")
    assert none.identities == none.default_keys == ()


def test_the_environment_that_is_sent() -> None:
    text = 'SendEnv LANG LC_* SECRET\nSendEnv -SEC*\nSetEnv LANG=en "A=b %n" A=c'
    assert dict(_target(text).environment) == {"LANG": "en", "LC_ALL": "C", "A": "b h1"}


def test_the_connection() -> None:
    text = "AddressFamily inet\nBindAddress 1.2.3.4\nBindInterface eth0\nConnectTimeout 1m\nTCPKeepAlive no\n"
    target = _target(f"{text}Compression yes")
    assert (target.family, target.bind_address, target.bind_interface) == ("inet", "1.2.3.4", "eth0")
    assert (target.timeout_s, target.keep_alive, target.compress) == (60.0, False, True)
    assert _target("ConnectTimeout none").timeout_s is None


@pytest.mark.parametrize(
    "text, hostname",
    [
        ("CanonicalizeHostname yes\nCanonicalDomains one two", "h1.two"),
        ("CanonicalizeHostname yes\nCanonicalDomains one", "h1"),
        ("CanonicalizeHostname yes\nCanonicalDomains two\nCanonicalizePermittedCNAMEs *.two:real.*", "real.two"),
        ("CanonicalizeHostname yes\nCanonicalDomains two\nCanonicalizePermittedCNAMEs *.two:*.three", "h1.two"),
        ("CanonicalizeHostname yes\nCanonicalDomains two\nHostName a.b.c", "a.b.c"),
        ("CanonicalizeHostname yes\nCanonicalDomains two\nProxyJump gate", "h1"),
        ("CanonicalizeHostname always\nCanonicalDomains two\nProxyJump gate", "h1.two"),
        ("CanonicalDomains two", "h1"),
    ],
)
def test_canonical_names(text: str, hostname: str) -> None:
    assert _target(text).hostname == hostname
    assert _target(f"{text}\nHost h1.two\n Port 7").port == (7 if hostname == "h1.two" else 22)


def test_a_name_in_no_canonical_domain() -> None:
    with pytest.raises(InputError, match="no canonical domain has a host"):
        _target("CanonicalizeHostname yes\nCanonicalDomains one\nCanonicalizeFallbackLocal no")


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
    assert _target("ProxyJump a,me@b:22 # far\nProxyCommand x").proxy_jump == ("a", "me@b:22")
    assert _target("ProxyCommand x\nProxyJump a").proxy_jump == ()
    assert _target("ProxyCommand none\nProxyJump a").proxy_jump == ()
    assert _target("ProxyJump gate-%h").proxy_jump == ("gate-h1",)
    assert _target("ProxyJump none").proxy_jump == ()
    assert parse_jump("u@v@host:7") == Asked("host", "u@v", 7)
    assert parse_jump("ssh://[fe80::1]:7") == Asked("fe80::1", None, 7)
    assert parse_jump("fe80::1") == Asked("fe80::1")
    with pytest.raises(WordsError):
        parse_jump("host:x")


def test_patterns_and_algorithm_lists() -> None:
    assert match_host("Node1", ["node?"]) and not match_patterns("Node1", ["node?"])
    assert match_patterns("n[1]", ["n[1]"]) and not match_patterns("n1", ["n[1]"])
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


def _write(path: Path, text: str) -> SshSettings:
    path.write_text(text)
    return SshSettings(config=str(path))


def test_jump_hosts_are_hosts_of_the_config(tmp_path: Path) -> None:
    settings = _write(
        tmp_path / "config",
        "Host c\n  ProxyJump a1,bob@b.in:99\n"
        "Host a*\n  HostName %h.real\n  Port 31\n  ProxyCommand nc %h %p\n"
        "Host b.in\n  HostKeyAlias Alias\n  ProxyJump elsewhere\n  User wrong\n"
        "Host d\n  ProxyJump b.in\nHost elsewhere\n  ProxyJump none\nHost *\n  User u\n",
    )
    hops = read_hops("c", "me", 7, settings)
    assert [(hop.name, hop.hostname, hop.user, hop.port) for hop in hops] == [
        ("a1", "a1.real", "u", 31),
        ("b.in", "b.in", "bob", 99),  # its own ProxyJump does not count: the chain says how to get there
        ("c", "c", "me", 7),
    ]
    assert hops[0].proxy_command == "nc a1.real 31" and hops[1].key_name == "alias"
    assert [hop.name for hop in read_hops("d", None, None, settings)] == ["elsewhere", "b.in", "d"]


def test_jump_hosts_in_a_circle(tmp_path: Path) -> None:
    settings = _write(tmp_path / "config", "Host a\n ProxyJump b\nHost b\n ProxyJump a\n")
    with pytest.raises(InputError, match="in a circle \\(a - b - a\\)"):
        read_hops("a", None, None, settings)


def test_includes_of_the_user_and_of_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, system = tmp_path / "home", tmp_path / "etc"
    (home / ".ssh" / "d").mkdir(parents=True)
    system.mkdir()
    (home / ".ssh/d/1").write_text("Host mine\n Port 1\n")
    (home / ".ssh/d/2").write_text("Host mine\n User two\n")
    (home / ".ssh/config").write_text("Include d/* nope\nInclude ~/.ssh/d/2\n")
    (system / "more").write_text("Port 9\n")
    (system / "ssh_config").write_text("Include more\n")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setattr(ssh_files, "_SYSTEM_CONFIG", str(system / "ssh_config"))
    ssh_files.make_world.cache_clear()
    try:
        target = read_target("mine", None, None, SshSettings())
        assert (target.port, target.user) == (1, "two")
        assert read_target("other", None, None, SshSettings()).port == 9
        (home / ".ssh/d/1").chmod(0o666)
        with pytest.raises(InputError, match="others may write to the ssh config"):
            read_target("mine", None, None, SshSettings())
        (system / "ssh_config").write_text("Include ~/x\n")
        (home / ".ssh/config").write_text("")
        with pytest.raises(InputError, match="a system-wide file cannot include from a home"):
            read_target("mine", None, None, SshSettings())
    finally:
        ssh_files.make_world.cache_clear()
