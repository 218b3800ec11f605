"""Owns: fixtures for the whole test suite.
Must not: hold test logic.
Called by: pytest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from typing import Any

import pytest

from tests.cluster import Cluster, LoopbackCluster, NamespaceCluster, can_make_namespaces

MakeCluster = Callable[..., Cluster]


@cache
def _namespaces() -> bool:
    return can_make_namespaces()


def _make_clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MakeCluster]:
    """`make(n, needs=, sshd=, shell=, shared=)`; `needs="namespaces"` skips, saying so, where there are none."""
    with ExitStack() as stack:

        def make(n: int, needs: str = "", shared: Any = (), **kwargs: Any) -> Cluster:
            if not _namespaces():
                if needs == "namespaces" or kwargs.get("shell"):
                    pytest.skip("needs root and namespaces (crash, cut, private files)")
                made: Cluster = LoopbackCluster(n, **kwargs)
            else:
                made = NamespaceCluster(n, shared=[tmp_path_factory.getbasetemp(), *shared], **kwargs)
            stack.callback(made.close)
            return made

        yield make


@pytest.fixture
def make_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MakeCluster]:
    """A factory whose clusters end with the test."""
    yield from _make_clusters(tmp_path_factory)


@pytest.fixture(scope="module")
def make_module_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MakeCluster]:
    """A factory whose clusters end with the test file."""
    yield from _make_clusters(tmp_path_factory)


@pytest.fixture(scope="module")
def cluster(make_module_cluster: MakeCluster) -> Cluster:
    """Four hosts for a whole test file. A test that crashes or cuts one makes its own with `make_cluster`."""
    return make_module_cluster(4)
