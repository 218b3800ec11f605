"""Owns: what ssh's messages mean: a table of patterns → causes, and how an established connection ended.
Must not: do I/O, or drop what it does not know: that is quoted.
Called by: launch.openssh."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence

from meshrun.dataclass import dataclass
from meshrun.errors import Cause, CauseKind
from meshrun.launch.boot import UNKNOWN_EXIT, UNKNOWN_SIGNAL
from meshrun.launch.openssh_args import Hop, Way
from meshrun.launch.openssh_ears import Ears

FAILED = 255  # ssh's own exit code for a failure of its own; a command may end with it, too
_LAST_LINES = 8
_LOCKED = " (it needs a passphrase and is not in the agent, or cannot be read)"


@dataclass(frozen=True, slots=True)
class _Case:
    """A message, what was heard around it, and the hop that it is about."""

    match: re.Match[str]
    ears: Ears
    hop: Hop
    way: Way

    def get(self, name: str) -> str:
        return self.match.groupdict().get(name) or ""


@dataclass(frozen=True, slots=True)
class _Row:
    pattern: re.Pattern[str]
    kind: CauseKind
    message: str | Callable[[_Case], str]
    hint: str | Callable[[_Case], str] = ""


def explain_failure(way: Way, ears: Ears, code: int) -> Cause:
    """Why this ssh ended with `code` before anybody was logged in to the last host of `way`."""
    return _look_up(_ROWS, way, ears, code)


def explain_query(hop: Hop, ears: Ears, code: int) -> Cause:
    """Why `ssh -G` ended with `code`: a config that cannot be read, mostly."""
    return _look_up((*_CONFIG_ROWS, *_ROWS), (hop,), ears, code)


def _look_up(rows: Sequence[_Row], way: Way, ears: Ears, code: int) -> Cause:
    for row in rows:
        for line in ears.plain:
            if match := row.pattern.match(line):
                return _make_cause(row, _Case(match, ears, _find_hop(match, way, ears), way))
    lines = [f"  {line}" for line in list(ears.plain)[-_LAST_LINES:]]
    ended = f"ended by signal {-code}" if code < 0 else f"exit code {code}"
    message = f"ssh did not get to {way[-1].asked.name} ({ended})" + ("; its last lines:" if lines else "")
    return Cause(CauseKind.AGENT, "\n".join([message, *lines]), _BY_HAND.format(login=way[-1].login))


_BY_HAND = "try `{login}` by hand"


def _make_cause(row: _Row, case: _Case) -> Cause:
    words = {
        "login": case.hop.login,
        "hostname": case.hop.hostname,
        "port": str(case.hop.port),
    } | case.match.groupdict()
    message, hint = (part.format(**words) if isinstance(part, str) else part(case) for part in (row.message, row.hint))
    about = "" if case.hop is case.way[-1] else f"jump host {case.hop.asked.name}: "
    return Cause(row.kind, about + message, hint)


def _find_hop(match: re.Match[str], way: Way, ears: Ears) -> Hop:
    """Whose failure it is: until the last host's sshd has answered, that of a jump, by the name in the message."""
    if ears.reached or len(way) == 1 or match.groupdict().get("last"):
        return way[-1]
    place = match.groupdict().get("host") or ""
    return next((hop for hop in way[:-1] if hop.hostname in place or hop.asked.name == place), way[0])


# ---- words ----


def _say_unforwarded(case: _Case) -> str:
    *_, last = case.way
    jumps = " or ".join(hop.asked.name for hop in case.way[:-1]) or "the proxy"
    return f"{jumps} does not forward to {last.hostname} port {last.port}: {case.get('why')}"


def _finds_proxy(case: _Case) -> str:
    """The ProxyCommand that stands before the last host, if that host's sshd was never heard through it."""
    command = case.hop.answers.get("proxycommand", "none")
    return "" if case.ears.reached or case.hop is not case.way[-1] or command == "none" else command


def _hint_dropped(case: _Case) -> str:
    return f"try it by hand: `{case.hop.login}`" if _finds_proxy(case) else _DROPS


def _say_dropped(case: _Case) -> str:
    """The first word of the last host never came: it, its proxy, or a jump without a word of its own, hung up."""
    if _finds_proxy(case):
        said = [line for line in case.ears.plain if not _HUNG_UP.match(line)]
        why = f"; its last lines: {' / '.join(said[-3:])}" if said else ""
        return f"the ProxyCommand of {case.hop.asked.name} makes no connection{why}"
    jumps = ", ".join(hop.asked.name for hop in case.way[:-1])
    through = f" (through {jumps})" if jumps else ""
    return f"{case.hop.hostname} port {case.hop.port}{through} closed the connection before login"


def _say_unknown_key(case: _Case) -> str:
    shown = " ".join(part for part in (case.get("type"), _find_shown(case)) if part)
    where = " or ".join(case.hop.known_hosts)
    return f"the host key of {case.get('host') or case.hop.hostname}{f' ({shown})' if shown else ''} is not in {where}"


def _find_shown(case: _Case) -> str:
    """The fingerprint of the last host's key; a jump does not tell its own."""
    if case.hop is not case.way[-1]:
        return ""
    return _first(r"debug1: Server host key: \S+ (SHA256:\S+)", case.ears.debug)


def _first(pattern: str, lines: Sequence[str]) -> str:
    return next((match[1] for line in lines if (match := re.match(pattern, line))), "")


def _hint_unknown_key(case: _Case) -> str:
    port = ["-p", str(case.hop.port)] if case.hop.port != 22 else []
    scan = f"{shlex.join(['ssh-keyscan', *port, case.hop.hostname])} >> {shlex.quote(case.hop.known_hosts[0])}"
    return f"compare it and add it with `{case.hop.login}` or `{scan}`, or use --host-key-policy accept-new"


def _say_revoked_key(case: _Case) -> str:
    return f"the host key of {case.get('host')} is revoked in {' or '.join(case.hop.all_known_hosts)}"


def say_added_key(way: Way, name: str, key_type: str) -> str:
    """A remark for the user: ssh has taken this key as new."""
    hop = next((hop for hop in way if hop.hostname in name), way[-1])
    return f"the host key ({key_type}) of {name} is new and was added to {hop.known_hosts[0]}"


def _say_changed_key(case: _Case) -> str:
    places = [match[1] for line in case.ears.plain if (match := re.match(r"Offending \S+ key in (.*:\d+)", line))]
    known = f"another one is known at {', '.join(places)}" if places else "another one is known"
    shown = _first(r"(SHA256:\S+?)\.?$", list(case.ears.plain))
    return f"the host key of {case.get('host')} has changed: it shows {shown}, {known}"


def _hint_changed_key(case: _Case) -> str:
    place = _first(r"Offending \S+ key in (.*):\d+", list(case.ears.plain)) or case.hop.known_hosts[0]
    remove = shlex.join(["ssh-keygen", "-f", place, "-R", case.get("host")])
    return f"someone may be in between; if the host was installed anew: `{remove}`, then `{case.hop.login}` once"


def _say_refused_login(case: _Case) -> str:
    why = "it closed the connection (MaxAuthTries)" if "Too many" in case.match[0] else _say_methods(case)
    tried = [name + wrong for name, wrong in _find_tried(case).items()]
    after = f"; tried in order: {', '.join(tried)}" if tried else ""
    return f"{case.get('host') or case.hop.hostname} does not let {case.get('user') or case.hop.user} in: {why}{after}"


def _hint_refused_login(case: _Case) -> str:
    hint = f"make `{case.hop.login}` work without a password, or see --identity"
    locked = [shlex.quote(name) for name, wrong in _find_tried(case).items() if wrong == _LOCKED]
    return f"`ssh-add {' '.join(locked)}` asks for the passphrase once; or {hint}" if locked else hint


def _say_methods(case: _Case) -> str:
    signing = _first(r"sign_and_send_pubkey: (.*)", list(case.ears.plain))
    return f"it takes {case.get('methods').replace(',', ', ')}" + (f"; {signing}" if signing else "")


def _find_tried(case: _Case) -> dict[str, str]:
    """The keys in the order of their offers, with what was wrong on our side; a jump does not tell its own."""
    tried: dict[str, str] = {}
    if case.hop is not case.way[-1]:
        return tried
    for line in case.ears.debug:
        if offered := re.match(r"debug1: Offering (?:\S+ )?public key: (.+?)(?: \S+ SHA256:\S+(.*))?$", line):
            name = f"agent key {offered[1]}" if (offered[2] or "").strip() == "agent" else offered[1]
            tried.setdefault(name, "")
        elif accepted := re.match(r"debug1: Server accepts key: (.+?)(?: \S+ SHA256:\S+.*)?$", line):
            tried[accepted[1]] = _LOCKED
        elif private := re.match(r"debug1: Trying private key: (.+)$", line):
            tried.setdefault(private[1], "")
    for line in case.ears.plain:
        if missing := re.match(r"no such identity: (.*): No such file", line):
            tried[missing[1]] = " (no such file)"
        elif wide := re.match(r"Permissions \S+ for '(.*)' are too open", line):
            tried[wide[1]] = f" (others may read it, so ssh does not use it: chmod 600 {wide[1]})"
    return tried


def _row(
    pattern: str, kind: CauseKind, message: str | Callable[[_Case], str], hint: str | Callable[[_Case], str] = ""
) -> _Row:
    return _Row(re.compile(pattern), kind, message, hint)


_PLACE = r"(?:ssh: )?connect to (?:host|address) (?P<host>\S+) port (?P<port>\d+): "
_OPEN = r"channel \d+: open failed: "
_UP, _NET = "is the machine up, and no firewall between?", "check the address and the network"
_HUNG_UP = re.compile(r"(?:kex|ssh)_exchange_identification: |banner exchange: |Connection (?:closed|reset) by ")
_DROPS = "its sshd may be at MaxStartups, or is no sshd"
_NO_SSHD = "{hostname} port {port} did not answer as an sshd in time"

# Looked at in this order, each over all lines: a general message (the connection closed) follows its special cause.
_ROWS: tuple[_Row, ...] = (
    _row(r"(?:ssh: )?Could not resolve hostname (?P<host>\S+): (?P<why>.*)", CauseKind.NAME_UNKNOWN,
         "the name {host} is not known here ({why})", "check its spelling, DNS, or HostName in ssh config"),
    _row(_PLACE + "Connection refused", CauseKind.REFUSED,
         "{host} port {port} refused the connection", "is sshd running there, on this port?"),
    _row(_PLACE + "(?:Connection|Operation) timed out", CauseKind.TIMED_OUT, "{host} port {port} did not answer", _UP),
    _row(_PLACE + r"(?P<why>.*)", CauseKind.NO_ROUTE, "no way to {host} port {port}: {why}", _NET),
    _row(_OPEN + r"(?P<why>administratively prohibited.*)", CauseKind.JUMP,
         _say_unforwarded, "see AllowTcpForwarding and PermitOpen in its sshd_config"),
    _row(_OPEN + r"(?:connect failed: )?(?P<why>Connection refused.*)", CauseKind.REFUSED, _say_unforwarded),
    _row(_OPEN + r"(?:connect failed: )?(?P<why>.*timed out.*)", CauseKind.TIMED_OUT, _say_unforwarded, _UP),
    _row(_OPEN + r"(?:connect failed: )?(?P<why>.*(?:resol|not known|nodename).*)", CauseKind.NAME_UNKNOWN,
         _say_unforwarded, "the name is looked up there: check HostName in ssh config"),
    _row(_OPEN + r"(?:connect failed: )?(?P<why>.*)", CauseKind.NO_ROUTE, _say_unforwarded, _NET),
    _row(r"\S+ host key for (?P<host>\S+) (?:was|is marked as) revoked", CauseKind.HOST_KEY_REVOKED,
         _say_revoked_key, "do not connect; ask who runs that host"),
    _row(r"Host key for (?P<host>\S+) has changed|Host key (?P<other>\S+) has changed", CauseKind.HOST_KEY_CHANGED,
         _say_changed_key, _hint_changed_key),
    _row(r"No (?P<type>\S+) host key is known for (?P<host>\S+) and", CauseKind.HOST_KEY_UNKNOWN,
         _say_unknown_key, _hint_unknown_key),
    _row(r"Host key verification failed", CauseKind.HOST_KEY_UNKNOWN, _say_unknown_key, _hint_unknown_key),
    _row(r"Received disconnect from \S+(?: port \d+)?:\s*\d+: Too many authentication failures", CauseKind.AUTH,
         _say_refused_login, _hint_refused_login),
    _row(r"(?:(?P<user>\S+)@(?P<host>\S+): )?Permission denied \((?P<methods>.*)\)", CauseKind.AUTH,
         _say_refused_login, _hint_refused_login),
    _row(r"Unable to negotiate with (?P<host>\S+) port \d+: (?P<why>.*)", CauseKind.CONFIG,
         "{host} speaks no ssh algorithm in common: {why}", "see Ciphers, MACs, KexAlgorithms, HostKeyAlgorithms"),
    _row(r"Connection to (?P<host>(?!UNKNOWN)\S+) port \d+ timed out", CauseKind.TIMED_OUT, _NO_SSHD, _UP),
    _row(r"(?P<last>Connection timed out during banner exchange|Connection to UNKNOWN port \d+ timed out)",
         CauseKind.TIMED_OUT, _NO_SSHD, _UP),
    _row(r"Connection (?:closed|reset) by (?P<host>(?!UNKNOWN)\S+) port ", CauseKind.DROPPED,
         "{hostname} port {port} closed the connection before login", _DROPS),
    _row(f"(?P<last>{_HUNG_UP.pattern})", CauseKind.DROPPED, _say_dropped, _hint_dropped),
    _row(r"Disconnected from |Received disconnect from |ssh_dispatch_run_fatal: |Connection to .* (?:closed|aborted)",
         CauseKind.DROPPED, "{hostname} port {port} closed the connection before login", _DROPS),
)  # fmt: skip


_CONFIG_ROWS: tuple[_Row, ...] = (
    _row(r"(?P<file>.*?):? line (?P<line>\d+): (?P<why>.*)", CauseKind.CONFIG,
         "the ssh config {file}:{line}: {why}", "correct it, or name another with --ssh-config"),
    _row(r"Can't open user config file (?P<file>.*): (?P<why>.*)", CauseKind.CONFIG,
         "cannot read the ssh config {file}: {why}", "see --ssh-config"),
    _row(r"Bad owner or permissions on (?P<file>.*)", CauseKind.CONFIG,
         "ssh does not trust {file}: its owner or permissions are too wide", "chmod go-w {file}"),
    _row(r"(?:command-line|\S+): (?P<why>Bad configuration option: .*|terminating, .*)", CauseKind.CONFIG, "{why}"),
)  # fmt: skip


# ---- after login ----

_BROKE = re.compile(
    r"Connection to .* closed by remote host|Connection (?:closed|reset) by |client_loop: |Timeout, server .* not resp"
    r"|Read from remote host |Write failed|packet_write_|ssh_dispatch_run_fatal: |Received disconnect from |"
    r"Disconnected from |.*Broken pipe"
)
_NO_COMMAND = re.compile(r"(exec|shell) request failed on channel|mux_client_request_session: .*refused|" + _OPEN)


def find_exit(ears: Ears, code: int) -> int | None:
    """The far side's exit code as `Intake.end` wants it, None where the connection broke. `code`: ssh's own."""
    said = _first(r"debug1: Exit status (-?\d+)", list(ears.debug)[-20:])
    if ears.ended and not said and (code < 0 or code == FAILED):
        return UNKNOWN_EXIT  # this ssh was told to go before it could say it
    if code < 0 or (code == FAILED and any(_BROKE.match(line) for line in ears.plain)):
        return None
    told = int(said) if said else code
    return UNKNOWN_SIGNAL if told == -1 else told


def explain_unrun(way: Way, ears: Ears) -> Cause | None:
    """If somebody was let in but no command was run: that."""
    lines = [line for line in ears.plain if _NO_COMMAND.match(line)]
    if not lines:
        return None
    message = f"{way[-1].hostname} let {way[-1].user} in but ran no command: {lines[-1]}"
    return Cause(CauseKind.AGENT, message, "see ForceCommand and MaxSessions in its sshd_config")
