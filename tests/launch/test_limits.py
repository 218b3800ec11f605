"""Owns: the launcher's limit of open files: left alone, raised, or named where it cannot be.
Must not: change the limits of the tests' own process.
Called by: pytest."""

import subprocess
import sys

import pytest

CODE = """
import resource, sys
from meshrun.errors import ClusterError
from meshrun.launch.limits import raise_file_limit
soft, hard, lines = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
try:
    raise_file_limit(lines)
except ClusterError as error:
    print(error)
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def limits(*numbers):
    argv = [sys.executable, "-c", CODE, *map(str, numbers)]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.mark.parametrize(
    ("soft", "hard", "lines", "after"),
    [
        (1024, 4096, 4, "1024 4096"),  # enough: what is started here inherits it unchanged
        (1024, 4096, 500, "2064 4096"),
        (256, 2000, 600, "2000 2000"),
    ],
)
def test_raised_as_far_as_the_lines_need(soft, hard, lines, after):
    assert limits(soft, hard, lines) == [after]


def test_a_hard_limit_that_is_too_low_is_named():
    said, after = limits(256, 1024, 1000)
    assert "1000 hosts need 3064 open files here, and the hard limit is 1024" in said and "ulimit -Hn" in said
    assert after == "256 1024"
