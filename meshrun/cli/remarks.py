"""Owns: what is no error in a command line, but perhaps not what was meant.
Must not: print, or refuse anything.
Called by: cli.request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from meshrun.plan.environment import find_idle_globs
from meshrun.spec.argv import find_option
from meshrun.spec.options import BY_NAME
from meshrun.spec.settings import Settings, Sources

_WHERE = ("where", "by hand")  # groups of options


def find_remarks(
    settings: Settings, sources: Sources, words: tuple[str, ...], environ: Mapping[str, str]
) -> tuple[str, ...]:
    """A line each; `words` are the script and its arguments."""
    return (*find_idle_globs(settings["env"], environ), *_find_options_behind(settings, sources, words))


def _find_options_behind(settings: Settings, sources: Sources, words: tuple[str, ...]) -> Iterator[str]:
    """Options of ours behind the script, to which they belong there: scripts have such options of their own. So a plan
    tells of any of them; a run only where they would have said which machines take part, and nothing else has."""
    behind = [option for option in map(find_option, words[1:]) if option and sources[option.name] == "default"]
    if not settings["dry-run"]:
        said = any(source != "default" and BY_NAME[name].group in _WHERE for name, source in sources.items())
        behind = [option for option in behind if option.group in _WHERE and not said]
    if behind:
        flags = ", ".join(dict.fromkeys(f"--{option.name}" for option in behind))
        yield f"{flags} behind {words[0]} is for the script; options of meshrun stand before it"
