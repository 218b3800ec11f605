"""Owns: the known name that a misspelt one is most like, for the hints of refusals.
Must not: be asked where nothing is refused: a start does not pay for the import of difflib.
Called by: whoever refuses a name."""

from __future__ import annotations

from collections.abc import Iterable

_MOST = 80  # letters of a word that are looked at


def find_near(word: str, known: Iterable[str], cutoff: float = 0.6) -> list[str]:
    """The nearest of `known`, as a list of one, or none that is as near as `cutoff` (0 to 1)."""
    import difflib

    return difflib.get_close_matches(word[:_MOST], list(known), 1, cutoff)
