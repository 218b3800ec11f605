"""Owns: a rank that imports torch and leaves.
Must not: do anything else.
Called by: bench.start."""

import torch

assert torch.__version__
