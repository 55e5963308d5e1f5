# SPDX-License-Identifier: Apache-2.0
"""The Orbax v0 facade: paths, errors, following a run, meshes, processes."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as real
import pytest
from etils import epath
from group_runs import SCRIPT, start
from orbax_v0_saves import STATE, options, save

import stepwell
from stepwell.compat import orbax as ocp


# ---- paths, errors, the rest --------------------------------------------------------------------


def test_paths_may_be_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with ocp.CheckpointManager("relative/run") as manager:
        save(manager, 0)
        assert manager.directory == epath.Path("relative/run")
    with ocp.CheckpointManager(epath.Path(tmp_path) / "relative" / "run") as manager:
        assert manager.all_steps() == [0]
    ocp.PyTreeCheckpointer().save("single", {"a": 1})
    assert ocp.PyTreeCheckpointer().restore("single") == {"a": 1}


def test_another_directory(tmp_path: Path) -> None:
    with ocp.CheckpointManager(tmp_path / "source") as source:
        save(source, 3, 8)
        with ocp.CheckpointManager(tmp_path / "run") as manager:
            for step in (None, 3):
                found = manager.restore(step, directory=tmp_path / "source")
                np.testing.assert_array_equal(found["w"], STATE["w"])
            with pytest.raises(FileNotFoundError):
                manager.restore(None)
            with pytest.raises(FileNotFoundError):
                manager.restore(4, directory=tmp_path / "source")


def test_steps_are_ints(tmp_path: Path) -> None:
    with ocp.CheckpointManager(tmp_path / "a") as manager:
        assert save(manager, jnp.asarray(3)) == [True]
        assert save(manager, np.int64(4)) == [True]
        with pytest.raises(ValueError, match="a step is an int, not 4.5"):
            save(manager, 4.5)  # type: ignore[arg-type]
        assert manager.all_steps() == [3, 4]


def test_a_step_that_is_there(tmp_path: Path) -> None:
    with ocp.CheckpointManager(tmp_path / "a") as manager:
        save(manager, 3)
        with pytest.raises(ocp.StepAlreadyExistsError, match="step 3 already exists"):
            save(manager, 3, force=True)
        assert issubclass(ocp.StepAlreadyExistsError, ValueError)
        with pytest.raises(FileNotFoundError, match="non-existent step: 9"):
            manager.delete(9)


def test_two_managers_of_one_directory(tmp_path: Path) -> None:
    with ocp.CheckpointManager(tmp_path / "a") as one, ocp.CheckpointManager(tmp_path / "a") as two:
        save(one, 0)
        assert two.all_steps() == [0]
        save(two, 1)
        assert one.all_steps() == one.all_steps(read=True) == [0, 1]
        two.delete(1)
        assert one.latest_step() == 0


def test_after_close_steps_are_restored(tmp_path: Path) -> None:
    manager = ocp.CheckpointManager(tmp_path / "a")
    save(manager, 0)
    manager.close()
    np.testing.assert_array_equal(manager.restore(0)["w"], STATE["w"])
    assert manager.latest_step() == 0
    manager.close()


def test_items_called_as_arguments(tmp_path: Path) -> None:
    with ocp.CheckpointManager(tmp_path / "a") as manager:
        with pytest.raises(ValueError, match="args="):
            manager.save(0, ocp.args.StandardSave(STATE))
        with pytest.raises(ValueError, match="Must provide `args`"):
            manager.save(0)


def test_following_a_run(tmp_path: Path) -> None:
    root = tmp_path / "run"
    seen: list[tuple[int, float]] = []

    def evaluate() -> None:
        with real.StandardCheckpointer() as reader:
            for step in ocp.checkpoint_utils.checkpoints_iterator(
                    root, seconds_to_sleep=0.01, timeout=20,
                    timeout_fn=lambda: bool(seen) and seen[-1][0] == 4):
                found = reader.restore(root / str(step) / "default")
                seen.append((step, float(found["w"][0])))
                if step == 4:
                    return

    thread = threading.Thread(target=evaluate)
    thread.start()
    with ocp.CheckpointManager(root, options=options(max_to_keep=1)) as manager:
        for step in range(5):
            manager.save(step, args=ocp.args.StandardSave({"w": jnp.full(3, step, jnp.float32)}))
        manager.wait_until_finished()
        thread.join(60)
    assert seen[-1] == (4, 4.0) and all(step == value for step, value in seen)
    assert [step for step, _ in seen] == sorted({step for step, _ in seen})
    with ocp.checkpoint_utils.wait_for_new_checkpoint(
            root, until_step=9, timeout=0.05, seconds_to_sleep=0.01) as step:
        assert step == -1
    assert ocp.utils.checkpoint_steps(root) == [4]


def test_following_wakes_when_a_step_is_there(tmp_path: Path) -> None:
    seen: list[int] = []

    def evaluate() -> None:
        for step in ocp.checkpoint_utils.checkpoints_iterator(tmp_path, seconds_to_sleep=3600):
            seen.append(step)
            if step == 2:
                return

    thread = threading.Thread(target=evaluate, daemon=True)
    thread.start()
    with ocp.CheckpointManager(tmp_path) as manager:
        for step in range(3):
            save(manager, step)
            manager.wait_until_finished()
    thread.join(60)
    assert not thread.is_alive() and seen[-1] == 2


def test_names_for_many_processes(tmp_path: Path) -> None:
    assert ocp.multihost.process_index() == 0 and ocp.utils.is_primary_host(0)
    ocp.utils.sync_global_processes("here")
    with ocp.CheckpointManager(tmp_path / "a") as manager:
        assert manager.reached_preemption(0) is False
    with pytest.raises(NotImplementedError):
        ocp.CheckpointManager(tmp_path / "b", options=options(
            multiprocessing_options=ocp.MultiprocessingOptions(active_processes={0})))
    assert jax.process_count() == 1


def test_transformations() -> None:
    original = {"a": 1, "b": {"c": 5, "d": [0, 1]}, "f": 2, "b1": {"c": 2}, "b2": {"c": 3}}
    new = {"a1": 0, "b": {"c": 0}, "c1": 0, "x": 0, "f": 0, "g": 5, "x1": {"c": 0},
           "x2": {"c": 0}}
    found = []
    for lib in (ocp, real):
        transforms = {
            "a1": lib.Transform(original_key="a"), "c1": lib.Transform(original_key="b/c"),
            "b": {"c": lib.Transform(multi_value_fn=lambda _, kv: kv["a"] * 7)},
            "x": lib.Transform(original_key="f", value_fn=lambda v: v + 0.5),
            r"x(\d.*)": lib.Transform(original_key=r"b\1")}
        found.append([lib.apply_transformations(original, transforms, new, default)
                      for default in (True, False)])
        found[-1].append(lib.merge_trees({"a": 1, "b": {"c": 2}}, {"b": {"c": 3, "d": 4}}))
    assert found[0] == found[1]


def test_a_missing_orbax_is_named(run_python: Any) -> None:
    status, out, err = run_python("""
import sys
sys.modules["orbax"] = sys.modules["orbax.checkpoint"] = None  # as if it was not installed
import stepwell
try:
    from stepwell.compat import orbax
except ImportError as error:
    print(error)
""")
    assert status == 0 and "pip install 'orbax-checkpoint>=0.12'" in out, out + err


def test_meshes(run_jax: Any, tmp_path: Path) -> None:
    status, out, err = run_jax("""
import sys
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
import stepwell
from stepwell.compat import orbax as ocp

root = sys.argv[1]
eight = Mesh(np.array(jax.devices()).reshape(4, 2), ("x", "y"))
four = Mesh(np.array(jax.devices()[4:]), ("z",))
state = {"w": jax.device_put(jnp.arange(64.0).reshape(8, 8), NamedSharding(eight, P("x", "y"))),
         "k": jax.device_put(jax.random.split(jax.random.key(0), 8), NamedSharding(eight, P("x"))),
         "n": np.arange(3)}
with ocp.CheckpointManager(root) as manager:
    manager.save(0, args=ocp.args.StandardSave(state))
    manager.save(1, args=ocp.args.StandardSave(state))
    back = manager.restore(0)
    assert back["w"].sharding == state["w"].sharding, back["w"].sharding
    assert isinstance(back["n"], np.ndarray)
    wanted = NamedSharding(four, P(None, "z"))
    target = {"w": jax.ShapeDtypeStruct((8, 8), jnp.float32, sharding=wanted),
              "k": jax.ShapeDtypeStruct((8,), state["k"].dtype,
                                        sharding=NamedSharding(four, P("z"))),
              "n": jax.ShapeDtypeStruct((3,), jnp.int64)}
    moved = manager.restore(0, args=ocp.args.StandardRestore(target))
    assert moved["w"].sharding == wanted and moved["k"].sharding == target["k"].sharding
    for found in (back, moved):
        np.testing.assert_array_equal(found["w"], np.arange(64.0).reshape(8, 8))
        np.testing.assert_array_equal(jax.random.key_data(found["k"]),
                                      jax.random.key_data(state["k"]))
    args = {"w": ocp.ArrayRestoreArgs(mesh=four, mesh_axes=P("z")), "k": ocp.RestoreArgs(),
            "n": ocp.RestoreArgs()}
    fresh = ocp.CheckpointManager(root, options=ocp.CheckpointManagerOptions(read_only=True))
    found = fresh.restore(1, args=ocp.args.PyTreeRestore(state, restore_args=args))
    assert found["w"].sharding == NamedSharding(four, P("z"))
    try:
        manager.restore(0, args=ocp.args.StandardRestore({**target, "w": jax.ShapeDtypeStruct(
            (8, 8), jnp.float32, sharding=NamedSharding(Mesh(np.array(jax.devices()[:3]), "q"),
                                                        P("q")))}))
    except ValueError as error:
        assert "w" in str(error)
    else:
        raise AssertionError("8 rows over 3 devices")
""", tmp_path / "mesh", XLA_FLAGS="--xla_force_host_platform_device_count=8")
    assert status == 0, err
    status, out, err = run_jax("""
import sys
import jax, numpy as np
import stepwell
from stepwell.compat import orbax as ocp
with ocp.CheckpointManager(sys.argv[1]) as manager:  # fewer devices than it was saved on
    found = manager.restore(1)
    np.testing.assert_array_equal(found["w"], np.arange(64.0).reshape(8, 8))
    one = jax.sharding.SingleDeviceSharding(jax.devices()[1])
    found = manager.restore(1, args=ocp.args.StandardRestore(fallback_sharding=one))
    assert found["w"].sharding == one, found["w"].sharding
""", tmp_path / "mesh", XLA_FLAGS="--xla_force_host_platform_device_count=2")
    assert status == 0, err


def test_many_processes(tmp_path: Path) -> None:
    children = start(SCRIPT.with_name("orbax_v0_processes.py"), 2, 4, str(tmp_path / "run"))
    outputs = [child.communicate(timeout=300) for child in children]
    for child, (out, err) in zip(children, outputs, strict=True):
        assert (child.returncode, out.splitlines()[-1:]) == (0, ["done"]), (out + err)[-3000:]
    state = {"w": np.zeros((8, 2), np.float32), "n": 0}
    with ocp.CheckpointManager(tmp_path / "run") as manager:  # one process goes on
        found = manager.restore(4, args=ocp.args.Composite(state=ocp.args.StandardRestore(state)))
        np.testing.assert_array_equal(found.state["w"], np.arange(16.0).reshape(8, 2) + 4)
    for library in (ocp, real):
        found = library.StandardCheckpointer().restore(tmp_path / "run_single", state)
        np.testing.assert_array_equal(found["w"], np.arange(16.0).reshape(8, 2) + 1)


def test_a_run_that_was_killed_goes_on(run_jax: Any, tmp_path: Path) -> None:
    source = """
import os, sys
import jax.numpy as jnp
manager = ocp.CheckpointManager(sys.argv[1], options=ocp.CheckpointManagerOptions(max_to_keep=2))
for step in range(4):
    manager.save(step, args=ocp.args.StandardSave({"n": jnp.asarray(step)}))
    manager.wait_until_finished()
os.kill(os.getpid(), 9)
"""
    found = []
    for lib, line in ((ocp, "from stepwell.compat import orbax as ocp"),
                      (real, "import orbax.checkpoint as ocp")):
        root = tmp_path / lib.__name__
        status, _, err = run_jax(line + source, root)
        assert status == -9, err
        with lib.CheckpointManager(root, options=lib.CheckpointManagerOptions(
                max_to_keep=2)) as manager:
            found.append([list(manager.all_steps()), manager.latest_step(),
                          int(manager.restore(None)["n"]),
                          manager.save(4, args=lib.args.StandardSave({"n": jnp.asarray(4)}))])
            manager.wait_until_finished()
            found[-1].append(list(manager.all_steps()))
    assert found[0] == found[1] == [[2, 3], 3, 3, True, [3, 4]]


def test_a_step_that_orbax_overwrites_is_read_anew(tmp_path: Path) -> None:
    with real.CheckpointManager(tmp_path) as orbax, \
            ocp.CheckpointManager(tmp_path, options=options(read_only=True)) as manager:
        for value in (1, 2):
            if value == 2:
                orbax.delete(7)
            orbax.save(7, args=real.args.StandardSave({"w": np.full(3, value)}), force=True)
            orbax.wait_until_finished()
            manager.reload()
            assert manager.restore(7)["w"].tolist() == [value] * 3


def test_managers_of_one_directory_retain_together(tmp_path: Path) -> None:
    with (ocp.CheckpointManager(tmp_path, options=options(max_to_keep=1)) as one,
          ocp.CheckpointManager(tmp_path, options=options(max_to_keep=1)) as other):
        save(one, 1)
        save(one, 2)
        save(other, 3)
        assert one.all_steps() == other.all_steps() == [3]


def test_copies_of_steps_are_steps(tmp_path: Path) -> None:
    run, backup = tmp_path / "run", tmp_path / "backup"
    with ocp.CheckpointManager(run) as manager:
        for step in (1, 2):
            save(manager, step, step)
        manager.wait_until_finished()
        shutil.copytree(run / "2", backup / "2")  # the data, too
        shutil.copytree(run / "2", run / "12")
        assert manager.all_steps(read=True) == [1, 2, 12]
        jax.tree.map(np.testing.assert_array_equal, manager.restore(12), manager.restore(2))
    with real.CheckpointManager(backup) as orbax, ocp.CheckpointManager(backup) as manager:
        assert list(orbax.all_steps()) == list(manager.all_steps()) == [2]
        jax.tree.map(np.testing.assert_array_equal, manager.restore(2), orbax.restore(2))
        save(manager, 3)
        manager.wait_until_finished()
        manager.delete(2)
        assert manager.all_steps(read=True) == [3] and not (backup / "2").exists()


def test_a_view_of_another_store_has_steps(tmp_path: Path) -> None:
    with stepwell.open(tmp_path / "store") as store:
        store.save(7, STATE).result()
        with store.orbax_view(tmp_path / "live", layout="v0") as view:
            view.wait()
            with ocp.CheckpointManager(tmp_path / "live", options=options(read_only=True)) as found:
                assert found.all_steps() == [7]
                found.restore(7)


def test_following_sees_the_steps_of_its_prefix(tmp_path: Path) -> None:
    for prefix, step in (("a", 3), ("b", 7)):
        with ocp.CheckpointManager(tmp_path, options=options(step_prefix=prefix)) as manager:
            save(manager, step)
    for prefix, wanted in (("a", 3), ("b", 7), (None, -1)):
        with ocp.checkpoint_utils.wait_for_new_checkpoint(
                tmp_path, step_prefix=prefix, timeout=0.05, seconds_to_sleep=0.01) as step:
            assert step == wanted
