"""Owns: what the store's process prepares before every rank of a run becomes its client.
Must not: import torch.
Called by: pytest."""

import subprocess
import sys

CODE = """
import os, resource
from meshrun.worker.store import prepare_for_clients
os.environ.pop("RES_OPTIONS", None)
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 4096))
prepare_for_clients()
print(*resource.getrlimit(resource.RLIMIT_NOFILE), os.environ["RES_OPTIONS"])
os.environ["RES_OPTIONS"] = "timeout:7"
prepare_for_clients()
print(os.environ["RES_OPTIONS"])
"""


def test_as_many_files_as_may_be_and_no_long_wait_for_names():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["4096 4096 timeout:1 attempts:1", "timeout:7"]
