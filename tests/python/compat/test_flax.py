# SPDX-License-Identifier: Apache-2.0
"""stepwell.compat.flax, beside the real flax.training.checkpoints."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as orbax
import pytest
from flax import nnx
from flax.errors import InvalidCheckpointError
from flax.training import checkpoints as real
from flax.training.train_state import TrainState
from jax.sharding import NamedSharding, PartitionSpec
from orbax.checkpoint import v1 as ocp

import forks
import stepwell
from equality import same
from flax_folders import backend, folder, make_state, make_tree, names
from stepwell.compat import flax as checkpoints
from storm import in_a_storm

pytestmark = pytest.mark.filterwarnings("ignore:Sharding info not provided")


def test_the_facades_import_no_other_library() -> None:
    done = subprocess.run([sys.executable, "-c", """
import sys
import stepwell.compat.equinox, stepwell.compat.flax
print({name.partition(".")[0] for name in sys.modules} & {"equinox", "flax", "jax", "orbax"})
"""], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


# ---- the flow of the guide ----


def test_a_train_state_comes_back(folder: str) -> None:
    path = checkpoints.save_checkpoint(folder, make_state(7), step=7)
    assert path == f"{folder}/checkpoint_7"
    assert checkpoints.latest_checkpoint(folder) == path
    assert checkpoints.available_steps(folder) == [7]
    restored = checkpoints.restore_checkpoint(folder, target=make_state())
    assert isinstance(restored, TrainState)
    assert same(jax.tree.leaves(restored), jax.tree.leaves(make_state(7)))
    assert restored.apply_fn is len
    assert same(checkpoints.restore_checkpoint(path, target=make_state()).params,
                make_state(7).params)


def test_the_directory_is_as_the_guides_show_it(folder: str) -> None:
    for step in range(3):
        checkpoints.save_checkpoint(folder, {"w": jnp.full(2, float(step))}, step, keep=2)
    assert names(folder) == ["checkpoint_1", "checkpoint_2"]
    assert os.path.isfile(f"{folder}/checkpoint_2/state/_METADATA")
    loaded = ocp.load_checkpointables(f"{folder}/checkpoint_2")
    assert jnp.array_equal(loaded["state"]["w"], jnp.full(2, 2.0))
    with stepwell.open(f"{folder}/.stepwell-checkpoint_0", mode="r") as store:
        assert store.steps() == [1, 2]


def test_without_a_target(folder: str, backend: str) -> None:
    """Nested dicts as those of Flax, but for the empty state of optax, None by way of Orbax."""
    checkpoints.save_checkpoint(folder, make_tree(), 0)
    real.save_checkpoint(f"{folder}-real", make_tree(), 0)
    ours = checkpoints.restore_checkpoint(folder, None)
    theirs = real.restore_checkpoint(f"{folder}-real", None)
    assert ours["opt"].pop("1") == {}
    assert theirs["opt"].pop("1") == (None if backend == "orbax" else {})
    if backend == "orbax":  # msgpack gives NumPy arrays for all
        assert jax.tree.map(type, ours) == jax.tree.map(type, theirs)
    assert same(*(jax.tree.map(np.asarray, tree) for tree in (ours, theirs)))


@pytest.mark.parametrize("tree", [3, 2.5, np.arange(3), jnp.ones(2), [1, 2], {"a": ()}, {},
                                  {"z": 2 + 1j}])
def test_leaves_and_sequences_also_what_orbax_cannot_hold(folder: str, tree: Any) -> None:
    path = checkpoints.save_checkpoint(folder, tree, 0)
    target = jax.tree.map(lambda leaf: leaf * 0, tree)
    for source in (folder, path):
        assert same(checkpoints.restore_checkpoint(source, target), tree)
    assert checkpoints.restore_checkpoint(f"{folder}/checkpoint_1", 5) == 5


def test_nnx_and_typed_keys(folder: str) -> None:
    state = nnx.state(nnx.Dropout(0.5, rngs=nnx.Rngs(3)))
    checkpoints.save_checkpoint(folder, state, 0)
    like = nnx.eval_shape(lambda: nnx.state(nnx.Dropout(0.5, rngs=nnx.Rngs(0))))
    assert same(jax.tree.leaves(checkpoints.restore_checkpoint(folder, like)),
                jax.tree.leaves(state))


def test_the_target_says_types_and_shardings(folder: str) -> None:
    mesh = jax.make_mesh((1,), ("x",), devices=jax.devices()[:1],
                         axis_types=(jax.sharding.AxisType.Auto,))
    sharding = NamedSharding(mesh, PartitionSpec("x"))
    checkpoints.save_checkpoint(folder, {"a": jnp.arange(4), "b": jnp.arange(4)}, 0)
    restored = checkpoints.restore_checkpoint(folder, {
        "a": jax.ShapeDtypeStruct((4,), jnp.int32, sharding=sharding),
        "b": np.zeros(4, np.int32)})
    assert restored["a"].sharding == sharding
    assert type(restored["b"]) is np.ndarray


def test_relative_paths_and_paths_of_other_kinds(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert checkpoints.save_checkpoint("./a//b/", {"w": 1}, 0) == "a/b/checkpoint_0"
    assert checkpoints.restore_checkpoint("a/b", {"w": 0}) == {"w": 1}
    assert checkpoints.restore_checkpoint(tmp_path / "a/b", {"w": 0}, step=0) == {"w": 1}
    assert checkpoints.latest_checkpoint("a/b") == "a/b/checkpoint_0"


# ---- what is not there, and what does not fit ----


def test_nothing_there_gives_the_target(folder: str) -> None:
    for _ in range(2):  # the second time the directory exists
        assert checkpoints.restore_checkpoint(folder, {"w": 5}) == {"w": 5}
        assert checkpoints.restore_checkpoint(f"{folder}/checkpoint_3", {"w": 5}) == {"w": 5}
        assert checkpoints.latest_checkpoint(folder) is None
        assert checkpoints.available_steps(folder) == []
        with pytest.raises(ValueError, match="Matching checkpoint not found: .*checkpoint_3"):
            checkpoints.restore_checkpoint(folder, None, step=3)
        os.makedirs(folder, exist_ok=True)
    assert os.listdir(folder) == []


def test_another_shape_is_an_error(folder: str, backend: str) -> None:
    """Flax restores it without a word."""
    for module in (checkpoints, real):
        module.save_checkpoint(folder + module.__name__, make_state(), 0)
    target = make_state(width=4)
    assert real.restore_checkpoint(folder + real.__name__, target).params["dense"]["bias"].shape \
        != (4,)
    with pytest.raises(ValueError, match="params/dense/bias: stored float32.3., wanted") as caught:
        checkpoints.restore_checkpoint(folder + checkpoints.__name__, target)
    assert isinstance(caught.value, stepwell.MismatchError)
    # the same of a checkpoint that Flax wrote
    with pytest.raises(stepwell.MismatchError, match="params/dense/kernel"):
        checkpoints.restore_checkpoint(folder + real.__name__, target)


def test_a_smaller_and_a_larger_target(folder: str) -> None:
    checkpoints.save_checkpoint(folder, {"a": 1, "b": {"c": 2}}, 0)
    assert checkpoints.restore_checkpoint(folder, {"b": {"c": 0}}) == {"b": {"c": 2}}
    with pytest.raises(ValueError, match="d: missing in the store"):
        checkpoints.restore_checkpoint(folder, {"a": 0, "d": 9})
    assert checkpoints.restore_checkpoint(folder, {"a": 0, "d": 9}, orbax_transforms={}) == {
        "a": 1, "d": 9}


@pytest.mark.parametrize("step", [1.5, 2.0, -1, jnp.float32(3), "4", None])
def test_steps_that_are_refused(folder: str, step: Any) -> None:
    with pytest.raises(stepwell.InvalidArgumentError, match="step must be"):
        checkpoints.save_checkpoint(folder, {"w": 1}, step)
    assert not os.path.exists(folder)


def test_steps_of_other_integer_types(folder: str) -> None:
    for step in (np.int64(1), jnp.int32(2), np.array(3)):
        checkpoints.save_checkpoint(folder, {"w": 1}, step, keep=9)
    assert checkpoints.available_steps(folder) == [1, 2, 3]
    assert checkpoints.restore_checkpoint(folder, {"w": 0}, step=jnp.int32(2)) == {"w": 1}


def test_arguments_that_are_refused(folder: str) -> None:
    with pytest.raises(stepwell.InvalidArgumentError, match="keep must be"):
        checkpoints.save_checkpoint(folder, {"w": 1}, 0, keep=-1)
    with pytest.raises(stepwell.InvalidArgumentError, match="ckpt_dir"):
        checkpoints.save_checkpoint(folder, {"w": 1}, 0, prefix="a/b_")
    with pytest.raises(stepwell.UnsupportedLeafError):
        checkpoints.save_checkpoint(folder, {"w": object()}, 0)
    checkpoints.save_checkpoint(folder, {"w": 1}, 0)


def test_another_program_that_saves_here(folder: str) -> None:
    checkpoints.save_checkpoint(folder, {"w": 1}, 0)
    with stepwell.open(f"{folder}/.stepwell-checkpoint_0"):
        with pytest.raises(stepwell.LockedError, match="another process saves here"):
            checkpoints.save_checkpoint(folder, {"w": 2}, 1)
        assert checkpoints.restore_checkpoint(folder, {"w": 0}) == {"w": 1}
    checkpoints.save_checkpoint(folder, {"w": 2}, 1)


# ---- transformations ----


def test_transformations_of_orbax(folder: str) -> None:
    saved = {"old": {"w": jnp.arange(3.0)}, "scale": 2.0, "kept": np.ones(2)}
    checkpoints.save_checkpoint(folder, saved, 0)
    target = {"new": {"w": jnp.zeros(3)}, "scale": 0.0, "kept": np.zeros(2), "added": 5,
              "half": 0.0}
    restored = checkpoints.restore_checkpoint(folder, target, orbax_transforms={
        r"new/(.*)": orbax.Transform(original_key=r"old/\1"),
        "half": orbax.Transform(multi_value_fn=lambda _, tree: tree["scale"] / 2),
        "scale": orbax.Transform(use_fallback=True)})
    assert same(restored, {"new": {"w": jnp.arange(3.0)}, "scale": 0.0, "kept": np.ones(2),
                           "added": 5, "half": 1.0})


# ---- asynchronous saves ----


@pytest.mark.parametrize("module", [checkpoints, real])
def test_asynchronous_saves_take_the_state_at_once(folder: str, module: Any) -> None:
    manager = module.AsyncManager()
    state = {"w": np.zeros(1000)}
    for step in range(5):
        state["w"][:] = step
        checkpoints.save_checkpoint(folder, state, step, keep=3, async_manager=manager)
        state["w"][:] = -1
    manager.wait_previous_save()
    manager.executor.shutdown()
    assert checkpoints.available_steps(folder) == [2, 3, 4]
    for step in (2, 3, 4):
        restored = checkpoints.restore_checkpoint(folder, state, step=step)
        assert np.array_equal(restored["w"], np.full(1000, step))


def test_saves_beside_an_asynchronous_one_delete_the_same_steps(folder: str) -> None:
    manager = checkpoints.AsyncManager()
    for step in range(40):
        checkpoints.save_checkpoint(folder, {"w": [np.ones(4)] * 100}, step,
                                    async_manager=None if step % 2 else manager)
    manager.wait_previous_save()
    assert checkpoints.available_steps(folder) == [39]


def test_the_error_of_an_asynchronous_save_is_raised_by_the_next_wait(folder: str) -> None:
    manager = checkpoints.AsyncManager()

    def fail() -> None:
        raise OSError("no")

    manager.save_async(fail)
    with pytest.raises(OSError, match="no"):
        checkpoints.save_checkpoint(folder, {"w": 1}, 0, async_manager=manager)
    checkpoints.save_checkpoint(folder, {"w": 1}, 0, async_manager=manager)
    manager.wait_previous_save()
    manager.wait_previous_save()
    assert checkpoints.available_steps(folder) == [0]
    manager.executor.shutdown()


def test_a_script_that_ends_without_waiting_saves_all(folder: str) -> None:
    status, _, err = forks.run(f"""
import numpy as np
from stepwell.compat import flax as checkpoints
manager = checkpoints.AsyncManager()
checkpoints.save_checkpoint({folder!r}, {{"w": np.ones(1 << 20)}}, 3, async_manager=manager)
""")
    assert status == 0, err
    assert checkpoints.available_steps(folder) == [3]
    assert names(folder) == ["checkpoint_3"]


PROCESS = """
import os, sys
import jax, numpy as np
number, port, folder = int(sys.argv[1]), sys.argv[2], sys.argv[3]
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(f"localhost:{port}", 2, number)
from jax.sharding import NamedSharding, PartitionSpec
from stepwell.compat import flax as checkpoints
mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
sharding = NamedSharding(mesh, PartitionSpec("x"))

def make(step):
    whole = np.arange(8.0) + step
    return {"w": jax.make_array_from_callback((8,), sharding, lambda index: whole[index])}

manager = checkpoints.AsyncManager()
for step in range(4):
    path = checkpoints.save_checkpoint_multiprocess(
        folder, make(step), step, keep=2, async_manager=manager if step > 1 else None)
manager.wait_previous_save()
assert os.path.isdir(path), path
assert checkpoints.available_steps(folder) == [2, 3]
restored = checkpoints.restore_checkpoint(folder, make(0))
assert restored["w"].sharding == sharding
assert restored["w"].addressable_shards[0].data[0] == 3 + 4 * number
path = checkpoints.save_checkpoint_multiprocess(folder, make(5), 5, prefix="best_")
assert os.path.isdir(path), path
"""


def test_processes_that_save_together(folder: str, start_jax: Any) -> None:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    processes = [start_jax(PROCESS, number, port, folder) for number in range(2)]
    for process in processes:
        _, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
    assert names(folder) == ["best_5", "checkpoint_2", "checkpoint_3"]
    restored = checkpoints.restore_checkpoint(folder, {"w": np.zeros(8, np.float32)})
    assert np.array_equal(restored["w"], np.arange(8.0) + 3)


# ---- what Flax has ----


def test_every_public_name_of_flax_is_there() -> None:
    for name in dir(real):
        if not name.startswith("_"):
            assert hasattr(checkpoints, name), name
    assert checkpoints.natural_sort(["f10", "f2"]) == ["f2", "f10"]
    assert checkpoints.safe_normpath("gs://a//b/") == "gs://a/b"
    assert checkpoints.convert_pre_linen({"Dense_0": {"kernel": 1}}) == {"Dense_0": {"kernel": 1}}
    assert {"natural_sort", "save_checkpoint"} <= {*dir(checkpoints)}
    with pytest.raises(AttributeError):
        checkpoints.nothing_like_that


def test_an_outdated_step_is_the_error_of_either_backend(folder: str) -> None:
    checkpoints.save_checkpoint(folder, {"w": 1}, 3)
    for kind in (InvalidCheckpointError, ValueError):
        with pytest.raises(kind, match="outdated checkpoint at step"):
            checkpoints.save_checkpoint(folder, {"w": 1}, 2)


def test_checkpointers_are_accepted(folder: str) -> None:
    checkpointer = orbax.AsyncCheckpointer(orbax.PyTreeCheckpointHandler())
    arguments = {"orbax_checkpointer": checkpointer}
    checkpoints.save_checkpoint(folder, make_tree(), 0, **arguments)
    checkpoints.save_checkpoint_multiprocess(folder, make_tree(), 1, keep=2, **arguments)
    restored = checkpoints.restore_checkpoint(folder, make_tree(), parallel=False, **arguments)
    assert same(restored, make_tree())
    assert checkpoints.available_steps(folder) == [0, 1]
    checkpointer.close()


# ---- beside Flax ----


def test_random_sequences_of_calls(folder: str, backend: str) -> None:
    """The same steps, values and errors, save for what the Orbax backend of Flax does with a step
    below the newest one, and above an overwritten one."""
    for seed in range(in_a_storm(1 if backend == "orbax" else 3)):
        rng = random.Random(seed)
        ours, theirs = f"{folder}-ours-{seed}", f"{folder}-theirs-{seed}"
        keep = rng.choice([1, 2, 3, 0])
        every = rng.choice([None, None, 2, 3])
        for value in range(12):
            step = rng.randrange(12)
            overwrite = rng.random() < 0.3
            outcomes = []
            if backend == "orbax" and not overwrite and step <= max(
                    real.available_steps(theirs), default=-1):
                with pytest.raises(InvalidCheckpointError):
                    checkpoints.save_checkpoint(ours, {"v": value}, step)
                continue
            for module, where in ((checkpoints, ours), (real, theirs)):
                try:
                    path = module.save_checkpoint(where, {"v": value}, step, keep=keep,
                                                  overwrite=overwrite, keep_every_n_steps=every)
                    outcomes.append(os.path.basename(path))
                except InvalidCheckpointError:
                    outcomes.append(InvalidCheckpointError)
            assert outcomes[0] == outcomes[1]
            steps = checkpoints.available_steps(ours)
            assert steps == real.available_steps(theirs)
            assert names(ours) == names(theirs)
            for each in steps:
                assert (checkpoints.restore_checkpoint(ours, {"v": 0}, step=each)
                        == real.restore_checkpoint(theirs, {"v": 0}, step=each))
            assert os.path.basename(checkpoints.latest_checkpoint(ours) or "") == os.path.basename(
                real.latest_checkpoint(theirs) or "")
