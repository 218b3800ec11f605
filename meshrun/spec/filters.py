"""Owns: which hosts and devices take part: `--include`, `--exclude`, `--nodes`.
Must not: change the order of hosts.
Called by: spec.job, cli."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from meshrun.dataclass import dataclass, replace
from meshrun.errors import InputError, Place, Problem
from meshrun.spec.hostkeys import parse_devices
from meshrun.spec.hostlist import RangeError, expand, split_outside
from meshrun.spec.hostname import NameProblem
from meshrun.spec.near import find_near
from meshrun.spec.values import Host

# Each unknown name is compared with every host for a hint; beyond this it is the wrong option or the wrong hostfile.
MAX_PROBLEMS = 20


@dataclass(frozen=True, slots=True)
class _Choice:
    """A host by name, and some of its devices (None: all); `offset` in the option's text."""

    name: str
    ids: tuple[str, ...] | None
    offset: int


class _Option:
    """One filter option's text and what is wrong with it."""

    def __init__(self, source: str, text: str) -> None:
        self.source, self.text = source, text
        self.problems: list[Problem] = []

    @property
    def full(self) -> bool:
        return len(self.problems) >= MAX_PROBLEMS

    def refuse(self, offset: int, message: str, hint: str = "") -> None:
        self.problems.append(Problem(message, Place(self.source, 1, offset + 1), self.text, hint))

    def choices(self, hosts: Sequence[Host]) -> list[_Choice]:
        """What the text chooses; names that no host has are refused."""
        known = {host.name.casefold() for host in hosts}
        found: list[_Choice] = []
        for part, offset in split_outside(self.text, "@"):
            for choice in self._read(part, offset):
                if choice.name.casefold() in known:
                    found.append(choice)
                elif not self.full:
                    self.refuse(offset, f"{choice.name} is not among the hosts", _hint(choice.name, hosts))
        return found

    def _read(self, part: str, offset: int) -> Iterator[_Choice]:
        name, colon, ids = _split_ids(part.strip(" "))
        try:
            if not name:
                raise NameProblem("a host name is missing", 0, "as in gpu01@gpu02:0,2")
            if "," in _outside(name):
                raise NameProblem("hosts are joined by '@' here, not by ','", 0, "as in gpu01@gpu02:0,2")
            devices = self._devices(ids, len(name) + 1) if colon else None
            names = (name[1:-1],) if name.startswith("[") and ":" in name else expand(name)
            yield from (_Choice(one, devices, offset) for one in names)
        except (NameProblem, RangeError) as error:
            self.refuse(offset + error.offset, error.message, error.hint)

    @staticmethod
    def _devices(ids: str, at: int) -> tuple[str, ...]:
        try:
            return parse_devices(ids)
        except NameProblem as error:
            raise NameProblem(
                error.message, at + error.offset, "device ids stand behind ':', as in gpu02:0,2"
            ) from None


def filter_hosts(hosts: Sequence[Host], include: str, exclude: str, nodes: int | None) -> tuple[Host, ...]:
    """The hosts that take part, in their order: include first, then exclude, then the first `nodes`.

    The numbers are device ids; a host of which some are chosen gets `devices` and `slots` to match. "" and None: no
    such option. Raises InputError for unknown hosts or ids, or if nothing is left."""
    options = [_Option("--include", include), _Option("--exclude", exclude)]
    left = tuple(hosts)
    for option, act in zip(options, (_include, _exclude), strict=True):
        if option.text:
            choices = option.choices(hosts)
            left = tuple(kept for host in left for kept in act(host, _of(host, choices), option))
    problems = [problem for option in options for problem in option.problems]
    if not problems:
        problems += _check_nodes(left, nodes)
    if problems:
        raise InputError(problems)
    return left if nodes is None else left[:nodes]


def _check_nodes(left: Sequence[Host], nodes: int | None) -> Iterator[Problem]:
    if not left:
        yield Problem("no host is left after --include and --exclude")
    elif nodes is not None and nodes < 1:
        yield Problem(f"{nodes} nodes is too few", Place("--nodes"), hint="--nodes takes 1 or more")
    elif nodes is not None and nodes > len(left):
        yield Problem(
            f"{nodes} nodes are wanted, but there {'is 1 host' if len(left) == 1 else f'are {len(left)} hosts'}",
            Place("--nodes"),
        )


def _of(host: Host, choices: Iterable[_Choice]) -> list[_Choice]:
    return [choice for choice in choices if choice.name.casefold() == host.name.casefold()]


def _include(host: Host, choices: list[_Choice], option: _Option) -> Iterator[Host]:
    if any(choice.ids is None for choice in choices):
        yield host
    elif choices:
        wanted = tuple(dict.fromkeys(one for choice in choices for one in choice.ids or ()))
        ids = _ids(host)
        if ids is None:
            yield replace(host, devices=wanted, slots=len(wanted))
        elif _known(host, ids, choices, option):
            yield _with(host, tuple(one for one in ids if one in wanted))


def _exclude(host: Host, choices: list[_Choice], option: _Option) -> Iterator[Host]:
    if not choices:
        yield host
    elif all(choice.ids is not None for choice in choices):
        gone = {one for choice in choices for one in choice.ids or ()}
        ids = _ids(host)
        if ids is None:
            message = f"{host.name} does not say which devices it has, so what is left of it is not known"
            option.refuse(choices[0].offset, message, "give the host slots= or devices=")
        elif _known(host, ids, choices, option) and (left := tuple(one for one in ids if one not in gone)):
            yield _with(host, left)


def _ids(host: Host) -> tuple[str, ...] | None:
    if host.devices is not None:
        return host.devices
    return None if host.slots is None else tuple(map(str, range(host.slots)))


def _known(host: Host, ids: tuple[str, ...], choices: list[_Choice], option: _Option) -> bool:
    before = len(option.problems)
    for choice in choices:
        unknown = [one for one in choice.ids or () if one not in ids]
        if unknown:
            shown = ",".join(ids[:16])
            option.refuse(choice.offset, f"{host.name} has no device {unknown[0]}", f"its devices are {shown}")
    return len(option.problems) == before


def _with(host: Host, ids: tuple[str, ...]) -> Host:
    return replace(host, devices=ids, slots=len(ids))


def _split_ids(part: str) -> tuple[str, str, str]:
    body = part.rfind("]") + 1 if part.startswith("[") else 0
    for piece, at in split_outside(part[body:], ":")[:1]:
        end = body + at + len(piece)
        return part[:end], part[end : end + 1], part[end + 1 :]
    return part, "", ""


def _outside(name: str) -> str:
    return "," if len(split_outside(name, ",")) > 1 else ""


def _hint(name: str, hosts: Sequence[Host]) -> str:
    if set(name) & set("*?"):
        return "there are no wildcards; write a range, as in gpu[01-16]"
    near = find_near(name[:80], (host.name for host in hosts))
    return f"did you mean {near[0]}?" if near else _list_names(hosts)


def _list_names(hosts: Sequence[Host]) -> str:
    names = [host.name for host in hosts[:8]]
    return f"the hosts are {' '.join(names)}{' ...' if len(hosts) > 8 else ''}"
