# SPDX-License-Identifier: Apache-2.0
"""States without a leaf, as of a train step that forgot its `return`."""

from __future__ import annotations

import pathlib
from typing import Any

import equinox as eqx
import jax
import numpy as np
import optax
import orbax.checkpoint as orbax
import pytest
from flax.training import train_state

import stepwell
from stepwell.compat import flax as checkpoints
from stepwell.compat import orbax as v0
from stepwell.compat import orbax_v1 as v1


class _Functions(eqx.Module):
    activation: Any = jax.nn.relu


@pytest.mark.parametrize("state", [{}, [], (), {"a": {}, "b": [None, ()]}, optax.EmptyState(),
                                   {"f": jax.nn.relu}, _Functions(), np.zeros])
def test_a_state_without_a_leaf_is_refused(store: stepwell.Store, state: Any) -> None:
    store.save(1, {"x": 1}).result()
    with pytest.raises(stepwell.InvalidArgumentError, match="without a leaf|is the function zeros"):
        store.save(2, state)
    with pytest.raises(stepwell.InvalidArgumentError, match="without a leaf|is the function zeros"):
        store.save(2, items={"a": state, "b": {}})
    assert store.steps() == [1]


def test_none_names_the_cause(store: stepwell.Store) -> None:
    with pytest.raises(stepwell.InvalidArgumentError, match="the state is None.*`return`"):
        store.save(1, None)
    with pytest.raises(stepwell.InvalidArgumentError, match="items 'a', 'b' are None"):
        store.save(1, items={"a": None, "b": None})
    cycle: list[Any] = []
    cycle += [cycle, cycle]
    with pytest.raises(stepwell.UnsupportedLeafError, match="deep"):
        store.save(1, cycle)


@pytest.mark.parametrize("state", [
    0, False, "", b"", 0.0, np.zeros(0), jax.random.key(0), {"a": {}, "b": 0},
    {"state": optax.EmptyState(), "x": np.zeros(1)}, [None, [0]]])
def test_what_has_one_is_saved(store: stepwell.Store, state: Any) -> None:
    store.save(1, state).result()
    store.save(2, items={"a": state, "b": {}}).result()
    store.save(3, items={"a": stepwell.Json(None)}).result()
    assert store.steps() == [1, 2, 3]


def test_a_draft_takes_parts_without_one(store: stepwell.Store) -> None:
    with store.draft(5) as draft:
        draft.add({"a": {}}).result()
        draft.add({"b": 1}).result()
    assert store.load(5) == {"a": {}, "b": 1}


def test_managers_keep_what_has_leaves(tmp_path: pathlib.Path) -> None:
    options: dict[str, Any] = {"max_to_keep": 1, "enable_async_checkpointing": False}
    for number, module in enumerate((v0, orbax)):  # Orbax accepts it as well
        root = tmp_path / str(number)
        with module.CheckpointManager(
                root, options=module.CheckpointManagerOptions(**options)) as manager:
            manager.save(1, args=module.args.PyTreeSave({"x": np.ones(2)}))
            manager.save(2, args=module.args.PyTreeSave({"x": {}}))
            if module is orbax:
                assert manager.all_steps() == [2]
            else:
                assert manager.all_steps() == [1, 2]
                manager.save(3, args=v0.args.PyTreeSave({"x": np.ones(3)}))
                assert manager.all_steps() == [3]


def test_v1_keeps_what_has_leaves(tmp_path: pathlib.Path) -> None:
    keep = v1.training.preservation_policies.LatestN(1)
    with v1.training.Checkpointer(tmp_path, preservation_policy=keep) as checkpointer:
        checkpointer.save(1, {"x": np.ones(2)}, force=True)
        checkpointer.save(2, {"x": {}}, force=True)
        assert [each.step for each in checkpointer.checkpoints] == [1, 2]
        checkpointer.save(3, {"x": np.ones(2)}, force=True)
        assert [each.step for each in checkpointer.checkpoints] == [3]


def test_flax_keeps_what_has_leaves(tmp_path: pathlib.Path) -> None:
    state = train_state.TrainState.create(apply_fn=jax.nn.relu, params={"w": np.ones(2)},
                                          tx=optax.sgd(0.1))
    checkpoints.save_checkpoint(tmp_path, state, 1)
    checkpoints.save_checkpoint(tmp_path, {}, 2)
    assert checkpoints.available_steps(tmp_path) == [1, 2]
    assert checkpoints.restore_checkpoint(tmp_path, state, 1).step == 0
    checkpoints.save_checkpoint(tmp_path, state, 3)
    assert checkpoints.available_steps(tmp_path) == [3]
