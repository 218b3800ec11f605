"""Owns: a script that needs nothing.
Must not: import torch.
Called by: bench.start."""

import os

print(os.environ.get("RANK") or os.environ["OMPI_COMM_WORLD_RANK"])
