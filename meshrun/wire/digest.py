"""Owns: sha256 without OpenSSL, whose loading costs 2.5 ms and a fifth of an agent's memory.
Must not: do I/O.
Called by: cli.script, agent.installed (the script's content hash, the same on both sides), plan.placement."""

from __future__ import annotations

try:
    from _sha2 import sha256  # type: ignore[import-not-found, unused-ignore]  # Python 3.12 and later
except ImportError:
    try:
        from _sha256 import sha256  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        from hashlib import sha256


def hash_content(data: bytes) -> str:
    """sha256 in hexadecimal."""
    return str(sha256(data).hexdigest())
