"""Owns: fixtures for the tests of launch.
Must not: hold test logic.
Called by: pytest."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from meshrun.launch.openssh import open_openssh
from meshrun.launch.ssh import open_ssh
from tests.launch import ssh_lines
from tests.launch.standin import Line


@pytest.fixture(params=[open_ssh, open_openssh], ids=["paramiko", "openssh"])
def own(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Runs the test with each client; True where it is paramiko: what only meshrun's own reading of keys can say."""
    monkeypatch.setattr(ssh_lines, "open_client", request.param)
    return request.param is open_ssh


@pytest.fixture(autouse=True)
def _close_lines() -> Iterator[None]:
    """No test's agents live on into the next."""
    yield
    while Line.made:
        Line.made.pop().fleet.close_all()
