"""Owns: what the hostfile line, the command line and the ssh config together say about one host.
Must not: read files.
Called by: launch.ssh_files."""

from __future__ import annotations

import shlex

from meshrun.dataclass import dataclass
from meshrun.errors import InputError, Problem
from meshrun.launch.ssh_config import Asker, Target, expand
from meshrun.spec.values import SshSettings

_DEFAULT_KEYS = ("~/.ssh/id_rsa", "~/.ssh/id_ecdsa", "~/.ssh/id_ed25519")
_USER_FILES = "~/.ssh/known_hosts ~/.ssh/known_hosts2"
_GLOBAL_FILES = "/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2"
_ALGORITHMS = ("ciphers", "macs", "kexalgorithms", "hostkeyalgorithms")


@dataclass(frozen=True, slots=True)
class Asked:
    """A host as asked for: the name, and the user and port if the hostfile line or the jump said them."""

    name: str
    user: str | None = None
    port: int | None = None


def make_target(asked: Asked, settings: SshSettings, options: dict[str, list[str]], asker: Asker) -> Target:
    """Precedence: host line > command line > ssh config (DESIGN §4). Raises InputError."""

    def words(key: str, default: str = "") -> list[str]:
        return shlex.split(options[key][0], comments=True) if key in options else shlex.split(default)

    def first(key: str, default: str = "") -> str:
        return " ".join(words(key)) or default

    def files(key: str, default: str) -> tuple[str, ...]:
        return tuple(expand(word, tokens, asker.home) for word in words(key, default))

    port = _parse_port(asked, settings, first("port"))
    user = asked.user or settings.user or first("user") or asker.local_user
    tokens = {"n": asked.name, "h": asked.name, "p": str(port), "r": user, "u": asker.local_user, "d": asker.home}
    hostname = tokens["h"] = expand(first("hostname", asked.name), tokens, asker.home)

    configured = [text.strip('"') for text in options.get("identityfile", []) if text.lower() != "none"]
    wanted = [*([settings.identity] if settings.identity else []), *configured]
    identities = tuple(dict.fromkeys(expand(path, tokens, asker.home) for path in wanted))
    alias = first("hostkeyalias")
    name = hostname.lower()
    jump, proxy = first("proxyjump"), options.get("proxycommand", [""])[0]
    return Target(
        name=asked.name,
        hostname=hostname,
        port=port,
        user=user,
        user_said=bool(asked.user or settings.user or first("user")),
        port_said=bool(asked.port or settings.port or first("port")),
        identities=identities,
        identities_only=first("identitiesonly").lower() == "yes",
        default_keys=() if identities else tuple(expand(path, {}, asker.home) for path in _DEFAULT_KEYS),
        use_agent=first("identityagent").lower() != "none",
        key_name=alias or (name if port == 22 else f"[{name}]:{port}"),
        known_hosts=files("userknownhostsfile", _USER_FILES) + files("globalknownhostsfile", _GLOBAL_FILES),
        accept_new=_accepts_new(settings, first("stricthostkeychecking")),
        proxy_jump=() if jump.lower() in ("", "none") else tuple(jump.split(",")),
        proxy_command="" if jump or proxy.lower() in ("", "none") else expand(proxy, tokens, asker.home),
        config=settings.config or "",
        algorithms=tuple((key, first(key)) for key in _ALGORITHMS if key in options),
    )


def _accepts_new(settings: SshSettings, config: str) -> bool:
    # "no" would also let a changed key pass; that never happens here, so it means as much as accept-new.
    if settings.host_key_policy:
        return settings.host_key_policy == "accept-new"
    return config.lower() in ("accept-new", "no", "off")


def _parse_port(asked: Asked, settings: SshSettings, text: str) -> int:
    said = asked.port or settings.port
    if said:
        return said
    if text and not (text.isdecimal() and 0 < int(text) < 65536):
        raise InputError(Problem(f"{asked.name}: the ssh config sets Port {text}", hint="a port is 1 to 65535"))
    return int(text or 22)


def parse_jump(text: str) -> Asked:
    """One hop of ProxyJump: `[user@]host[:port]`, `[v6]:port` or `ssh://...`. Raises InputError."""
    rest = text.strip().removeprefix("ssh://")
    user, at, place = rest.rpartition("@")
    if place.startswith("["):
        name, _, tail = place[1:].partition("]")
        port = tail.removeprefix(":")
    else:
        name, _, port = place.partition(":") if place.count(":") == 1 else (place, "", "")
    if not name or (port and not port.isdecimal()):
        raise InputError(Problem(f"ProxyJump {text} is not [user@]host[:port]"))
    return Asked(name, user if at else None, int(port) if port else None)
