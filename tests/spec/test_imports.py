"""Owns: which of a script's imports `--preload auto` takes.
Must not: import what it names.
Called by: pytest."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshrun.spec.imports import find_early_imports

CASES = {
    "import torch": ("torch?",),
    "import torch.nn as nn, numpy as np": ("torch.nn?", "numpy?"),
    "from torch.distributed.fsdp import fully_shard, FSDPModule": (
        "torch.distributed.fsdp:fully_shard?",
        "torch.distributed.fsdp:FSDPModule?",
    ),
    '"""Docstring."""\nfrom __future__ import annotations\nimport os\nimport yaml': ("yaml?",),
    "import torch\nimport torch": ("torch?",),
    "import pandas\nimport mypackage": (),
    "from transformers import *": (),
    "from . import torch\nfrom .torch import x": (),
    "import os\nos.environ['X'] = '1'\nimport torch": (),
    "import numpy\nif True:\n    import torch": ("numpy?",),
    "x = 1\n'''not a docstring'''\nimport torch": (),
    "def broken(:": (),
    "": (),
}


@pytest.mark.parametrize("source", CASES)
def test_what_a_script_opens_with(source: str) -> None:
    assert find_early_imports(source.encode(), lambda name: False) == CASES[source]


def test_a_file_beside_the_script_is_what_is_meant() -> None:
    assert find_early_imports(b"import yaml, numpy", lambda name: name == "yaml") == ("numpy?",)


@given(st.binary(max_size=200))
def test_anything_is_read(source: bytes) -> None:
    assert isinstance(find_early_imports(source, lambda name: False), tuple)
