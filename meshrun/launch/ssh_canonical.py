"""Owns: CanonicalizeHostname: which name a short one stands for.
Must not: ask a name server itself (`World.look_up` does).
Called by: launch.ssh_config."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping

from meshrun.launch.ssh_match import World
from meshrun.launch.ssh_words import WordsError, match_host

DEFAULTS = {"canonicalizehostname": "no", "canonicalizemaxdots": "1", "canonicalizefallbacklocal": "yes"}
Words = Mapping[str, tuple[str, ...]]


def canonicalize(hostname: str, words: Words, world: World) -> str | None:
    """The name that stands for `hostname` from now on; None where canonicalisation is off. Raises WordsError."""
    mode = _word(words, "canonicalizehostname")
    if mode in ("no", "false"):
        return None
    direct = all(_word(words, key) in ("", "none") for key in ("proxyjump", "proxycommand"))
    if _is_address(hostname) or not (direct or mode == "always"):
        return hostname
    if hostname.endswith("."):
        candidates = [hostname]
    elif hostname.count(".") > int(_word(words, "canonicalizemaxdots")):
        return hostname
    else:
        domains = words.get("canonicaldomains", ())
        candidates = [f"{hostname}.{domain}." for domain in domains if domain.lower() != "none"]
    return _try(candidates, hostname, words, world)


def _try(candidates: list[str], hostname: str, words: Words, world: World) -> str:
    for full in candidates:
        known_as = world.look_up(full)
        if known_as is not None:
            return _follow(full.removesuffix(".").lower(), known_as.removesuffix(".").lower(), words)
    if _word(words, "canonicalizefallbacklocal") in ("no", "false"):
        raise WordsError(f"no canonical domain has a host {hostname}, and CanonicalizeFallbackLocal is no")
    return hostname


def _follow(name: str, known_as: str, words: Words) -> str:
    """An alias is followed only where CanonicalizePermittedCNAMEs lets it lead."""
    for rule in words.get("canonicalizepermittedcnames", ()):
        source, _, target = rule.partition(":") if ":" in rule else (rule, "", rule)
        if rule.lower() != "none" and match_host(name, source.split(",")) and match_host(known_as, target.split(",")):
            return known_as
    return name


def _word(words: Words, key: str) -> str:
    return words[key][0].lower() if words.get(key) else DEFAULTS.get(key, "")


def normalize(host: str) -> str:
    """Names in lower case, addresses in their usual form."""
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return host.lower()


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return False
    return True
