"""Owns: the `key=value` words of a hostfile line.
Must not: know the host's name, or other lines.
Called by: spec.hostfile."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence

from meshrun.dataclass import dataclass, field
from meshrun.errors import Place
from meshrun.spec.hostname import NameProblem, read_number
from meshrun.spec.labels import parse_label
from meshrun.spec.near import find_near
from meshrun.spec.values import Host
from meshrun.spec.words import Word

MAX_SLOTS = 4096
KNOWN = ("slots", "max_slots", "devices", "addr", "port", "user", "python", "workdir", "label")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DEVICE_RANGE = re.compile(r"([0-9]{1,4})(?:-([0-9]{1,4}))?")
_DEVICE_NAME = re.compile(r"[A-Za-z][A-Za-z0-9._:/-]*")
# Names that other launchers use for the same thing.
_OTHER_NAMES = {"max-slots": "max_slots"}
_MEANT = {"np": "slots", "count": "slots", "cpu": "slots", "gpus": "slots", "cwd": "workdir", "dir": "workdir"}


@dataclass(frozen=True, slots=True)
class KeyProblem:
    """What is wrong, and the column (from 1) where it stands."""

    message: str
    column: int
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Keys:
    """The values of one line. `counted`: the line says how many slots there are, or that they are to be found."""

    slots: int | None = None
    counted: bool = False
    devices: tuple[str, ...] | None = None
    addr: str | None = None
    port: int | None = None
    user: str | None = None
    python: str | None = None
    workdir: str | None = None
    label: str | None = None
    env: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    def host(self, name: str, user: str | None, place: Place) -> Host:
        """A host that this line describes."""
        return Host(
            name,
            user=user if user is not None else self.user,
            port=self.port,
            addr=self.addr,
            slots=self.slots,
            devices=self.devices,
            python=self.python,
            workdir=self.workdir,
            env=self.env,
            label=self.label,
            place=place,
        )


def read_keys(words: Sequence[Word]) -> tuple[Keys, list[KeyProblem]]:
    """The keys of a line and everything that is wrong with them."""
    found: dict[str, tuple[str, Word]] = {}
    problems: list[KeyProblem] = []
    for word in words:
        try:
            key, value = _split(word)
            if key in found:
                raise NameProblem(f"{key}= is given twice", 0)
            found[key] = (value, word)
        except NameProblem as error:
            problems.append(KeyProblem(error.message, word.column(error.offset), error.hint))
    return _interpret(found, problems), problems


def parse_devices(text: str) -> tuple[str, ...]:
    """Device ids `0,2-3` or `GPU-uuid,...` as strings, in order. Raises NameProblem."""
    ids: list[str] = []
    at = 0
    for item in text.split(","):
        for device in _device(item, at):
            if device in ids:
                raise NameProblem(f"device {device} is given twice", at)
            ids.append(device)
        at += len(item) + 1
        if len(ids) > MAX_SLOTS:
            raise NameProblem(f"more than {MAX_SLOTS} devices", at)
    return tuple(ids)


def _device(item: str, at: int) -> list[str]:
    match = _DEVICE_RANGE.fullmatch(item)
    if match:
        low, high = int(match.group(1)), int(match.group(2) or match.group(1))
        if high < low:
            raise NameProblem(f"the range {item} runs backward", at, f"write {high}-{low}")
        return [str(number) for number in range(low, high + 1)]
    if not item:
        raise NameProblem("an empty device id", at, "as in devices=0,2-3")
    if not _DEVICE_NAME.fullmatch(item):
        raise NameProblem(f"'{item[:40]}' is not a device id", at, "numbers, ranges or UUIDs, as in 0,2-3")
    return [item]


def _split(word: Word) -> tuple[str, str]:
    key, equals, value = word.text.partition("=")
    if not equals:
        hint = f"did you mean slots={key}?" if key.isdigit() and key.isascii() else "every word after the host is"
        raise NameProblem(f"'{key[:40]}' is not key=value", 0, hint if "?" in hint else f"{hint} key=value")
    key = _OTHER_NAMES.get(key, key)
    if key.startswith("env."):
        if not _ENV_NAME.fullmatch(key[4:]):
            raise NameProblem(f"'{key[4:44]}' is not the name of a variable", min(4, len(key) - 1))
    elif key not in KNOWN:
        raise NameProblem(f"unknown key {key[:40]}=", 0, _nearest(key))
    return key, value


def _nearest(key: str) -> str:
    lowered = key.lower()
    near = [_MEANT[lowered]] if lowered in _MEANT else find_near(lowered[:40], KNOWN, 0.5)
    return f"did you mean {near[0]}=?" if near else f"the keys are {' '.join(KNOWN)} env.NAME"


def _interpret(found: dict[str, tuple[str, Word]], problems: list[KeyProblem]) -> Keys:
    values: dict[str, object] = {}
    for key, (value, word) in found.items():
        try:
            values[key] = _value(key, value)
        except NameProblem as error:
            offset = error.offset + word.text.find("=") + 1
            problems.append(KeyProblem(error.message, word.column(offset), error.hint))
    if not problems:
        _check_counts(values, found, problems)
    known = {key: values.get(key) for key in KNOWN if key != "max_slots"}
    if known["slots"] is None and "slots" not in values:
        devices = values.get("devices")
        known["slots"] = len(devices) if isinstance(devices, tuple) else values.get("max_slots")
    env = tuple((key[4:], str(value)) for key, value in values.items() if key.startswith("env."))
    counted = "slots" in found or "devices" in found
    return Keys(**known, env=env, counted=counted)  # type: ignore[arg-type]  # each by its reader in _value


def _value(key: str, value: str) -> object:
    if key == "slots" and value == "auto":
        return None
    if key in ("slots", "max_slots"):
        return read_number(value, "number of slots", MAX_SLOTS)
    if key == "port":
        return read_number(value, "port", 65535)
    if key == "devices":
        return parse_devices(value)
    if key == "addr":
        return _address(value)
    if not value and not key.startswith("env."):
        raise NameProblem(f"{key}= has no value", 0)
    if key == "label":
        parse_label(value)
    return value


def _address(value: str) -> str:
    bare = value[1:-1] if value.startswith("[") and value.endswith("]") else value
    try:
        ipaddress.ip_address(bare)
    except ValueError:
        raise NameProblem(f"'{value[:60]}' is not an IP address", 0, "addr= takes an address, not a name") from None
    return bare


def _check_counts(values: dict[str, object], found: dict[str, tuple[str, Word]], problems: list[KeyProblem]) -> None:
    slots, devices, most = values.get("slots"), values.get("devices"), values.get("max_slots")
    if isinstance(slots, int) and isinstance(devices, tuple) and slots != len(devices):
        message = f"slots={slots}, but devices= names {len(devices)}"
        problems.append(KeyProblem(message, found["slots"][1].column(), "leave slots= out: devices= sets it"))
    if isinstance(slots, int) and isinstance(most, int) and slots > most:
        problems.append(KeyProblem(f"slots={slots} is above max_slots={most}", found["slots"][1].column()))
