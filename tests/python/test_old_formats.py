# SPDX-License-Identifier: Apache-2.0
"""Stores that earlier formats wrote are read and continued.

stores/format-4.tar.xz: made on 2026-11-29 by the last version that wrote format 4. It has a store
that was closed, and the same store as a kill leaves it.
"""

import tarfile
from pathlib import Path

import numpy as np
import pytest

import stepwell

ARCHIVE = Path(__file__).parent / "stores" / "format-4.tar.xz"


def small(k):
    return {"params": {f"layer_{i}": {"kernel": np.arange(24, dtype="f4").reshape(4, 6) * (k + i),
                                      "bias": np.full(3, k, "i8")} for i in range(8)},
            "opt": (np.float32(k), [k, "text", None, True])}


def many(k):
    """Enough leaves for records frames of their own."""
    return {f"leaf_{i:03}": np.full(2, i + k, "f8") for i in range(400)}


def weights(step):
    """Stored as differences to the step before."""
    array = np.zeros((64, 1024), "f4")
    for k in range(5, step + 1):
        array[k, :7] += k
    return {"w": array}


STEPS = {2: small(2), 3: small(3), 4: many(4), **{k: weights(k) for k in range(5, 9)}}


def expect_all(store):
    assert store.steps() == [*STEPS]
    for step, tree in STEPS.items():
        found = stepwell.digest(store.load(step))
        assert found == stepwell.digest(tree), step
    assert store.verify().problems == []


@pytest.fixture(params=["closed", "live"])
def old(request, tmp_path):
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / request.param


def versions(store):
    page = (store / "STEPWELL").read_bytes()
    return {int.from_bytes(page[at + 8:at + 12], "little") for at in range(0, 12288, 4096)}


def test_a_store_of_format_4_is_read(old):
    assert versions(old) == {4}
    with stepwell.open(old, mode="r") as store:
        expect_all(store)
        assert store[2].pinned and store[3].taint == "diverged"
        assert store[2].metrics == {"loss": 0.5} and store[2].metadata == {"k": 2}
        assert store.latest == 8
    assert versions(old) == {4}


def test_a_store_of_format_4_goes_on(old):
    with stepwell.open(old, delta=True) as store:
        expect_all(store)
        last = weights(8)["w"]
        last[0, :9] = 1.5
        store.save(9, {"w": last}).result()
        store.save(10, many(10)).result()
        store.delete(5)
        with stepwell.open(store.branch("trial", 8)) as branch:
            assert (branch.load(8)["w"] == weights(8)["w"]).all()
    assert versions(old) == {5}
    with stepwell.open(old) as store:
        assert store.steps() == [2, 3, 4, 6, 7, 8, 9, 10]
        assert (store.load(9)["w"] == last).all()
        for step in (2, 3, 4, 6, 7, 8):
            assert stepwell.digest(store.load(step)) == stepwell.digest(STEPS[step]), step
        store.reclaim()
        assert stepwell.digest(store.load(10)) == stepwell.digest(many(10))
        assert store.verify().problems == []
