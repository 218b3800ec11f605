"""Owns: the arguments of the system's `ssh`: what to ask it about a host, and how to run it so that it never asks us.
Must not: run anything; have anything in an argument but users, hosts, ports, files and ssh's own options.
Called by: launch.openssh, launch.openssh_causes."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping

from meshrun.dataclass import dataclass
from meshrun.errors import InputError
from meshrun.launch.ssh_jump import Asked, parse_jump, read_chain
from meshrun.launch.ssh_words import WordsError
from meshrun.spec.values import SshSettings

# What would ask, clash between hosts, outlive the run or take the line's own streams, whatever the user's config says.
# ControlPath stays: a connection that the user has opened by hand is used, but none of ours becomes one for others.
_ALWAYS = (
    ("BatchMode", "yes"),
    ("ClearAllForwardings", "yes"),
    ("ControlMaster", "no"),
    ("EscapeChar", "none"),
    ("PermitLocalCommand", "no"),
    ("Tunnel", "no"),
    ("UpdateHostKeys", "no"),
    ("VisualHostKey", "no"),
)
# Only where the config sets them: an older ssh does not know them and would refuse to start.
_IF_SET = (
    ("remotecommand", "RemoteCommand", "none"),
    ("stdinnull", "StdinNull", "no"),
    ("forkafterauthentication", "ForkAfterAuthentication", "no"),
    ("sessiontype", "SessionType", "default"),
)
_ALIVE_S = 15  # three of these without an answer end an ssh whose launcher and network are both gone


@dataclass(frozen=True, slots=True)
class Hop:
    """One server on the way: as asked for, and what `ssh -G` says about it (keyword → first value)."""

    asked: Asked
    settings: SshSettings
    answers: Mapping[str, str]

    @property
    def hostname(self) -> str:
        """What is really dialled."""
        return self.answers.get("hostname", self.asked.name)

    @property
    def port(self) -> int:
        """The port there."""
        return int(self.answers.get("port", "22"))

    @property
    def user(self) -> str:
        """Who logs in."""
        return self.answers.get("user", "")

    @property
    def server(self) -> str:
        """See `ssh_connect.name_server`."""
        return self.answers.get("proxycommand") or f"{self.hostname}:{self.port}"

    @property
    def known_hosts(self) -> tuple[str, ...]:
        """The user's files; the first is where a new key goes."""
        return tuple(self.answers.get("userknownhostsfile", "~/.ssh/known_hosts").split())

    @property
    def all_known_hosts(self) -> tuple[str, ...]:
        """Those, and the system's."""
        return (*self.known_hosts, *self.answers.get("globalknownhostsfile", "").split())

    @property
    def policy(self) -> str:
        """Never weaker than asked, nor than DESIGN §10: "no" would let a changed key pass, so it means accept-new."""
        said = self.settings.host_key_policy or self.answers.get("stricthostkeychecking", "ask").lower()
        return "accept-new" if said in ("accept-new", "no", "off", "false") else "yes"

    @property
    def login(self) -> str:
        """The command that reaches this host as this job does."""
        where = (*_name_config(self.settings), *_name_port(self.asked, self.settings))
        user = self.asked.user or self.settings.user
        return shlex.join(["ssh", *where, f"{user}@{self.asked.name}" if user else self.asked.name])


Way = tuple[Hop, ...]  # nearest first, the host itself last


def make_query(asked: Asked, settings: SshSettings) -> tuple[str, ...]:
    """The command that prints all that `ssh` would do for this host, config, Match and Include applied."""
    return ("ssh", *_choose(asked, settings), "-T", "-G", "--", asked.name)


def read_answers(text: str) -> dict[str, str]:
    """`ssh -G`'s output: keyword → value, the first of several."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        keyword, _, value = line.partition(" ")
        found.setdefault(keyword.lower(), value.strip())
    return found


def find_jumps(answers: Mapping[str, str]) -> tuple[Asked, ...]:
    """ProxyJump's hosts, nearest first. Raises InputError."""
    try:
        return tuple(parse_jump(one) for one in read_chain(answers.get("proxyjump", "none")))
    except WordsError as error:
        raise InputError(str(error)) from None


def make_arguments(way: Way, timeout_s: float, command: str) -> tuple[str, ...]:
    """The `ssh` that runs `command` on the last host of `way`. Host line > command line > ssh config (DESIGN §4).

    Jump hosts are dialled by an `ssh -W` each, as ProxyJump does it, but with the same options as the last one: left to
    itself, ssh gives its jumps none of them, and they would ask for passwords and leave shared connections behind."""
    host = way[-1]
    options = ("LogLevel=DEBUG1", *_options(host, timeout_s), *_restore(host))
    argv = ("ssh", *_choose(host.asked, host.settings), "-T", *_spell(options))
    return (*argv, *_pass_through(way[:-1], timeout_s), "--", host.asked.name, command)


def _pass_through(jumps: Way, timeout_s: float) -> tuple[str, ...]:
    if not jumps:
        return ()
    last = jumps[-1]
    options = ("LogLevel=INFO", *_options(last, timeout_s))
    argv = ["ssh", *_choose(last.asked, last.settings), "-T", *_spell(options), *_pass_through(jumps[:-1], timeout_s)]
    # Whoever runs this fills in %h and %p, once; every other % is meant as it stands (or for an ssh further in).
    words = [*(_literal(word) for word in argv), "-W", "[%h]:%p", "--", _literal(last.asked.name)]
    return ("-o", f"ProxyCommand={shlex.join(words)}")


def _literal(word: str) -> str:
    return word.replace("%", "%%")


def _choose(asked: Asked, settings: SshSettings) -> tuple[str, ...]:
    user = asked.user or settings.user
    login = ("-l", user) if user else ()
    identity = ("-i", settings.identity) if settings.identity else ()
    return (*_name_config(settings), *login, *_name_port(asked, settings), *identity)


def _name_config(settings: SshSettings) -> tuple[str, ...]:
    return ("-F", settings.config) if settings.config else ()


def _name_port(asked: Asked, settings: SshSettings) -> tuple[str, ...]:
    port = asked.port or settings.port
    return ("-p", str(port)) if port else ()


def _spell(options: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(word for option in options for word in ("-o", option))


def _options(hop: Hop, timeout_s: float) -> Iterator[str]:
    yield from (f"{name}={value}" for name, value in _ALWAYS)
    yield f"StrictHostKeyChecking={hop.policy}"
    yield f"ConnectTimeout={_choose_timeout(hop, timeout_s)}"
    if hop.answers.get("serveraliveinterval", "0") == "0":
        yield f"ServerAliveInterval={_ALIVE_S}"


def _restore(host: Hop) -> Iterator[str]:
    """What -W does by itself for a jump: a session that runs our command and reads our stdin."""
    yield from (f"{name}={value}" for keyword, name, value in _IF_SET if keyword in host.answers)


def _choose_timeout(hop: Hop, timeout_s: float) -> int:
    ours = max(1, math.ceil(timeout_s))
    said = hop.answers.get("connecttimeout", "none")
    return min(ours, int(said)) if said.isdecimal() and int(said) else ours
