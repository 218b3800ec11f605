"""Owns: what the hostfile line, the command line and the ssh config together say about one host: the Target.
Must not: read files.
Called by: launch.ssh_files; everything of ssh reads Targets."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

from meshrun.dataclass import dataclass, field
from meshrun.errors import InputError, Problem
from meshrun.launch.ssh_canonical import normalize
from meshrun.launch.ssh_config import Line, Options, find_ignored, is_none, make_tokens
from meshrun.launch.ssh_jump import Asked, read_chain
from meshrun.launch.ssh_keywords import CORRECT, REMEDY, spell
from meshrun.launch.ssh_match import World
from meshrun.launch.ssh_words import WordsError, expand, match_patterns, parse_time
from meshrun.spec.values import SshSettings

_DEFAULT_KEYS = ("~/.ssh/id_rsa", "~/.ssh/id_ecdsa", "~/.ssh/id_ed25519")
_USER_FILES = ("~/.ssh/known_hosts", "~/.ssh/known_hosts2")
_GLOBAL_FILES = ("/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2")
_ALGORITHMS = (
    *("ciphers", "macs", "kexalgorithms", "hostkeyalgorithms"),
    *("casignaturealgorithms", "pubkeyacceptedalgorithms"),
)
# The tokens of a keyword that does not take all of `make_tokens`.
_FEWER_TOKENS = {"proxycommand": "hknpr", "proxyjump": "hknpr", "user": "Ldhijklnpu", "globalknownhostsfile": ""}
_YES = frozenset({"yes", "true"})
_NO = frozenset({"no", "false"})


@dataclass(frozen=True, slots=True)
class Target:
    """One host as `ssh` would see it. Files are absolute; the first of `identities` comes from the command line."""

    name: str  # as written
    hostname: str
    port: int
    user: str
    user_said: bool
    port_said: bool
    identities: tuple[str, ...]
    identities_only: bool
    default_keys: tuple[str, ...]  # tried last; empty when any identity was configured, as ssh does
    agent: str | None  # the socket of the ssh agent, None if none is to be asked
    key_name: str  # what the host is called in known_hosts
    known_hosts: tuple[str, ...]  # the user's files, then the system's
    accept_new: bool
    certificates: tuple[str, ...] = ()
    aliased: bool = False  # HostKeyAlias: `key_name` stands without a port
    user_known_hosts: tuple[str, ...] = ()  # the first is where a new key goes; none: it is not written down
    revoked_keys: tuple[str, ...] = ()
    hash_names: bool = False
    check_key: bool = True  # False only for a loopback address with NoHostAuthenticationForLocalhost
    no_keys: str = ""  # why no key may be tried
    rsa_bits: int = 1024
    family: str = "any"
    bind_address: str = ""
    bind_interface: str = ""
    timeout_s: float | None = None
    keep_alive: bool = True
    compress: bool = False
    environment: tuple[tuple[str, str], ...] = ()
    proxy_jump: tuple[str, ...] = ()
    proxy_command: str = ""
    config: str = ""  # --ssh-config, for the commands that hints show
    algorithms: tuple[tuple[str, str], ...] = ()  # keyword → list, for those of `_ALGORITHMS` that are set
    notes: tuple[str, ...] = field(default=(), compare=False)  # what the config says and meshrun does not do

    @property
    def login(self) -> str:
        """The `ssh` command that reaches this host as this job does."""
        config = ["-F", self.config] if self.config else []
        port = ["-p", str(self.port)] if self.port != 22 else []
        return shlex.join(["ssh", *config, *port, f"{self.user}@{self.name}"])


class _Values:
    """Options as values, with this host's tokens. Raises InputError that names keyword, file and line."""

    def __init__(self, options: Options, tokens: Mapping[str, str], world: World) -> None:
        self._options, self._tokens, self._world = options, tokens, world

    def lines(self, key: str) -> list[Line]:
        return self._options.get(key, [])

    def word(self, key: str, default: str = "") -> str:
        return next((line.word for line in self.lines(key)), default)

    def choice(self, key: str, default: str = "") -> str:
        return self.word(key, default).lower()

    def filled(self, key: str) -> str:
        """A word with its tokens filled in; as given where it does not come from a file."""
        return next((self.expand(line, line.word, environ=True) for line in self.lines(key) if line.at.line), "")

    def text(self, key: str) -> str:
        """A command or a chain of jumps, tokens filled in; "" for none."""
        line = next(iter(self.lines(key)), None)
        return "" if line is None or is_none(line) else self.expand(line, line.text.lstrip(" \t\r\n="), environ=False)

    def paths(self, key: str) -> tuple[str, ...] | None:
        """None where nothing is said, () for `none`."""
        if not self.lines(key):
            return None
        found = [self._path(line, word) for line in self.lines(key) for word in line.words if word.lower() != "none"]
        return tuple(dict.fromkeys(found))

    def plain(self, path: str) -> str:
        return self._world.home + path[1:] if path.startswith("~/") else path

    def _path(self, line: Line, word: str) -> str:
        return self.expand(line, self._expand_home(line, word), environ=True)

    def _expand_home(self, line: Line, word: str) -> str:
        if not word.startswith("~"):
            return word
        user, _, rest = word[1:].partition("/")
        home = self._world.home_of(user) if user else self._world.home
        if home is None:
            raise _refuse(line, f"there is no user {user} here")
        return f"{home.rstrip('/')}/{rest.lstrip('/')}"

    def expand(self, line: Line, text: str, environ: bool) -> str:
        allowed = _FEWER_TOKENS.get(line.keyword)
        tokens = {name: value for name, value in self._tokens.items() if allowed is None or name in allowed}
        try:
            return expand(text, tokens, self._world.environ if environ else None)
        except WordsError as error:
            raise _refuse(line, str(error)) from None


def _refuse(line: Line, problem: str, hint: str = "") -> InputError:
    text = f"{spell(line.keyword)} {line.text}"
    return InputError(Problem(f"the ssh config says {text}: {problem}", line.at, hint=hint or CORRECT))


def make_target(asked: Asked, settings: SshSettings, options: Options, world: World) -> Target:
    """Precedence: host line > command line > ssh config (DESIGN §4). Raises InputError."""
    notes, refused = find_ignored(options)
    if refused:
        raise InputError(refused)
    hostname = _hostname(asked.name, options)
    tokens = make_tokens(asked.name, hostname, options, world)
    values = _Values(options, tokens, world)
    user = tokens["r"] = asked.user or settings.user or values.filled("user") or world.local_user
    port = asked.port or settings.port or int(values.word("port", "22"))
    jumps = read_chain(values.text("proxyjump"))
    alias = values.word("hostkeyalias").lower()
    user_files = values.paths("userknownhostsfile")
    user_files = user_files if user_files is not None else tuple(map(values.plain, _USER_FILES))
    global_files = values.paths("globalknownhostsfile")
    global_files = global_files if global_files is not None else _GLOBAL_FILES
    identities = _identities(settings, values)
    return Target(
        name=asked.name,
        hostname=hostname,
        port=port,
        user=user,
        user_said=bool(asked.user or settings.user or values.word("user")),
        port_said=bool(asked.port or settings.port or values.word("port")),
        identities=identities,
        identities_only=values.choice("identitiesonly") in _YES,
        default_keys=() if identities or values.lines("identityfile") else tuple(map(values.plain, _DEFAULT_KEYS)),
        agent=_agent(values, world),
        key_name=alias or (hostname if port == 22 else f"[{hostname}]:{port}"),
        known_hosts=user_files + global_files,
        accept_new=_accepts_new(settings, values.choice("stricthostkeychecking")),
        certificates=values.paths("certificatefile") or (),
        aliased=bool(alias),
        user_known_hosts=user_files,
        revoked_keys=values.paths("revokedhostkeys") or (),
        hash_names=values.choice("hashknownhosts") in _YES,
        check_key=values.choice("nohostauthenticationforlocalhost") not in _YES,
        no_keys=_why_no_keys(values),
        rsa_bits=max(1024, int(values.word("requiredrsasize", "1024"))),
        family=values.choice("addressfamily", "any"),
        bind_address=values.word("bindaddress"),
        bind_interface=values.word("bindinterface"),
        timeout_s=parse_time(values.word("connecttimeout")) or None,
        keep_alive=values.choice("tcpkeepalive") not in _NO,
        compress=values.choice("compression") == "yes",
        environment=_environment(values, world),
        proxy_jump=jumps,
        proxy_command="" if jumps else values.text("proxycommand"),
        config=settings.config or "",
        algorithms=tuple((key, values.word(key)) for key in _ALGORITHMS if values.lines(key)),
        notes=notes,
    )


def _hostname(name: str, options: Options) -> str:
    """Lower case, addresses in their usual form, as ssh has them."""
    line = next(iter(options.get("hostname", [])), None)
    try:
        text = expand(line.word, {"h": name}) if line else name
    except WordsError as error:
        assert line
        raise _refuse(line, str(error)) from None
    return normalize(text)


def _identities(settings: SshSettings, values: _Values) -> tuple[str, ...]:
    given = [values.plain(settings.identity)] if settings.identity else []
    return tuple(dict.fromkeys([*given, *(values.paths("identityfile") or ())]))


def _agent(values: _Values, world: World) -> str | None:
    said = values.word("identityagent", "SSH_AUTH_SOCK")
    if said == "none":
        return None
    if said == "SSH_AUTH_SOCK" or re.fullmatch(r"\$[A-Za-z_][A-Za-z0-9_]*", said):
        return world.environ.get(said.removeprefix("$")) or None
    return (values.paths("identityagent") or (None,))[0]


def _why_no_keys(values: _Values) -> str:
    """Only keys can be used here: what else a config may ask for needs a person, or another client."""
    for line in values.lines("pubkeyauthentication"):
        if line.word.lower() in _NO:
            return f"the ssh config forbids keys at {line.at} (PubkeyAuthentication no); {REMEDY}"
    for line in values.lines("preferredauthentications"):
        if "publickey" not in line.word.split(","):
            return f"the ssh config forbids keys at {line.at} (PreferredAuthentications {line.word}); {REMEDY}"
    return ""


def _environment(values: _Values, world: World) -> tuple[tuple[str, str], ...]:
    """SendEnv's variables, then SetEnv's, which win."""
    sent: dict[str, str] = {}
    for pattern in (word for line in values.lines("sendenv") for word in line.words):
        taking = not pattern.startswith("-")
        for name in [name for name in world.environ if match_patterns(name, [pattern.removeprefix("-")])]:
            if taking:
                sent[name] = world.environ[name]
            else:
                sent.pop(name, None)
    for line in values.lines("setenv"):
        for word in reversed(line.words):  # the first of a name counts
            name, equals, value = word.partition("=")
            if not equals:
                raise _refuse(line, f"{name} has no value")
            sent[name] = values.expand(line, value, environ=True)
    return tuple(sent.items())


def _accepts_new(settings: SshSettings, config: str) -> bool:
    # "no" would also let a changed key pass; that never happens here, so it means as much as accept-new.
    if settings.host_key_policy:
        return settings.host_key_policy == "accept-new"
    return config in ("accept-new", "no", "off", "false")
