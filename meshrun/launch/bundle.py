"""Owns: the archive that travels to every node, as bytes made from bytes.
Must not: read files or know what is in them (sources.py does); the same input gives the same bytes.
Called by: launch.sources."""

from __future__ import annotations

import io
from collections.abc import Mapping

# The oldest time a zip can hold: an archive must not depend on when it was made.
_EPOCH = (1980, 1, 1, 0, 0, 0)


def make_bundle(files: Mapping[str, bytes]) -> bytes:
    """A zip of `files` (archive name → content) that `zipimport` reads; deterministic."""
    import zipfile  # 3 ms that only the first run after a change needs

    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o600 << 16
            archive.writestr(entry, files[name])
    return buffer.getvalue()
