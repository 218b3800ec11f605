"""Owns: every keyword of OpenSSH's client configuration: what meshrun makes of it, and which values OpenSSH takes.
Must not: know a host, read files, or decide what a value leads to (ssh_target.py does).
Called by: launch.ssh_config, ssh_target; docs and tests read the table."""

from __future__ import annotations

from enum import Enum

from meshrun.dataclass import dataclass
from meshrun.launch.ssh_words import parse_time

REMEDY = "use the system's ssh: --ssh-client openssh"
CORRECT = "correct it, or name another file with --ssh-config"


class Use(Enum):
    """What meshrun makes of a keyword."""

    HONOURED = "honoured"
    HARMLESS = "harmless"  # nothing that meshrun does depends on it
    NOTED = "noted"  # ignored, and the user might miss it: said once a run
    REFUSED = "refused"  # ignoring it would make the connection another one, or a less safe one


@dataclass(frozen=True, slots=True)
class Keyword:
    """`name` as the manual spells it, `kind` the form of its value, `unless` the values with which nothing is said."""

    name: str
    use: Use
    kind: str
    why: str = ""
    unless: frozenset[str] = frozenset({"no", "false", "none", "off"})


_YES_NO = "yes no true false"
_CHOICES = {
    "flag": _YES_NO,
    "ask": f"{_YES_NO} ask",
    "family": "any inet inet6",
    "master": f"{_YES_NO} auto ask autoask",
    "strict": f"{_YES_NO} ask off accept-new",
    "tunnel": f"{_YES_NO} ethernet point-to-point",
    "tty": f"{_YES_NO} force auto",
    "session": "none subsystem default",
    "canonical": f"{_YES_NO} always",
    "pubkey": f"{_YES_NO} unbound host-bound",
    "compression": "yes no",
    "weak": f"{_YES_NO} no-pq-kex",
}

# "Name:kind" words. Kinds: `_CHOICES`, and number, time, port, word, words (one or more), list (words, or `none`
# alone), any (not looked at), text and jump (the rest of the line as it stands).
_HONOURED = """
    Host:words Match:words Include:words IgnoreUnknown:word Tag:word RefuseConnection:word HostName:word
    User:word Port:port AddressFamily:family BindAddress:word BindInterface:word ConnectTimeout:time
    TCPKeepAlive:flag Compression:compression ProxyJump:jump ProxyCommand:text CanonicalizeHostname:canonical
    CanonicalDomains:list CanonicalizeMaxDots:number CanonicalizeFallbackLocal:flag
    CanonicalizePermittedCNAMEs:list IdentityFile:word CertificateFile:word IdentitiesOnly:flag
    IdentityAgent:word PubkeyAuthentication:pubkey PreferredAuthentications:word PubkeyAcceptedAlgorithms:word
    RequiredRSASize:number UserKnownHostsFile:list GlobalKnownHostsFile:list StrictHostKeyChecking:strict
    HostKeyAlias:word HashKnownHosts:flag NoHostAuthenticationForLocalhost:flag RevokedHostKeys:list
    HostKeyAlgorithms:word CASignatureAlgorithms:word Ciphers:word MACs:word KexAlgorithms:word SetEnv:words
    SendEnv:words
"""
_HARMLESS = """
    AddKeysToAgent:any BatchMode:flag ChannelTimeout:any ClearAllForwardings:flag ConnectionAttempts:number
    ControlMaster:master ControlPath:word ControlPersist:word EnableEscapeCommandline:flag
    EnableSSHKeysign:flag EscapeChar:word ExitOnForwardFailure:flag FingerprintHash:word
    ForkAfterAuthentication:flag ForwardX11:flag ForwardX11Timeout:time ForwardX11Trusted:flag
    GatewayPorts:flag GSSAPIAuthentication:flag GSSAPIClientIdentity:word GSSAPIDelegateCredentials:flag
    GSSAPIKexAlgorithms:word GSSAPIKeyExchange:flag GSSAPIRenewalForcesRekey:flag GSSAPIServerIdentity:word
    GSSAPITrustDns:flag HostbasedAcceptedAlgorithms:word HostbasedAuthentication:flag IPQoS:any
    KbdInteractiveAuthentication:flag KbdInteractiveDevices:word LogLevel:word LogVerbose:list
    NumberOfPasswordPrompts:number ObscureKeystrokeTiming:any PasswordAuthentication:flag
    PermitRemoteOpen:list Protocol:any RekeyLimit:any RequestTTY:tty SecurityKeyProvider:word
    ServerAliveCountMax:number ServerAliveInterval:time SessionType:session StdinNull:flag
    StreamLocalBindMask:word StreamLocalBindUnlink:flag SyslogFacility:word TunnelDevice:word
    UpdateHostKeys:ask VersionAddendum:text VisualHostKey:flag WarnWeakCrypto:weak XAuthLocation:word
    LocalCommand:text
"""
_OBSOLETE = """
    Cipher:any FallBackToRsh:any GlobalKnownHostsFile2:any RhostsAuthentication:any UserKnownHostsFile2:any
    UseRoaming:any UseRsh:any UsePrivilegedPort:any AFSTokenPassing:any KerberosAuthentication:any
    ProtocolKeepAlives:any SetupTimeOut:any UseBlacklistedKeys:any
    KerberosTgtPassing:any RSAAuthentication:any RhostsRSAAuthentication:any CompressionLevel:any
"""  # deprecated, or compiled out nowadays: OpenSSH reads over them
_IGNORED = (
    (Use.NOTED, "ForwardAgent", "word", "no agent is forwarded to the nodes"),
    (Use.NOTED, "LocalForward", "any", "no port is forwarded"),
    (Use.NOTED, "RemoteForward", "any", "no port is forwarded"),
    (Use.NOTED, "DynamicForward", "any", "no port is forwarded"),
    (Use.NOTED, "Tunnel", "tunnel", "no tunnel is made"),
    (Use.NOTED, "PermitLocalCommand", "flag", "LocalCommand is not run"),
    (Use.NOTED, "RemoteCommand", "text", "meshrun runs its own command"),
    (Use.NOTED, "VerifyHostKeyDNS", "ask", "host keys are not looked up in DNS; known_hosts decides"),
    (Use.NOTED, "PKCS11Provider", "word", "keys on smart cards are not used unless the agent has them"),
    (Use.REFUSED, "CheckHostIP", "flag", "a host's address is not checked in known_hosts"),
    (Use.REFUSED, "KnownHostsCommand", "text", "host keys come from known_hosts files only"),
    (Use.REFUSED, "ProxyUseFdpass", "flag", "a ProxyCommand cannot hand over its descriptor"),
)


def _make_table() -> dict[str, Keyword]:
    table = {}
    for use, text in ((Use.HONOURED, _HONOURED), (Use.HARMLESS, _HARMLESS), (Use.HARMLESS, _OBSOLETE)):
        for name, _, kind in (word.partition(":") for word in text.split()):
            table[name.lower()] = Keyword(name, use, kind)
    return table | {name.lower(): Keyword(name, use, kind, why) for use, name, kind, why in _IGNORED}


KEYWORDS = _make_table()

ALIASES = {
    "challengeresponseauthentication": "kbdinteractiveauthentication",
    "skeyauthentication": "kbdinteractiveauthentication",
    "tisauthentication": "kbdinteractiveauthentication",
    "dsaauthentication": "pubkeyauthentication",
    "hostbasedkeytypes": "hostbasedacceptedalgorithms",
    "identityfile2": "identityfile",
    "keepalive": "tcpkeepalive",
    "pubkeyacceptedkeytypes": "pubkeyacceptedalgorithms",
    "smartcarddevice": "pkcs11provider",
    "rsaminsize": "requiredrsasize",
}


def spell(keyword: str) -> str:
    """`identityfile` → `IdentityFile`, for messages."""
    return KEYWORDS[keyword].name if keyword in KEYWORDS else keyword


def check_value(keyword: str, words: tuple[str, ...]) -> str:
    """What OpenSSH would say against this value, "" if it takes it."""
    kind = KEYWORDS[keyword].kind
    if kind in ("any", "text", "jump"):
        return ""
    if not words or not words[0]:
        return "a value is missing"
    if kind == "list" and len(words) > 1 and "none" in [word.lower() for word in words]:
        return "none stands alone"
    if kind in ("words", "list"):
        return "" if all(words) or keyword == "match" else "a value is empty"
    if len(words) > 1:
        return f"one value only; {words[1]!r} is too much"
    return _check_word(kind, words[0])


def _check_word(kind: str, word: str) -> str:
    if kind in _CHOICES and word.lower() not in _CHOICES[kind].split():
        return f"{word!r} is none of {', '.join(_CHOICES[kind].split())}"
    if kind == "number" and not (word.lstrip("+-").isdecimal() and word.isascii()):
        return f"{word!r} is not a number"
    if kind == "time" and word != "none" and parse_time(word) is None:
        return f"{word!r} is not a time"
    if kind == "port" and not (word.isdecimal() and word.isascii() and 0 < int(word) < 65536):
        return f"a port is 1 to 65535, not {word!r}"
    return ""
