# SPDX-License-Identifier: Apache-2.0
"""Iterators of Grain beside the state: a run that resumes gets the batches that it would have got.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import grain
import jax.numpy as jnp
import numpy as np
import pytest
from orbax.checkpoint import v1 as real

import stepwell
from stepwell.compat import orbax_v1 as ocp


def make_dataset() -> Any:
    return iter(grain.MapDataset.range(100).seed(7).shuffle().repeat().batch(4)
                .to_iter_dataset())


def make_mixture() -> Any:
    parts = [grain.MapDataset.range(start, start + 50).shuffle(seed=start)
             for start in (0, 100)]
    return iter(grain.MapDataset.mix(parts, weights=[0.25, 0.75])
                .repeat().batch(5).to_iter_dataset())


def make_loader() -> Any:
    sampler = grain.samplers.IndexSampler(100, shuffle=True, seed=3, num_epochs=3,
                                          shard_options=grain.sharding.NoSharding())
    return iter(grain.DataLoader(data_source=grain.sources.RangeDataSource(0, 100, 1),
                                 sampler=sampler, worker_count=0,
                                 operations=[grain.transforms.Batch(4)]))


MAKERS = pytest.mark.parametrize("make", [make_dataset, make_mixture, make_loader])


@MAKERS
def test_a_resumed_iterator_goes_on_with_the_same_batches(
        make: Callable[[], Any], path: Path) -> None:
    batches = [np.asarray(batch) for batch, _ in zip(make(), range(14), strict=False)]
    with stepwell.open(path) as store:
        data = make()
        for step in range(6):
            state = {"last": jnp.asarray(next(data))}
            store.save(step, state, items={"data": data})
        assert np.array_equal(next(data), batches[6])  # a save takes nothing from the iterator
    for step in (5, 2):
        with stepwell.open(path) as store:
            resumed = make()
            items = store.load(step, items=["state", "data"],
                               like={"state": state, "data": resumed})
        assert items["data"] is resumed
        assert np.array_equal(items["state"]["last"], batches[step])
        for expected in batches[step + 1:]:
            assert np.array_equal(next(resumed), expected)


@MAKERS
def test_an_iterator_is_a_leaf_of_a_state(make: Callable[[], Any], path: Path) -> None:
    """A training loop keeps the iterator in its state: load_or gives the state with the iterator
    where it was."""
    def run(steps: int, store: stepwell.Store) -> list[Any]:
        init = {"sum": jnp.zeros((), jnp.int32), "data": make()}
        state, start = store.load_or(init)
        seen = []
        for step in range(start, steps):
            batch = next(state["data"])
            seen.append(np.asarray(batch))
            state["sum"] = state["sum"] + int(np.sum(batch))
            store.save(step, state)
        return [*seen, int(state["sum"])]

    with stepwell.open(path) as store:
        first = run(4, store)
    with stepwell.open(path) as store:
        second = run(9, store)
    with stepwell.open(path.with_name("whole")) as store:
        whole = run(9, store)
    assert np.array_equal(np.concatenate(first[:-1] + second[:-1]), np.concatenate(whole[:-1]))
    assert second[-1] == whole[-1]


def make_map_dataset() -> Any:
    return iter(grain.MapDataset.range(100).seed(7).shuffle().repeat().batch(4))


@pytest.mark.parametrize("make", [make_dataset, make_mixture, make_loader, make_map_dataset])
@pytest.mark.parametrize("with_checkpointer", [True, False])
def test_an_iterator_is_a_checkpointable_of_orbax_v1(
        make: Callable[[], Any], with_checkpointer: bool, path: Path) -> None:
    """Saved by its own `save`, so that Orbax reads it, and the other way round."""
    batches = [np.asarray(batch) for batch, _ in zip(make(), range(8), strict=False)]
    model = {"w": jnp.arange(4.0)}
    checkpoint = path / "0" if with_checkpointer else path

    def save(library: Any) -> None:
        data = make()
        for _ in range(3):
            next(data)
        items = {"m": model, "data": data}
        if with_checkpointer:
            with library.training.Checkpointer(path) as checkpointer:
                checkpointer.save_checkpointables(0, items, overwrite=True, force=True)
        else:
            library.save_checkpointables(path, items, overwrite=True)

    def check(library: Any) -> None:
        data = make()
        wanted = {"m": model, "data": data}
        if with_checkpointer and library is ocp:
            with library.training.Checkpointer(path) as checkpointer:
                loaded = checkpointer.load_checkpointables(0, wanted)
        else:
            loaded = library.load_checkpointables(checkpoint, wanted)
        assert loaded["data"] is data
        np.testing.assert_array_equal(loaded["m"]["w"], model["w"])
        for expected in batches[3:]:
            assert np.array_equal(next(data), expected)

    save(ocp)
    check(ocp)
    check(real)
    assert list(ocp.load_checkpointables(checkpoint, {"m": None})) == ["m"]
    assert ocp.load(checkpoint)["w"].shape == (4,)  # the tree, not the iterator's files
    if not with_checkpointer:
        save(real)
        check(ocp)
