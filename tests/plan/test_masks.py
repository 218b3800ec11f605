"""Owns: tests of reading masks: never more than the pool, in its order; the same with and without torch's own reader.
Must not: look at a device.
Called by: pytest."""

from __future__ import annotations

import os
from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from torch.cuda import _parse_visible_devices

from meshrun.plan.masks import masked_devices
from meshrun.wire.masks import LAYERS, Have, check_chosen, counted, read_pool

UUIDS = tuple(f"GPU-{letter}{letter}{number}" for letter in "ab" for number in range(2))
HAVE = Have(tuple("0123"), tuple("0123"), UUIDS)
WORDS = [
    *"0123459",
    "-1",
    "",
    " 2",
    "x",
    "1x",
    "+1",
    "0.1",
    "NoDevFiles",
    "GPU-",
    "GPU-a",
    "GPU-aa0",
    "GPU-bb1",
    "MIG-c",
]
MASKS = st.lists(st.sampled_from(WORDS), max_size=6).map(",".join)
ENVS = st.dictionaries(st.sampled_from([*{n for layers in LAYERS.values() for ns in layers for n in ns}]), MASKS)


@example({"ZE_AFFINITY_MASK": "1,0"}, "intel", None)
@given(ENVS, st.sampled_from([*LAYERS]), st.one_of(st.none(), st.just(HAVE), st.integers(0, 9).map(counted)))
def test_a_pool_is_never_wider_than_what_there_is_nor_in_another_order(
    env: dict[str, str], vendor: str, have: Have | None
) -> None:
    pool = read_pool(vendor, env, have)
    in_force = [name for names in LAYERS[vendor] for name in names if name in env]
    assert (pool is None) == (not in_force)
    if pool is None:
        return
    assert pool.name in in_force and f"{pool.name}={env[pool.name]}" in pool.text
    assert len(set(pool.ids)) == len(pool.ids) <= len(env[pool.name].split(","))
    assert have is None or len(pool.ids) <= max(len(have.ids), len(have.numbers))
    assert not (pool.problem and pool.ids)
    if vendor == "intel":
        assert list(pool.ids) == sorted(pool.ids, key=float), "a filter: the driver's order"
        return
    spelled = [word.strip().lstrip("+") for word in env[pool.name].split(",")]
    places = [_find(one, spelled) for one in pool.ids]
    assert places == sorted(places), "the mask's own order"


def _find(one: str, spelled: Sequence[str]) -> int:
    """Where an id stands in a mask; `0.1` is not where 0 does, but `1x` may be where 1 does."""
    if one in spelled:
        return spelled.index(one)
    return next(at for at, word in enumerate(spelled) if word.startswith(one))


@given(MASKS, st.integers(0, 5))
def test_a_mask_within_a_mask_never_adds(inner: str, number: int) -> None:
    outer = ",".join(map(str, range(number)))
    env = {"ROCR_VISIBLE_DEVICES": outer, "HIP_VISIBLE_DEVICES": inner}
    pool = read_pool("amd", env, counted(4))
    assert pool is not None
    assert len(pool.ids) <= min(number, 4)


@given(MASKS, st.lists(st.sampled_from(["0", "1", "2", "7", "GPU-aa0", "GPU-a", "GPU-bb"]), min_size=1, unique=True))
def test_chosen_devices_are_never_more_than_the_pool(mask: str, chosen: Sequence[str]) -> None:
    pool = read_pool("nvidia", {"CUDA_VISIBLE_DEVICES": mask}, HAVE)
    assert pool is not None
    if not check_chosen(chosen, pool.ids, None, "x"):
        assert len(chosen) <= len(pool.ids)


@given(
    st.lists(st.sampled_from([word for word in WORDS if word != "NoDevFiles"]), min_size=1, max_size=6).map(",".join)
)
def test_torch_counts_the_same(mask: str) -> None:
    """torch's own reader of CUDA_VISIBLE_DEVICES, but that a UUID must be one of the GPUs'."""
    pool = read_pool("nvidia", {"CUDA_VISIBLE_DEVICES": mask})
    before = os.environ.get("CUDA_VISIBLE_DEVICES")
    os.environ["CUDA_VISIBLE_DEVICES"] = mask
    try:
        theirs = _parse_visible_devices()
    finally:
        del os.environ["CUDA_VISIBLE_DEVICES"]
        if before is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = before
    assert pool is not None
    assert list(pool.ids) == [str(one).strip() for one in theirs]


@pytest.mark.parametrize(
    ("environ", "device", "name", "ids"),
    [
        ({"CUDA_VISIBLE_DEVICES": "5,7"}, "auto", "CUDA_VISIBLE_DEVICES", ("5", "7")),
        ({"CUDA_VISIBLE_DEVICES": "5,7", "ROCR_VISIBLE_DEVICES": "1"}, "cuda", "CUDA_VISIBLE_DEVICES", ("5", "7")),
        ({"ROCR_VISIBLE_DEVICES": "6,7"}, "auto", "ROCR_VISIBLE_DEVICES", ("6", "7")),
        ({"ROCR_VISIBLE_DEVICES": "6,7", "HIP_VISIBLE_DEVICES": "1"}, "auto", "HIP_VISIBLE_DEVICES", ("1",)),
        ({"CUDA_VISIBLE_DEVICES": "0", "ZE_AFFINITY_MASK": "1"}, "xpu", "ZE_AFFINITY_MASK", ("1",)),
        ({"ASCEND_RT_VISIBLE_DEVICES": "4"}, "auto", "ASCEND_RT_VISIBLE_DEVICES", ("4",)),
        ({"HABANA_VISIBLE_MODULES": "4"}, "hpu", "HABANA_VISIBLE_MODULES", ("4",)),
        ({"HABANA_VISIBLE_MODULES": "4"}, "npu", "", ()),
        ({"CUDA_VISIBLE_DEVICES": "0"}, "cpu", "", ()),
        ({}, "auto", "", ()),
    ],
)
def test_which_mask_counts_where_no_device_is_looked_at(
    environ: dict[str, str], device: str, name: str, ids: tuple[str, ...]
) -> None:
    pool = masked_devices(environ, device)
    assert ((pool.name, pool.ids) if pool else ("", ())) == (name, ids)
