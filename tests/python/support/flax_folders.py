# SPDX-License-Identifier: Apache-2.0
"""Directories of Flax's checkpoints for tests, and what is saved there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import flax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax.training.train_state import TrainState


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(tmp_path / "ckpts")


@pytest.fixture(params=["orbax", "msgpack"])
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    """Returns the library that the real Flax saves with."""
    before = flax.config.flax_use_orbax_checkpointing
    flax.config.update("flax_use_orbax_checkpointing", request.param == "orbax")
    yield request.param
    flax.config.update("flax_use_orbax_checkpointing", before)


def make_state(step: int = 0, width: int = 3) -> TrainState:
    params = {"dense": {"kernel": jnp.full((2, width), float(step)), "bias": jnp.ones(width)}}
    state = TrainState.create(apply_fn=len, params=params, tx=optax.adam(1e-3))
    return state.replace(step=step)


def make_tree() -> dict[str, Any]:
    return {"params": {"w": jnp.arange(4.0), "host": np.arange(3)}, "pair": (1, [2.5, True]),
            "opt": optax.adam(1e-3).init({"w": jnp.ones(2)}), "empty": {}, "none": None}


def names(folder: str) -> list[str]:
    return sorted(name for name in os.listdir(folder)
                  if not name.startswith((".stepwell", "STEPWELL_VIEW")))
