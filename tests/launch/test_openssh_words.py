"""Owns: tests of the system ssh's arguments and of what its messages mean, as tables.
Must not: start anything.
Called by: pytest."""

from __future__ import annotations

import shlex
from dataclasses import replace

import pytest

from meshrun.errors import CauseKind, InputError
from meshrun.launch.boot import UNKNOWN_EXIT, UNKNOWN_SIGNAL
from meshrun.launch.openssh_args import Hop, find_jumps, make_arguments, make_query, read_answers
from meshrun.launch.openssh_causes import explain_failure, explain_query, explain_unrun, find_exit
from meshrun.launch.openssh_ears import Ears
from meshrun.launch.ssh_jump import Asked
from meshrun.spec.values import SshSettings

ANSWERS = {"hostname": "10.0.0.7", "port": "22", "user": "eve", "userknownhostsfile": "/h/known /h/known2"}


def hop(name: str = "gpu7", settings: SshSettings | None = None, **answers: str) -> Hop:
    return Hop(Asked(name), settings or SshSettings(), ANSWERS | answers)


def options(argv: tuple[str, ...]) -> dict[str, str]:
    pairs = [argv[at + 1].split("=", 1) for at, word in enumerate(argv) if word == "-o"]
    assert len({name for name, _ in pairs}) == len(pairs), "of an option given twice ssh takes the first"
    return dict(pairs)


# ---- arguments ----

QUERIES = [
    (Asked("n"), SshSettings(), "ssh -T -G -- n"),
    (Asked("n"), SshSettings(config="none"), "ssh -F none -T -G -- n"),
    (Asked("n"), SshSettings("c", "u", 5, "id"), "ssh -F c -l u -p 5 -i id -T -G -- n"),
    (Asked("n", "v", 6), SshSettings("c", "u", 5, "id"), "ssh -F c -l v -p 6 -i id -T -G -- n"),
    (Asked("-oProxyCommand=x"), SshSettings(), "ssh -T -G -- -oProxyCommand=x"),
    (Asked("n", "a b"), SshSettings(), "ssh -l 'a b' -T -G -- n"),
]


@pytest.mark.parametrize(("asked", "settings", "text"), QUERIES)
def test_the_line_outranks_the_command_line(asked: Asked, settings: SshSettings, text: str) -> None:
    assert shlex.join(make_query(asked, settings)) == text
    run = make_arguments((Hop(asked, settings, ANSWERS),), 30, "cmd")
    words = text.split(" -T ")[0]
    assert shlex.join(run).startswith(f"{words} -T -o ") and run[-3:] == ("--", asked.name, "cmd")


def test_nothing_asks_clashes_or_outlives() -> None:
    found = options(make_arguments((hop(),), 30, "cmd"))
    wanted = {"BatchMode": "yes", "ClearAllForwardings": "yes", "ControlMaster": "no", "PermitLocalCommand": "no"}
    assert found.items() >= wanted.items()
    assert "ControlPath" not in found, "a connection that the user has opened is theirs to share"
    assert not found.keys() & {"RemoteCommand", "SessionType", "StdinNull"}, "an old ssh does not know these"
    set_there = hop(remotecommand="tmux", sessiontype="none", stdinnull="yes", forkafterauthentication="yes")
    found = options(make_arguments((set_there,), 30, "cmd"))
    wanted = {"RemoteCommand": "none", "SessionType": "default", "StdinNull": "no", "ForkAfterAuthentication": "no"}
    assert found.items() >= wanted.items()


POLICIES = [
    ("", None, "yes"), ("", "ask", "yes"), ("", "true", "yes"), ("", "accept-new", "accept-new"),
    ("", "false", "accept-new"), ("", "off", "accept-new"), ("strict", "accept-new", "yes"), ("strict", "false", "yes"),
    ("accept-new", "true", "accept-new"), ("accept-new", "ask", "accept-new"),
]  # fmt: skip


@pytest.mark.parametrize(("asked", "config", "wanted"), POLICIES)
def test_a_changed_key_never_passes(asked: str, config: str | None, wanted: str) -> None:
    one = hop(settings=SshSettings(host_key_policy=asked), **({"stricthostkeychecking": config} if config else {}))
    assert options(make_arguments((one,), 30, "cmd"))["StrictHostKeyChecking"] == wanted


@pytest.mark.parametrize(
    ("ours", "config", "wanted"), [(30.0, "none", "30"), (0.2, "none", "1"), (30.0, "5", "5"), (2.5, "60", "3")]
)
def test_the_shorter_time_out_holds(ours: float, config: str, wanted: str) -> None:
    assert options(make_arguments((hop(connecttimeout=config),), ours, "cmd"))["ConnectTimeout"] == wanted


def test_a_silent_network_ends_an_ssh_that_nobody_watches() -> None:
    assert options(make_arguments((hop(serveraliveinterval="0"),), 30, "c"))["ServerAliveInterval"] == "15"
    assert "ServerAliveInterval" not in options(make_arguments((hop(serveraliveinterval="60"),), 30, "c"))


def test_every_jump_gets_the_same_options_and_its_own_place() -> None:
    settings = SshSettings(config="/a b/c%d", identity="/k")
    way = tuple(Hop(Asked(name, user, port), settings, ANSWERS) for name, user, port in JUMPS)
    text, depth = options(make_arguments(way, 30, "cmd"))["ProxyCommand"], 0
    for name, user, port in reversed(JUMPS[:-1]):
        filled = text.replace("%%", "\0").replace("%h", "NEXT").replace("%p", "99").replace("\0", "%")
        argv = tuple(shlex.split(filled))
        assert argv[:3] == ("ssh", "-F", "/a b/c%d")
        assert argv[-4:] == ("-W", "[NEXT]:99", "--", name)
        assert ("-l", user) == argv[3:5] if user else "-l" not in argv
        assert ("-p", str(port)) == argv[argv.index("-p") :][:2] if port else "-p" not in argv
        found = options(argv)
        assert (found["BatchMode"], found["ControlMaster"]) == ("yes", "no")
        assert ("cmd" in argv) is False
        text, depth = found.get("ProxyCommand", ""), depth + 1
    assert (text, depth) == ("", 3)


JUMPS = [("a", "u", 5), ("b%eth0", None, None), ("c", None, 7), ("gpu7", None, None)]


def test_answers_and_jumps() -> None:
    answers = read_answers("host x\nHostName 10.0.0.1\nidentityfile a\nidentityfile b\nproxyjump a,u@b:23,[::1]:5\n")
    assert (answers["hostname"], answers["identityfile"]) == ("10.0.0.1", "a")
    assert find_jumps(answers) == (Asked("a"), Asked("b", "u", 23), Asked("::1", None, 5))
    assert find_jumps({}) == find_jumps({"proxyjump": "none"}) == ()
    with pytest.raises(InputError):
        find_jumps({"proxyjump": "u@:x"})


def test_hints_show_a_command_that_does_the_same() -> None:
    assert hop().login == "ssh gpu7"
    assert replace(hop(), settings=SshSettings("/c d", "u", 5)).login == "ssh -F '/c d' -p 5 u@gpu7"
    assert Hop(Asked("n", "v", 6), SshSettings("c", "u", 5), ANSWERS).login == "ssh -F c -p 6 v@n"


# ---- causes ----

REACHED = "debug1: Remote protocol version 2.0, remote software version X"
CLOSED = "kex_exchange_identification: Connection closed by remote host\r\nConnection closed by UNKNOWN port 65535"
KEY_SHOWN = "debug1: Server host key: ssh-ed25519 SHA256:abc"
CHANGED = f"""{REACHED}
@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @
The fingerprint for the ED25519 key sent by the remote host is
SHA256:new.
Offending ED25519 key in /h/known:3
Host key for [10.0.0.7]:2222 has changed and you have requested strict checking.
Host key verification failed."""
TRIED = f"""{REACHED}
debug1: Offering public key: /k/one ED25519 SHA256:1 explicit
debug1: Offering public key: mine@home RSA SHA256:2 agent
debug1: Trying private key: /k/nope
no such identity: /k/nope: No such file or directory
debug1: Offering public key: /k/locked ED25519 SHA256:3 explicit
debug1: Server accepts key: /k/locked ED25519 SHA256:3 explicit
debug1: Offering public key: /k/wide ED25519 SHA256:4 explicit
debug1: Server accepts key: /k/wide ED25519 SHA256:4 explicit
Permissions 0644 for '/k/wide' are too open.
eve@10.0.0.7: Permission denied (publickey,password)."""

# what ssh said → kind, words that the message has
DIRECT = [
    ("ssh: Could not resolve hostname gpu7: Name or service not known", CauseKind.NAME_UNKNOWN, "gpu7 is not known"),
    ("ssh: connect to host 10.0.0.7 port 22: Connection refused", CauseKind.REFUSED, "10.0.0.7 port 22 refused"),
    ("ssh: connect to host 10.0.0.7 port 22: Connection timed out", CauseKind.TIMED_OUT, "did not answer"),
    ("ssh: connect to host ::1 port 22: Operation timed out", CauseKind.TIMED_OUT, "::1 port 22"),
    ("ssh: connect to host 10.0.0.7 port 22: No route to host", CauseKind.NO_ROUTE, "port 22: No route to host"),
    ("ssh: connect to host 10.0.0.7 port 22: Network is unreachable", CauseKind.NO_ROUTE, "unreachable"),
    ("Connection timed out during banner exchange\r\nConnection to 10.0.0.7 port 22 timed out", CauseKind.TIMED_OUT,
     "in time"),
    ("kex_exchange_identification: read: Connection reset by peer", CauseKind.DROPPED, "closed the connection"),
    ("ssh_exchange_identification: Connection closed by remote host", CauseKind.DROPPED, "before login"),
    ("banner exchange: Connection to UNKNOWN port 65535: Broken pipe", CauseKind.DROPPED, "before login"),
    ("banner exchange: Connection to 10.0.0.7 port 22: invalid format", CauseKind.DROPPED, "10.0.0.7 port 22"),
    (f"{REACHED}\nConnection closed by 10.0.0.7 port 22", CauseKind.DROPPED, "10.0.0.7 port 22"),
    (f"{KEY_SHOWN}\nNo ED25519 host key is known for 10.0.0.7 and you have requested strict checking.\n"
     "Host key verification failed.", CauseKind.HOST_KEY_UNKNOWN, "(ED25519 SHA256:abc) is not in /h/known or /h/kn"),
    ("Host key verification failed.", CauseKind.HOST_KEY_UNKNOWN, "the host key of 10.0.0.7 is not in /h/known"),
    (CHANGED, CauseKind.HOST_KEY_CHANGED, "it shows SHA256:new, another one is known at /h/known:3"),
    ("ED25519 host key for 10.0.0.7 was revoked and you have requested strict checking.", CauseKind.HOST_KEY_REVOKED,
     "10.0.0.7 is revoked in /h/known"),
    (TRIED, CauseKind.AUTH, "it takes publickey, password; tried in order: /k/one, agent key mine@home, /k/nope "
     "(no such file), /k/locked (it needs a passphrase and is not in the agent, or cannot be read), /k/wide (other"),
    ("Received disconnect from 10.0.0.7 port 22:2: Too many authentication failures\nDisconnected from 10.0.0.7",
     CauseKind.AUTH, "MaxAuthTries"),
    ("eve@10.0.0.7: Permission denied (gssapi-with-mic).", CauseKind.AUTH, "let eve in: it takes gssapi-with-mic"),
    ("Unable to negotiate with 10.0.0.7 port 22: no matching cipher found. Their offer: x", CauseKind.CONFIG,
     "no matching cipher found"),
    ("Welcome!\nConfirm user presence for key\nsomething quite new", CauseKind.AGENT, "\n  something quite new"),
    ("", CauseKind.AGENT, "ssh did not get to gpu7 (exit code 255)"),
]  # fmt: skip


def heard(text: str) -> Ears:
    ears = Ears()
    ears.hear(text.encode() + b"\n")
    return ears


@pytest.mark.parametrize(("said", "kind", "words"), DIRECT)
def test_what_ssh_says(said: str, kind: CauseKind, words: str) -> None:
    cause = explain_failure((hop(),), heard("debug1: Connecting to 10.0.0.7\n" + said), 255)
    assert (cause.kind, words in cause.message) == (kind, True), cause
    assert "jump host" not in cause.message and "{" not in cause.message + cause.hint


# The same through two jumps: until the last sshd has answered, it is a jump's failure.
JUMPED = [
    ("ssh: connect to host 10.0.0.2 port 22: Connection refused", CauseKind.REFUSED, "jump host j2: 10.0.0.2"),
    ("ssh: Could not resolve hostname j1: Name or service not known", CauseKind.NAME_UNKNOWN, "jump host j1: "),
    ("No ED25519 host key is known for 10.0.0.2 and you have requested strict checking.", CauseKind.HOST_KEY_UNKNOWN,
     "jump host j2: the host key of 10.0.0.2 (ED25519) is not in"),
    ("eve@10.0.0.1: Permission denied (publickey).", CauseKind.AUTH, "jump host j1: 10.0.0.1 does not let eve in"),
    ("channel 0: open failed: connect failed: Connection refused\r\nstdio forwarding failed", CauseKind.REFUSED,
     "j1 or j2 does not forward to 10.0.0.7 port 22: Connection refused"),
    ("channel 0: open failed: administratively prohibited: open failed", CauseKind.JUMP, "does not forward"),
    ("channel 0: open failed: connect failed: Temporary failure in name resolution", CauseKind.NAME_UNKNOWN, "resol"),
    ("channel 0: open failed: connect failed: No route to host", CauseKind.NO_ROUTE, "No route"),
    ("Connection timed out during banner exchange\r\nConnection to 10.0.0.2 port 22 timed out", CauseKind.TIMED_OUT,
     "jump host j2: 10.0.0.2 port 22 did not answer"),
    ("Connection timed out during banner exchange\r\nConnection to UNKNOWN port 65535 timed out", CauseKind.TIMED_OUT,
     "10.0.0.7 port 22 did not answer"),
    ("Connection closed by 10.0.0.2 port 22", CauseKind.DROPPED, "jump host j2: 10.0.0.2 port 22 closed the conn"),
    ("", CauseKind.DROPPED, "10.0.0.7 port 22 (through j1, j2) closed the connection before login"),
]  # fmt: skip


PROXIED = [
    ("proxy broke\nkex_exchange_identification: Connection closed by remote host\nConnection closed by UNKNOWN port 1",
     "the ProxyCommand of gpu7 makes no connection; its last lines: proxy broke", "try it by hand"),
    ("Connection closed by UNKNOWN port 65535", "the ProxyCommand of gpu7 makes no connection", "try it by hand"),
    ("debug1: Remote protocol version 2.0\nConnection closed by UNKNOWN port 65535", "before login", "MaxStartups"),
]  # fmt: skip


@pytest.mark.parametrize(("said", "words", "hint"), PROXIED)
def test_what_ssh_says_of_a_proxy_command(said: str, words: str, hint: str) -> None:
    cause = explain_failure((hop(proxycommand="sh -c 'exit 3'"),), heard(said), 255)
    assert cause.kind is CauseKind.DROPPED and hint in cause.hint
    assert words in cause.message and "{" not in cause.message + cause.hint


@pytest.mark.parametrize(("said", "kind", "words"), JUMPED)
def test_what_ssh_says_of_a_jump(said: str, kind: CauseKind, words: str) -> None:
    way = (hop("j1", hostname="10.0.0.1"), hop("j2", hostname="10.0.0.2"), hop())
    cause = explain_failure(way, heard(f"{said}\r\n{CLOSED}"), 255)
    assert (cause.kind, words in cause.message) == (kind, True), cause


def test_a_failure_behind_the_jumps_is_the_hosts_own() -> None:
    way = (hop("j1", hostname="10.0.0.1"), hop())
    cause = explain_failure(way, heard(TRIED), 255)
    assert cause.kind is CauseKind.AUTH and cause.message.startswith("10.0.0.7 does not let eve in")


CONFIGS = [
    ("/c: line 3: Bad configuration option: foo\r\n/c: terminating, 1 bad configuration options", "/c:3: Bad conf"),
    ("/c line 2: Bad port 'abc'.\r\n/c: terminating, 1 bad configuration options", "/c:2: Bad port"),
    ("Can't open user config file /c: No such file or directory", "cannot read the ssh config /c: No such"),
    ("Bad owner or permissions on /c", "does not trust /c"),
]


@pytest.mark.parametrize(("said", "words"), CONFIGS)
def test_a_config_that_ssh_refuses(said: str, words: str) -> None:
    cause = explain_query(hop(), heard(said), 255)
    assert cause.kind is CauseKind.CONFIG and words in cause.message


def test_a_shell_that_complains_is_no_config() -> None:
    cause = explain_failure((hop(proxycommand="nope"),), heard(f"/bin/bash: line 1: nope: not found\n{CLOSED}"), 127)
    assert cause.kind is CauseKind.DROPPED


# ---- how it ended ----

BROKEN = "Connection to 10.0.0.7 closed by remote host.\r\ndebug1: Exit status -1"
ENDS = [
    ("debug1: Exit status 3", 3, 3),
    ("debug1: Exit status 255", 255, 255),
    ("debug1: Exit status -1", 255, UNKNOWN_SIGNAL),
    (BROKEN, 255, None),
    ("client_loop: send disconnect: Broken pipe", 255, None),
    ("Timeout, server 10.0.0.7 not responding.", 255, None),
    ("client_loop: a program's own words", 7, 7),
    ("", 4, 4),
    ("", -9, None),
    ("debug1: client_input_channel_req: channel 0 rtype exit-status reply 0\nKilled by signal 15.", 255, UNKNOWN_EXIT),
]


@pytest.mark.parametrize(("said", "code", "wanted"), ENDS)
def test_how_a_line_ended(said: str, code: int, wanted: int | None) -> None:
    assert find_exit(heard(said), code) == wanted


def test_let_in_but_no_command_run() -> None:
    cause = explain_unrun((hop(),), heard("exec request failed on channel 0"))
    assert cause and cause.kind is CauseKind.AGENT and "ForceCommand" in cause.hint
    assert explain_unrun((hop(),), heard("bash: oops")) is None


def test_ssh_talking_about_itself_is_kept_from_people() -> None:
    ears = Ears()
    data = b'Banner\r\ndebug1: Connecting\r\nAuthenticated to x ([1]:22) using "publickey".\r\nfrom rc\nhalf'
    said = b"".join(ears.hear(data[at : at + 1]) for at in range(len(data)))
    assert (said, ears.end(), ears.logged_in) == (b"Banner\r\nfrom rc\n", b"half", True)
    ears.hear(b"x" * 200_000)
    assert len(ears.end()) < 100_000, "a line without end is not kept"
    ears.hear(b"Warning: Permanently added '[h]:22' (ED25519) to the list of known hosts.\r\n")
    assert ears.added == [("[h]:22", "ED25519")]
