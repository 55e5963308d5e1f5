# SPDX-License-Identifier: Apache-2.0
"""`import_checkpoint(verify=True)`: what was stored against a second read of the source."""

import pathlib
from typing import Any

import jax
import ml_dtypes
import numpy as np
import orbax.checkpoint as ocp_v0
import pytest
from orbax.checkpoint import v1 as ocp_v1

import stepwell
from stepwell._backend.orbax_source import OrbaxSource
from stepwell._interop import checkpoint_import

# Orbax leaves its own event loops to the garbage collector, which warns of them.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def state() -> dict[str, Any]:
    rng = np.random.default_rng(3)
    return {
        "large": rng.random((700, 900)),
        "small": [np.arange(7, dtype=np.int16), np.zeros((2, 1), np.float32)],
        "int4": np.array([-8, -1, 0, 7], ml_dtypes.int4),
        "bf16": jax.numpy.ones((3, 4), jax.numpy.bfloat16),
        "key": jax.random.key(7),
        "name": "adam" * 3000,
        "rate": 0.25,
        "steps": 17,
    }


def test_what_orbax_and_stepwell_wrote(store: stepwell.Store, tmp_path: pathlib.Path) -> None:
    ocp_v1.save(tmp_path / "v1_1", state())
    tree = {key: value for key, value in state().items() if key not in ("int4", "key", "name")}
    with ocp_v0.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "v0_2", tree)
    store.import_checkpoint(tmp_path / "v1_1", verify=True)
    store.import_checkpoint(tmp_path / "v0_2", verify=True)
    for zarr in (2, 3):
        store.export(1, tmp_path / f"export{zarr}_{zarr + 1}", zarr=zarr, leaves="jax")
        store.import_checkpoint(tmp_path / f"export{zarr}_{zarr + 1}", verify=True)
    assert store.steps() == [1, 2, 3, 4]
    handle = store.import_checkpoint(tmp_path / "v1_1", 4, if_exists="skip", verify=True)
    assert handle.skipped


def test_a_source_that_reads_differently(store: stepwell.Store, tmp_path: pathlib.Path) -> None:
    """The source changes between the reads, like one whose first read was wrong."""
    source = tmp_path / "x_1"
    ocp_v1.save(source, state())
    handle = store.import_checkpoint(source)
    handle.result()
    source.rename(tmp_path / "first")
    ocp_v1.save(source, {**state(), "rate": 0.5})
    with pytest.raises(stepwell.CorruptionError, match="rate.*differs.*deleted again"):
        checkpoint_import._verify_import(store, handle, OrbaxSource(str(source), None, []))
    assert store.steps() == []


def test_files_have_none(store: stepwell.Store, tmp_path: pathlib.Path) -> None:
    np.savez(tmp_path / "a_1.npz", w=np.zeros(3))
    with pytest.raises(stepwell.InvalidArgumentError, match="verify"):
        store.import_checkpoint(tmp_path / "a_1.npz", verify=True)
