# SPDX-License-Identifier: Apache-2.0
"""Messages name what the caller can do, in the caller's words; counts and articles are English."""

from __future__ import annotations

import os

import jax
import numpy as np
import pytest
from group_runs import run

import stepwell
from stepwell._runtime.text import counted, with_article


@pytest.mark.parametrize("make", [
    lambda path: stepwell.Store(path), lambda path: stepwell.Store(path, mode="r"),
    lambda path: stepwell.Store(path=path), lambda path: stepwell.Store(),
    lambda path: stepwell.Store(path, "r", None, 1.0, "shared")])
def test_a_store_that_is_constructed_says_open(path, make):
    with pytest.raises(stepwell.InvalidArgumentError, match=r"stepwell\.open\(path\) returns"):
        make(path)  # and nothing is reported when what was made goes away
    assert not path.exists()


def test_create_false_makes_nothing(tmp_path):
    typo = tmp_path / "typo" / "deep" / "run"
    for options in ({"create": False}, {"mode": "r"}, {"mode": "r", "create": False}):
        with pytest.raises(stepwell.StoreNotFoundError) as info:
            stepwell.open(typo, **options)
        assert str(info.value) == f"{typo}: there is no such store; there is no {tmp_path}/typo"
    with pytest.raises(stepwell.StoreNotFoundError, match="run: there is no such store$"):
        stepwell.open(tmp_path / "run", create=False)
    assert os.listdir(tmp_path) == []
    with pytest.raises(stepwell.InvalidArgumentError, match="create must be True or False"):
        stepwell.open(typo, create=0)
    with stepwell.open(typo) as store:
        store.save(1, {"x": 1}).result()
    with stepwell.open(typo, create=False) as store:
        assert store.load() == {"x": 1}


def test_create_false_of_several_processes(tmp_path):
    for process in run(tmp_path / "made", [["open", {}], ["save", {"step": 1}], ["close", {}]]):
        assert process.gave(0) == [] and process.status == 0
    # More processes than before make the parts that they need.
    for process in run(tmp_path / "made", [["open", {"create": False}], ["save", {"step": 2}],
                                           ["steps", {}], ["close", {}]], processes=4):
        assert process.gave(2) == [1, 2]
    for disks in ("shared", "local"):
        for process in run(tmp_path / "typo", [["open", {"create": False, "disks": disks}]]):
            assert "there is no such store" in process.lines[0]["text"], process
    assert not (tmp_path / "typo").exists()


def test_a_store_for_reading_says_how_to_change_it(store, path):
    store.save(1, {"x": 1}).result()
    with stepwell.open(path, mode="r") as reader:
        for change in (lambda: reader.save(2, {"x": 1}), lambda: reader.delete([1]),
                       lambda: reader.pin(1), reader.reclaim):
            with pytest.raises(stepwell.PermissionDeniedError, match='mode="a" to change it'):
                change()


def test_counts_and_articles(store):
    assert [counted(n, "leaf") for n in (0, 1, 2000)] == ["0 leaves", "1 leaf", "2,000 leaves"]
    assert [counted(n, "axis") for n in (1, 2)] == ["1 axis", "2 axes"]
    assert [with_article(noun) for noun in ("int64", "uint8", "array", "dict", "UserDict")] == [
        "an int64", "a uint8", "an array", "a dict", "a UserDict"]
    store.save(1, {"x": np.ones(3)}).result()
    assert repr(store.tree(1)).startswith("step 1: 1 leaf, 24 B")
    with pytest.raises(IndexError, match="the array has 1 axis, not 2"):
        store[1]["x"][0, 0]
    with pytest.raises(stepwell.InvalidArgumentError, match="is an array float64"):
        store.save(2, {"x": 1}, metrics={"a": np.ones(2)})
    with pytest.raises(stepwell.MismatchError, match="spec.*is of 2 axes, and the array has 1|"
                                                     "is of 2 axes, and the array has 1"):
        store.load(1, mesh={"a": 1}, specs=jax.sharding.PartitionSpec("a", None))


def test_a_step_that_is_there(store):
    store.save(1, {"x": 1}).result()
    with pytest.raises(stepwell.StepExistsError, match='if_exists "replace" replaces it'):
        store.save(1, {"x": 2})
