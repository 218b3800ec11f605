"""Owns: one fork server with torch and one without, each started once per test module.
Must not: start workers.
Called by: pytest."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.worker.player import Player


@pytest.fixture(scope="module")
def player(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Player]:
    """A fork server that has imported torch."""
    started = Player(tmp_path_factory.mktemp("node"), "torch")
    started.start()
    yield started
    started.close()


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Player]:
    """A fork server that has imported nothing of the user's: milliseconds per worker."""
    started = Player(tmp_path_factory.mktemp("bare"), "")
    started.start()
    yield started
    started.close()
