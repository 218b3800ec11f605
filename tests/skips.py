"""Owns: the rule that nothing is skipped on a machine that can run it, checked at the end of a test run.
Must not: skip or select tests.
Called by: pytest, loaded by tools/test (`-p tests.skips`)."""

from __future__ import annotations

import os

import pytest

from tests.cluster import can_make_namespaces

# Reasons that stand even on a machine that can make a cluster.
ALLOWED = (
    "needs an accelerator",
    "needs a user that is not root",
    "needs a memory cgroup",
    "needs a pids cgroup",
    "needs a cgroup2",
    "needs the freezer",
    "needs another Python",
)
# `tools/test --frameworks` installs these; without it they are for whoever has them.
PACKAGES = () if os.environ.get("MESHRUN_TEST_FRAMEWORKS") else ("needs the package ",)


def reason_of(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Why a test was skipped, as its author wrote it."""
    place = report.longrepr
    text = place[2] if isinstance(place, tuple) else str(place)
    return text.removeprefix("Skipped: ")


def needless(reports: list[pytest.TestReport]) -> list[str]:
    """Skipped tests that this machine could have run, with their reasons."""
    found = [(report.nodeid, reason_of(report)) for report in reports]
    return [f"{name}: {reason}" for name, reason in found if not reason.startswith((*ALLOWED, *PACKAGES))]


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Turn a passed run with needless skips into a failed one (on the controller of xdist, which has all reports)."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or hasattr(session.config, "workerinput") or not can_make_namespaces():
        return
    names = needless(reporter.stats.get("skipped", []))
    session.config.stash[_NEEDLESS] = names
    if names and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


_NEEDLESS = pytest.StashKey[list[str]]()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say which skips made the run fail."""
    for line in terminalreporter.config.stash.get(_NEEDLESS, []):
        terminalreporter.write_line(f"skipped although this machine can run it: {line}", red=True)
