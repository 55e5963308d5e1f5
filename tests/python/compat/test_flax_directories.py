# SPDX-License-Identifier: Apache-2.0
"""stepwell.compat.flax in directories that have other prefixes, managers, and Flax's own files."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import flax
import jax
import numpy as np
import pytest
from flax.errors import InvalidCheckpointError
from flax.training import checkpoints as real
from flax.training.train_state import TrainState

import stepwell
from equality import same
from flax_folders import backend, folder, make_state, names
from stepwell.compat import flax as checkpoints
from stepwell.compat import orbax as ocp_v0
from stepwell.compat._flax_directory import Directory

pytestmark = pytest.mark.filterwarnings("ignore:Sharding info not provided")


# ---- several prefixes in a directory ----


@pytest.mark.parametrize("others", [("best_", "model-", ""), ("", "checkpoint_", "m")])
def test_each_prefix_has_its_own_steps(folder: str, others: tuple[str, ...]) -> None:
    first, *rest = prefixes = ("ckpt_", *others)
    for step in range(4):
        for number, prefix in enumerate(prefixes):
            path = checkpoints.save_checkpoint(folder, {"w": [step, number]}, step, prefix=prefix,
                                               keep=number + 1)
            assert os.path.isfile(f"{path}/_CHECKPOINT_METADATA")
    for number, prefix in enumerate(prefixes):
        steps = list(range(4))[-number - 1:]
        assert checkpoints.available_steps(folder, prefix) == steps
        for step in steps:
            for restored in (
                    checkpoints.restore_checkpoint(folder, {"w": [0, 0]}, step, prefix),
                    checkpoints.restore_checkpoint(f"{folder}/{prefix}{step}", {"w": [0, 0]})):
                assert restored == {"w": [step, number]}
    with stepwell.open(f"{folder}/.stepwell-ckpt_0", mode="r") as store:
        assert store.steps() == [3]
    assert len(names(folder)) == sum(range(1, len(prefixes) + 1))


def test_a_prefix_that_a_view_cannot_spell_may_be_the_first(folder: str) -> None:
    for step in range(3):
        checkpoints.save_checkpoint(folder, {"w": step}, step, prefix="run")
    checkpoints.save_checkpoint(folder, {"w": 7}, 1, prefix="ckpt_")
    assert names(folder) == ["ckpt_1", "run2"]
    assert checkpoints.restore_checkpoint(folder, {"w": 0}, prefix="run") == {"w": 2}
    assert checkpoints.restore_checkpoint(folder, {"w": 0}, prefix="ckpt_") == {"w": 7}


# ---- directories that Flax wrote to ----


def test_steps_of_flax_are_listed_restored_and_gone_on_from(folder: str, backend: str) -> None:
    for step in (30, 40):
        real.save_checkpoint(folder, make_state(step), step, keep=2)
    assert os.path.isdir(f"{folder}/checkpoint_40") == (backend == "orbax")
    assert checkpoints.available_steps(folder) == [30, 40]
    assert checkpoints.latest_checkpoint(folder) == f"{folder}/checkpoint_40"
    for source, step in ((folder, None), (f"{folder}/checkpoint_40", None), (folder, 40)):
        restored = checkpoints.restore_checkpoint(source, make_state(), step=step)
        assert isinstance(restored, TrainState)
        assert same(jax.tree.leaves(restored), jax.tree.leaves(make_state(40)))
    raw = checkpoints.restore_checkpoint(folder, None, step=30)
    assert same(np.asarray(raw["params"]["dense"]["bias"]), np.ones(3, np.float32))
    assert raw["opt_state"]["0"]["count"] == 0
    with pytest.raises(InvalidCheckpointError):
        checkpoints.save_checkpoint(folder, make_state(40), 40)
    checkpoints.save_checkpoint(folder, make_state(50), 50, keep=2)
    assert checkpoints.available_steps(folder) == [40, 50]
    assert names(folder) == ["checkpoint_40", "checkpoint_50"]
    # replaced by one of ours
    checkpoints.save_checkpoint(folder, make_state(41), 40, keep=2, overwrite=True)
    assert checkpoints.available_steps(folder) == [40]
    assert os.path.lexists(f"{folder}/checkpoint_40/stepwell-view")
    restored = checkpoints.restore_checkpoint(f"{folder}/checkpoint_40", make_state())
    assert restored.step == 41


def test_a_file_that_flax_saved_later_is_what_the_step_is(folder: str) -> None:
    checkpoints.save_checkpoint(folder, {"w": 1}, 3)
    shutil.rmtree(f"{folder}/checkpoint_3")
    Path(folder, "checkpoint_3").write_bytes(flax.serialization.to_bytes({"w": 0}))
    assert checkpoints.available_steps(folder) == [3]
    assert checkpoints.restore_checkpoint(folder, {"w": 9}) == {"w": 0}
    checkpoints.save_checkpoint(folder, {"w": 2}, 4, keep=2)
    assert names(folder) == ["checkpoint_3", "checkpoint_4"]
    checkpoints.save_checkpoint(folder, {"w": 3}, 3, keep=2, overwrite=True)
    assert names(folder) == ["checkpoint_3"]
    assert checkpoints.restore_checkpoint(f"{folder}/checkpoint_3", {"w": 9}) == {"w": 3}


# ---- beside others in one directory ----


def test_a_checkpoint_manager_in_the_same_directory_sees_and_deletes_nothing(folder: str) -> None:
    for step in (10, 20):
        checkpoints.save_checkpoint(folder, {"w": step}, step, keep=2)
    with ocp_v0.CheckpointManager(
            folder, options=ocp_v0.CheckpointManagerOptions(max_to_keep=1)) as manager:
        assert names(folder) == ["checkpoint_10", "checkpoint_20"]
        assert manager.all_steps() == []
        for step in (30, 31):
            manager.save(step, args=ocp_v0.args.StandardSave({"w": step}))
        manager.wait_until_finished()
        assert manager.all_steps() == [31]
    assert names(folder) == ["31", "checkpoint_10", "checkpoint_20"]
    assert checkpoints.available_steps(folder) == [10, 20]
    assert checkpoints.restore_checkpoint(folder, {"w": 0}) == {"w": 20}
    checkpoints.save_checkpoint(folder, {"w": 30}, 30, keep=1)
    assert names(folder) == ["31", "checkpoint_30"]
    with ocp_v0.CheckpointManager(folder) as manager:
        assert manager.all_steps() == [31]


def test_retention_is_of_one_prefix_also_for_what_flax_wrote(folder: str, backend: str) -> None:
    for prefix in ("best_", "checkpoint_"):
        for step in (1, 2):
            real.save_checkpoint(folder, {"w": step}, step, prefix=prefix, keep=9)
    checkpoints.save_checkpoint(folder, {"w": 3}, 3, keep=1)
    assert names(folder) == ["best_1", "best_2", "checkpoint_3"]
    assert checkpoints.available_steps(folder, "best_") == [1, 2]


def test_a_step_below_a_copied_or_linked_directory_is_read_from_there(folder: str) -> None:
    checkpoints.save_checkpoint(folder, {"w": 1}, 1)
    shutil.copytree(f"{folder}/checkpoint_1", f"{folder}/checkpoint_5")
    assert checkpoints.available_steps(folder) == [1, 5]
    checkpoints.save_checkpoint(folder, {"w": 2}, 1, overwrite=True, keep=9)
    assert checkpoints.available_steps(folder) == [1]  # an overwrite deletes those above it


def test_float_steps_that_flax_wrote_are_read(folder: str, backend: str) -> None:
    for metric in (0.25, 0.5):
        real.save_checkpoint(folder, {"w": metric}, metric, keep=9)
    assert checkpoints.available_steps(folder, step_type=float) == [0.25, 0.5]
    assert checkpoints.restore_checkpoint(folder, {"w": 0.0}) == {"w": 0.5}
    assert checkpoints.restore_checkpoint(folder, {"w": 0.0}, step=0.25) == {"w": 0.25}
    checkpoints.save_checkpoint(folder, {"w": 1.0}, 1)
    assert names(folder) == ["checkpoint_1"]


def test_other_files_in_the_directory(folder: str) -> None:
    os.mkdir(folder)
    for name in ("checkpoint_tmp", "checkpoint_7_gda", "notes", "checkpoint_"):
        Path(folder, name).write_text("x")
    assert checkpoints.available_steps(folder) == []
    Path(folder, "checkpoint_7").write_text("not msgpack")
    with pytest.raises(stepwell.FormatError, match="checkpoint_7"):
        checkpoints.restore_checkpoint(folder, None)
    checkpoints.save_checkpoint(folder, {"w": 1}, 8)
    assert names(folder) == ["checkpoint_", "checkpoint_8", "checkpoint_tmp", "notes"]


def test_a_checkpoint_that_goes_while_it_is_restored(
        folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints.save_checkpoint(folder, {"w": 1}, 1)
    look = Directory.checkpoints
    newer = iter([2])

    def look_and_lose(self: Directory, in_flight: bool = False) -> Any:
        found = look(self, in_flight)
        for step in newer:
            checkpoints.save_checkpoint(folder, {"w": step}, step)  # and retires the other
        return found

    monkeypatch.setattr(Directory, "checkpoints", look_and_lose)
    assert checkpoints.restore_checkpoint(folder, None)["w"] == 2
