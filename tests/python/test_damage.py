# SPDX-License-Identifier: Apache-2.0
"""Damaged files: found, named, and nothing else lost."""

from __future__ import annotations

import errno
import resource

import numpy as np
import pytest

import stepwell


def flip(path, needle: bytes) -> None:
    """Flips one bit in the middle of `needle`, which one segment has exactly once."""
    for segment in sorted((path / "segments").iterdir()):
        data = segment.read_bytes()
        at = data.find(needle)
        if at >= 0:
            with segment.open("r+b") as file:
                file.seek(at + len(needle) // 2)
                byte = data[at + len(needle) // 2]
                file.seek(at + len(needle) // 2)
                file.write(bytes([byte ^ 1]))
            return
    raise AssertionError("the bytes are in no segment")


def test_one_flipped_bit(path):
    rng = np.random.default_rng(0)
    tree = {name: rng.integers(0, 255, 50_000).astype(np.uint8) for name in ("a", "b", "c")}
    with stepwell.open(path, codec="raw") as store:
        store.save(7, {"params": tree})
        store.save(8, {"params": {"d": 1}})
    flip(path, tree["b"][20_000:20_100].tobytes())
    with stepwell.open(path) as store:
        report = store.verify()
        assert not report.ok
        (problem,) = report.problems
        assert (problem.step, problem.path) == (7, "params/b")
        assert problem.file.endswith(".seg") and problem.offset >= 0
        with pytest.raises(stepwell.CorruptionError) as info:
            store.load(7, "params/b")
        text = str(info.value)
        assert ".seg" in text and "7" in text and "params/b" in text
        assert isinstance(info.value, OSError)
        with pytest.raises(stepwell.CorruptionError):
            store.load(7)
        for name in ("a", "c"):
            np.testing.assert_array_equal(store.load(7, f"params/{name}"), tree[name])
        assert store.load(8) == {"params": {"d": 1}}
        assert store.steps() == [7, 8]


@pytest.mark.parametrize("mode", ["r", "a"])
def test_what_cannot_be_read_is_not_damage(path, mode):
    """No file can be opened any more; a writer may have some open already, of its index's doing."""
    for step in range(3):  # each session has segments of its own
        with stepwell.open(path, codec="raw") as store:
            store.save(step, {"w": np.arange(50_000.0) + step, "b": np.arange(20_000.0)})
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with stepwell.open(path, mode=mode) as store:
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
        try:
            problems = store.verify().problems
        except stepwell.StorageError as error:  # not even a way to begin
            problems = []
            assert error.errno == errno.EMFILE
        else:
            assert problems or mode == "a"
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert all(problem.unchecked for problem in problems), problems
        assert all("Too many open files" in problem.message for problem in problems)
        assert store.verify().ok


def test_a_lost_index_comes_back(path):
    import shutil

    with stepwell.open(path) as store:
        for step in range(40):  # of fewer there is no index
            store.save(step, {"x": np.full(100, step)}, metrics={"loss": float(step)})
    shutil.rmtree(path / "index")
    with stepwell.open(path) as store:
        assert store.steps() == [*range(40)]
        assert store.load(1)["x"][0] == 1
        assert store.best("loss", mode="min") == 0
        store.save(40, {"x": np.full(100, 40)}).result()
    assert any((path / "index").iterdir())
