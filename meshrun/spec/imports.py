"""Owns: which imports of a script may be made once a node, before its workers are forked: `--preload auto`.
Must not: import or run anything, or guess: a module is known here, or it stays the script's own.
Called by: cli.script."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

# Packages that start no thread and touch no device when they are imported (looked at one by one, with one thread for
# OpenMP: CHANGELOG has the versions). Not here: pandas and pyarrow, which do start one.
KNOWN = frozenset(
    [
        "accelerate",
        "cv2",
        "einops",
        "h5py",
        "huggingface_hub",
        "lightning",
        "matplotlib",
        "megatron",
        "numpy",
        "omegaconf",
        "PIL",
        "polars",
        "pydantic",
        "pytorch_lightning",
        "safetensors",
        "scipy",
        "sentencepiece",
        "sympy",
        "tiktoken",
        "tokenizers",
        "torch",
        "torchmetrics",
        "tqdm",
        "transformers",
        "yaml",
    ]
)


def find_early_imports(source: bytes, shadowed: Callable[[str], bool]) -> tuple[str, ...]:
    """What `--preload` means by `auto` for this script: `module?` or `module:name?`, each "if it can be imported".

    Only the imports that the script opens with: behind any other statement, variables may have been set that a module
    reads as it is imported. `shadowed`: whether a name stands for a file of the user's own, beside the script."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return ()  # node 0's python says what is wrong with it
    found = [name for statement in _opening(tree) for name in _names(statement)]
    return tuple(dict.fromkeys(name for name in found if _top(name) in KNOWN and not shadowed(_top(name))))


def _opening(tree: ast.Module) -> Iterator[ast.stmt]:
    for at, statement in enumerate(tree.body):
        is_docstring = at == 0 and isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        if not (is_docstring or isinstance(statement, (ast.Import, ast.ImportFrom))):
            return
        yield statement


def _names(statement: ast.stmt) -> Iterator[str]:
    if isinstance(statement, ast.Import):
        yield from (f"{alias.name}?" for alias in statement.names)
    elif isinstance(statement, ast.ImportFrom) and statement.module and not statement.level:
        yield from (f"{statement.module}:{alias.name}?" for alias in statement.names if alias.name != "*")


def _top(name: str) -> str:
    return name.partition(":")[0].rstrip("?").partition(".")[0]
