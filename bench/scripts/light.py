"""Owns: a script that needs nothing.
Must not: import torch.
Called by: bench.parts."""

import os

print(os.environ["RANK"])
