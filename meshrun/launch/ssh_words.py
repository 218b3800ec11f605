"""Owns: the text of OpenSSH's client configuration: words, quotes, patterns, tokens, times, algorithm lists.
Must not: know a keyword, read files or look anything up (the environment is an argument).
Called by: launch.ssh_keywords, ssh_match, ssh_config, ssh_target, known_hosts, host_key."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

_BLANK = " \t\r\n"
# What stands before the first word, the keyword (which may be quoted, wholly or in part), what separates it, the rest.
_LINE = re.compile(
    r'[ \t\r\n]*=?[ \t\r\n]*([^ \t\r\n"=]*)(?:"([^"]*)"[ \t\r\n]*|([ \t\r\n]*=?[ \t\r\n]*))(.*)', re.DOTALL
)
_TIME = re.compile(r"(?:\d+[smhdw]?)+", re.IGNORECASE | re.ASCII)
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


class WordsError(ValueError):
    """Text that OpenSSH refuses; the message is one of ours."""


def split_line(raw: str) -> tuple[str, str] | None:
    """Keyword (lower case) and the rest of a line; None where there is no setting (blank, a comment)."""
    match = _LINE.match(raw[:1] + raw[1:].rstrip(_BLANK + "\f"))
    if not match:
        return None
    start, quoted, separator, rest = match.groups()
    keyword = (start + (quoted or "")).lower()
    # A quote that is never closed within the keyword: OpenSSH takes no notice of such a line.
    if not keyword or keyword.startswith("#") or (separator == "" and rest.startswith('"')):
        return None
    return keyword, rest


def split_words(text: str) -> tuple[str, ...]:
    """The arguments of a line. A word that starts with # ends them. Raises WordsError for a quote left open."""
    words: list[str] = []
    at = 0
    while True:
        while at < len(text) and text[at] in " \t":
            at += 1
        if at == len(text) or text[at] == "#":
            return tuple(words)
        word, at = _read_word(text, at)
        words.append(word)


def _read_word(text: str, at: int) -> tuple[str, int]:
    taken, quote = [], ""
    while at < len(text):
        char, follows = text[at], text[at + 1 : at + 2]
        if char == "\\" and follows and (follows in "'\"\\" or (not quote and follows == " ")):
            at += 1
            taken.append(follows)
        elif not quote and char in " \t":
            break
        elif not quote and char in "'\"":
            quote = char
        elif char == quote:
            quote = ""
        else:
            taken.append(char)
        at += 1
    if quote:
        raise WordsError("a quote is not closed")
    return "".join(taken), at


@lru_cache(maxsize=1024)
def _compile(pattern: str) -> re.Pattern[str]:
    stars = re.sub(r"\*+", "*", pattern)
    return re.compile("".join({"*": ".*", "?": "."}.get(c) or re.escape(c) for c in stars), re.DOTALL)


def match_pattern(text: str, pattern: str) -> bool:
    """`*` and `?`, nothing else; upper and lower case differ."""
    return _compile(pattern).fullmatch(text) is not None


def match_patterns(text: str, patterns: Sequence[str]) -> bool:
    """One of them matches, and none that starts with `!` does."""
    plain = (pattern for pattern in patterns if not pattern.startswith("!"))
    vetoes = (pattern[1:] for pattern in patterns if pattern.startswith("!"))
    return any(match_pattern(text, p) for p in plain) and not any(match_pattern(text, p) for p in vetoes)


def match_host(name: str, patterns: Sequence[str]) -> bool:
    """As `match_patterns`, for host names: upper and lower case are one."""
    return match_patterns(name.lower(), [pattern.lower() for pattern in patterns])


def expand(text: str, tokens: Mapping[str, str], environ: Mapping[str, str] | None = None) -> str:
    """`%h`-like tokens, `%%`, and with an environment `${NAME}`. Raises WordsError for what OpenSSH refuses."""

    def fill(match: re.Match[str]) -> str:
        token, name = match.group(1), match.group(2)
        if name is not None:
            assert environ is not None
            if name not in environ:
                raise WordsError(f"the environment variable {name} is not set")
            return environ[name]
        if token == "%":
            return "%"
        if token not in tokens:
            raise WordsError(f"%{token} is no token here")
        return tokens[token]

    pattern = r"%(.?)|\$\{([^}]*)\}" if environ is not None else r"%(.?)|(?!)()"
    if environ is not None and re.search(r"\$\{(?:\}|[^}]*$)", text):
        raise WordsError("${ is not closed, or names nothing")
    return re.sub(pattern, fill, text, flags=re.DOTALL)


def parse_time(text: str) -> int | None:
    """`90`, `1m30s`, `1h` in seconds; None if it is no time."""
    if not _TIME.fullmatch(text):
        return None
    return sum(int(n) * _UNITS[unit.lower()] for n, unit in re.findall(r"(\d+)([smhdw]?)", text, re.IGNORECASE))


def restrict(available: Sequence[str], wish: str) -> tuple[str, ...]:
    """An algorithm list of the config (`a,b`, `-a*`, `+a`, `^a`) applied to what we can do, in the config's order."""
    patterns = wish.lstrip("+-^").split(",")
    if wish.startswith("+"):
        return tuple(available)
    if wish.startswith("-"):
        return tuple(name for name in available if not match_patterns(name, patterns))
    chosen = [name for pattern in patterns for name in available if match_patterns(name, [pattern])]
    rest = list(available) if wish.startswith("^") else []
    return tuple(dict.fromkeys([*chosen, *rest]))
