"""Owns: the hostfile and `--hosts`: text → hosts, or every problem in it at once, each with its place.
Must not: read files, resolve names or decide which hosts take part.
Called by: spec.job, cli."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from meshrun.dataclass import replace
from meshrun.errors import InputError, Place, Problem
from meshrun.spec.hostkeys import MAX_SLOTS, KeyProblem, Keys, read_keys
from meshrun.spec.hostlist import RangeError, expand, split_outside
from meshrun.spec.hostname import NameProblem, Target, read_number, split_target
from meshrun.spec.values import Host
from meshrun.spec.words import CONTROL, Word, WordError, split_words

# Far above what 1,000 hosts need, and low enough that any file is read or refused within a second.
MAX_BYTES = 1024 * 1024
MAX_HOSTS = 16_384
MAX_LINE = 16_384
# Beyond this a file is not a hostfile with mistakes but something else; the rest would only be noise.
MAX_PROBLEMS = 100


class _Reader:
    """What was found so far: hosts, problems, and who has been seen where."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.hosts: list[Host] = []
        self.problems: list[Problem] = []
        self._seen: dict[tuple[str | None, str, int | None], Host] = {}

    @property
    def full(self) -> bool:
        return len(self.problems) >= MAX_PROBLEMS or len(self.hosts) > MAX_HOSTS

    def refuse(self, line: int, text: str, column: int, message: str, hint: str = "") -> None:
        place = Place(self.source, line, column)
        self.problems.append(Problem(message, place, show_line(text), hint))

    def place(self, line: int, column: int) -> Place:
        return Place(self.source, line, column)

    def add(self, host: Host, line: int, text: str, column: int) -> None:
        first = self._seen.setdefault((host.user, host.name.casefold(), host.port), host)
        if first is host:
            self.hosts.append(host)
            return
        earlier = first.place.line if first.place else line
        where = "earlier in this line" if earlier == line else f"in line {earlier}"
        hint = "name a host once; slots=N says how many workers it takes"
        self.refuse(line, text, column, f"{host.name} already stands {where}", hint)

    def result(self) -> tuple[Host, ...]:
        if len(self.hosts) > MAX_HOSTS:
            self.problems.append(Problem(f"more than {MAX_HOSTS} hosts", Place(self.source)))
        elif len(self.problems) >= MAX_PROBLEMS:
            self.problems.append(Problem("too many problems; the rest is not shown", Place(self.source)))
        elif not self.hosts and not self.problems:
            self.problems.append(Problem("no host in it", Place(self.source), hint="a line a host: gpu01 slots=8"))
        if self.problems:
            raise InputError(self.problems)
        return tuple(self.hosts)


def parse_hostfile(data: bytes, source: str) -> tuple[Host, ...]:
    """The hosts of a hostfile, in its order (DESIGN §5). `source` is how the user named the file.

    Raises InputError with every problem, each with line and column; also for more than MAX_BYTES, more than
    MAX_HOSTS hosts, or bytes that are no text."""
    reader = _Reader(source)
    for number, line in enumerate(_decode(data, source).split("\n"), start=1):
        if reader.full:
            break
        _read_line(reader, number, line[:-1] if line.endswith("\r") else line)
    return reader.result()


def parse_hosts(text: str, source: str = "--hosts") -> tuple[Host, ...]:
    """The hosts of `--hosts a:4,gpu[1-2]:8,b`: a number after the colon means slots here.

    Raises InputError with every problem, each with its column."""
    reader = _Reader(source)
    if len(text) > MAX_BYTES:
        raise InputError(Problem(f"more than {MAX_BYTES} characters", Place(source)))
    control = CONTROL.search(text)
    if control:
        reader.refuse(1, text, control.start() + 1, _control(control.group()))
        return reader.result()
    for part, offset in split_outside(text, ","):
        if reader.full:
            break
        _read_item(reader, text, part, offset)
    return reader.result()


def show_line(text: str) -> str:
    """A line as a message may quote it: no control characters, columns as they are."""
    return text if text.isprintable() else "".join(c if c.isprintable() else " " for c in text)


def _decode(data: bytes, source: str) -> str:
    if len(data) > MAX_BYTES:
        size = f"{len(data)} bytes; a hostfile has at most {MAX_BYTES}"
        raise InputError(Problem(size, Place(source), hint="is this the right file?"))
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise InputError(Problem("this is UTF-16 text", Place(source, 1, 1), hint="save it as UTF-8"))
    zero = data.find(b"\0")
    if zero >= 0:
        line = data.count(b"\n", 0, zero) + 1
        column = zero - data.rfind(b"\n", 0, zero)
        raise InputError(Problem("a zero byte: this is no text file", Place(source, line, column)))
    return data.removeprefix(codecs.BOM_UTF8).decode("utf-8", "surrogateescape")


def _read_line(reader: _Reader, number: int, line: str) -> None:
    if not line or line.isspace():
        return None
    control = CONTROL.search(line)
    if control:
        return reader.refuse(number, line, control.start() + 1, _control(control.group()))
    if len(line) > MAX_LINE:
        return reader.refuse(number, line, 1, f"a line of more than {MAX_LINE} characters")
    try:
        words = split_words(line)
        if words:
            _read_words(reader, number, line, words)
    except WordError as error:
        reader.refuse(number, line, error.column, error.message, error.hint)
    return None


def _read_words(reader: _Reader, number: int, line: str, words: Sequence[Word]) -> None:
    first = words[0]
    keys, problems = read_keys(words[1:])
    target: Target | None = None
    names: tuple[str, ...] = ()
    try:
        target = split_target(first.text)
        names = _names(target)
        if target.number is not None:
            keys = _take_port(target, keys)
        if target.user is not None and keys.user is not None:
            raise NameProblem("the user is given twice, before '@' and by user=", 0)
        if len(names) > 1 and keys.addr is not None:
            problems.append(KeyProblem("addr= on a line of several hosts would give them one address", first.column()))
    except NameProblem as error:
        problems.append(KeyProblem(error.message, first.column(error.offset), error.hint))
    for problem in sorted(problems, key=lambda p: p.column)[:MAX_PROBLEMS]:
        reader.refuse(number, line, problem.column, problem.message, problem.hint)
    if not problems and target is not None:
        place = reader.place(number, first.column())
        for name in names:
            if reader.full:
                break
            reader.add(keys.host(name, target.user, place), number, line, first.column())


def _names(target: Target) -> tuple[str, ...]:
    if target.literal:
        return (target.name,)
    try:
        return expand(target.name)
    except RangeError as error:
        raise NameProblem(error.message, target.offset + error.offset, error.hint) from None


def _take_port(target: Target, keys: Keys) -> Keys:
    at = target.number_offset
    if keys.port is not None:
        raise NameProblem("the port is given twice, after ':' and by port=", at)
    if not keys.counted:
        name, number = target.spelled, target.number
        message = f"':{number}' may be a number of slots or a port"
        raise NameProblem(message, at, f"write '{name} slots={number}' or '{name} port={number}'")
    return replace(keys, port=read_number(target.number or "", "port", 65535, at))


def _read_item(reader: _Reader, text: str, part: str, offset: int) -> None:
    offset += len(part) - len(part.lstrip(" \t"))
    item = part.strip(" \t")
    try:
        if not item:
            raise NameProblem("an empty entry", 0, "hosts are separated by one comma, as in a:4,b:4")
        target = split_target(item)
        names = _names(target)
        slots = None
        if target.number is not None:
            slots = read_number(target.number, "number of slots", MAX_SLOTS, target.number_offset)
        for name in names:
            if reader.full:
                break
            host = Host(name, user=target.user, slots=slots, place=reader.place(1, offset + 1))
            reader.add(host, 1, text, offset + 1)
    except NameProblem as error:
        reader.refuse(1, text, offset + error.offset + 1, error.message, error.hint)


def _control(char: str) -> str:
    return f"a control character (U+{ord(char):04X})"
