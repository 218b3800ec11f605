"""Owns: fixtures for the tests of launch.
Must not: hold test logic.
Called by: pytest."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.launch.standin import Line


@pytest.fixture(autouse=True)
def _close_lines() -> Iterator[None]:
    """No test's agents live on into the next."""
    yield
    while Line.made:
        Line.made.pop().fleet.close_all()
