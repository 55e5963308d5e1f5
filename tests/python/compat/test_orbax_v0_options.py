# SPDX-License-Identifier: Apache-2.0
"""The Orbax v0 facade: names, signatures, every option, policies."""

from __future__ import annotations

import datetime
import inspect
import os
import threading
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as real
import pytest
from orbax_v0_saves import STATE, options, save

from stepwell.compat import orbax as ocp


# ---- names and tables ---------------------------------------------------------------------------


def test_what_is_not_replaced_is_orbaxs_own() -> None:
    for name in ("CheckpointManagerOptions", "AsyncOptions", "SaveArgs", "RestoreArgs",
                 "ArrayRestoreArgs", "Transform", "CompositeCheckpointHandler", "args",
                 "options", "metadata", "type_handlers", "path"):
        assert getattr(ocp, name) is getattr(real, name), name
    assert ocp.StepAlreadyExistsError is real.checkpoint_manager.StepAlreadyExistsError


def test_what_is_replaced_is_of_orbaxs_classes(tmp_path: Path) -> None:
    with ocp.CheckpointManager(tmp_path) as manager:
        assert isinstance(manager, (real.CheckpointManager, real.AbstractCheckpointManager))
    for name in ("Checkpointer", "AsyncCheckpointer"):
        for checkpointer in (getattr(ocp, name)(ocp.PyTreeCheckpointHandler()),
                             ocp.StandardCheckpointer()):
            assert isinstance(checkpointer, getattr(real, name))
    assert issubclass(ocp.PyTreeCheckpointer, (real.PyTreeCheckpointer, ocp.Checkpointer))
    assert not isinstance(ocp.PyTreeCheckpointer(), real.AsyncCheckpointer)


@pytest.mark.parametrize("name", [
    "CheckpointManager.__init__", "CheckpointManager.save", "CheckpointManager.restore",
    "CheckpointManager.all_steps", "CheckpointManager.delete", "CheckpointManager.metadata",
    "StandardCheckpointer.save", "StandardCheckpointer.restore", "PyTreeCheckpointer.__init__",
    "checkpoint_utils.construct_restore_args", "checkpoint_utils.checkpoints_iterator",
    "checkpoint_utils.wait_for_new_checkpoint", "utils.checkpoint_steps",
    "args.register_with_handler", "apply_transformations", "merge_trees",
    "path.step.standard_name_format", "path.step.composite_name_format"])
def test_signatures_are_those_of_orbax(name: str) -> None:
    found = []
    for module in (ocp, real):
        function: Any = module
        for part in name.split("."):
            function = getattr(function, part)
        found.append([(p.name, p.kind, p.default) for p in
                      inspect.signature(function).parameters.values()
                      if p.kind is not p.VAR_KEYWORD])
    assert [each[:2] for each in found[0]] == [each[:2] for each in found[1]]
    assert ([default for *_, default in found[0] if not callable(default)]
            == [default for *_, default in found[1] if not callable(default)])


@pytest.mark.skipif(real.__version__ != "0.12.8", reason="other versions have other options")
def test_the_table_of_what_does_nothing_names_what_there_is() -> None:
    """Each entry is a field or an argument that exists, and has a reason."""
    for entry, reason in ocp.ACCEPTED_WITHOUT_EFFECT.items():
        assert reason and reason[0].islower() or reason[:7] in ("Stepwel", "Orbax's"), entry
        *owners, argument = entry.replace(")", "").replace(".", "(").split("(")
        if owners == ["handlers"]:
            continue
        found: Any = next(getattr(module, owners[0]) for module in (
            ocp, ocp.options, ocp.args, ocp.handlers, ocp.checkpoint_utils)
            if hasattr(module, owners[0]))
        for owner in owners[1:]:
            found = getattr(found, owner)
        assert argument in inspect.signature(found).parameters, entry


def test_names_of_the_facade_exist_in_orbax() -> None:
    ours_only = {"ACCEPTED_WITHOUT_EFFECT", "AtomicityMode", "AtomicityOptions", "FileOptions",
                 "MultiprocessingOptions", "StepAlreadyExistsError"}  # of modules of Orbax
    assert {name for name in ocp.__all__ if not hasattr(real, name)} <= ours_only


# ---- options that act ---------------------------------------------------------------------------


def test_intervals_and_steps(tmp_path: Path) -> None:
    with ocp.CheckpointManager(tmp_path / "a", options=options(
            save_interval_steps=3, save_on_steps=[4])) as manager:
        assert save(manager, *range(8)) == [True, False, False, True, True, False, True, False]
    with ocp.CheckpointManager(tmp_path / "b", options=options(
            save_interval_steps=3, should_save_fn=lambda step, last: last is None or step > last + 1
            )) as manager:
        assert save(manager, 0, 1, 2, 3, 4) == [True, False, True, False, True]


def test_keep_time_interval(tmp_path: Path) -> None:
    with ocp.CheckpointManager(tmp_path / "a", options=options(
            max_to_keep=1, keep_time_interval=datetime.timedelta(hours=1))) as manager:
        save(manager, 0, 1, 2)
        assert manager.all_steps() == [0, 2]
    with ocp.CheckpointManager(tmp_path / "a", options=options(
            max_to_keep=1, keep_time_interval=datetime.timedelta(hours=1))) as manager:
        assert manager.all_steps() == [0, 2]  # times of steps outlive the manager
        save(manager, 3)
        assert manager.all_steps() == [0, 3]


def test_create_false(tmp_path: Path) -> None:
    manager = ocp.CheckpointManager(tmp_path / "absent", options=options(create=False))
    assert manager.all_steps() == [] and manager.latest_step() is None
    assert not (tmp_path / "absent").exists()
    manager.close()


def test_read_only(tmp_path: Path) -> None:
    with ocp.CheckpointManager(tmp_path / "a") as manager:
        save(manager, 1)
    before = sorted(os.listdir(tmp_path / "a"))
    with ocp.CheckpointManager(tmp_path / "a", options=options(read_only=True)) as manager:
        assert not manager.save(2, args=ocp.args.StandardSave(STATE))
        manager.delete(1)
        assert manager.all_steps() == [1]
        np.testing.assert_array_equal(manager.restore(1)["w"], STATE["w"])
    assert sorted(os.listdir(tmp_path / "a")) == before
    set_off = options(read_only=True, max_to_keep=3, keep_period=2, todelete_subdir="x")
    assert (set_off.max_to_keep, set_off.keep_period, set_off.todelete_subdir) == (None, None, None)
    assert not set_off.create


def test_cleanup_tmp_directories(tmp_path: Path) -> None:
    left = tmp_path / "a" / "7.orbax-checkpoint-tmp"
    left.mkdir(parents=True)
    (left / "part").write_text("")
    with ocp.CheckpointManager(tmp_path / "a"):
        assert left.exists()
    with ocp.CheckpointManager(tmp_path / "a", options=options(cleanup_tmp_directories=True)):
        assert not left.exists()


def test_todelete_subdir(tmp_path: Path) -> None:
    with ocp.CheckpointManager(tmp_path / "a", options=options(
            max_to_keep=1, todelete_subdir="gone")) as manager:
        save(manager, 0, 1)
        assert manager.all_steps() == [1]
        save(manager, 0, force=True)  # and a second time
    with real.StandardCheckpointer() as checkpointer:
        found = checkpointer.restore(tmp_path / "a" / "gone" / "0" / "default")
    np.testing.assert_array_equal(found["w"], STATE["w"])


def test_synchronous_saves(tmp_path: Path) -> None:
    with ocp.CheckpointManager(tmp_path / "a", options=options(
            enable_async_checkpointing=False)) as manager:
        for step in range(3):
            manager.save(step, args=ocp.args.StandardSave(STATE))
            assert not manager.is_saving_in_progress()
            assert (tmp_path / "a" / str(step)).is_dir()
    with pytest.raises(ValueError, match="post_finalization_callback"):
        ocp.CheckpointManager(tmp_path / "b", options=options(
            enable_async_checkpointing=False,
            async_options=ocp.AsyncOptions(post_finalization_callback=print)))


def test_post_finalization_callback(tmp_path: Path) -> None:
    called: list[list[str]] = []
    with ocp.CheckpointManager(tmp_path / "a", options=options(
            max_to_keep=1, async_options=ocp.AsyncOptions(
                post_finalization_callback=lambda: called.append([])))) as manager:
        save(manager, 0, 1)
    assert len(called) == 2
    done = threading.Event()
    with ocp.StandardCheckpointer(async_options=ocp.AsyncOptions(
            post_finalization_callback=done.set)) as checkpointer:
        checkpointer.save(tmp_path / "b", STATE)
        checkpointer.wait_until_finished()
    assert done.is_set()


def test_errors_of_a_callback_are_raised_once(tmp_path: Path) -> None:
    def fail() -> None:
        raise RuntimeError("the callback failed")

    manager = ocp.CheckpointManager(tmp_path / "a", options=options(
        async_options=ocp.AsyncOptions(post_finalization_callback=fail)))
    manager.save(0, args=ocp.args.StandardSave(STATE))
    with pytest.raises(RuntimeError, match="the callback failed"):
        manager.wait_until_finished()
    manager.check_for_errors()
    manager.wait_until_finished()
    assert manager.all_steps() == [0]  # it is saved
    manager.close()


def test_metrics_that_are_not_written(tmp_path: Path) -> None:
    best = {"best_fn": lambda metrics: metrics["loss"], "best_mode": "min"}
    with ocp.CheckpointManager(tmp_path / "a", options=options(
            prevent_write_metrics=True, **best)) as manager:
        save(manager, 0, metrics={"loss": 1.0})
        assert manager.metrics(0) is None
        assert manager.best_step() == 0  # as long as it is known
    with ocp.CheckpointManager(tmp_path / "b", options=options(
            best_fn=lambda metric: metric)) as manager:
        save(manager, 0, metrics=3.5)  # metrics that are one number
        save(manager, 1, metrics=1.5)
        assert manager.metrics(0) == 3.5 and manager.best_step() == 0
    with ocp.CheckpointManager(tmp_path / "b") as manager:
        assert manager.metrics(0) == 3.5
    with ocp.CheckpointManager(tmp_path / "c") as manager:
        save(manager, 0, metrics={"loss": 1.0})  # without best_fn they are not saved, as in Orbax
        assert manager.metrics(0) is None and manager.best_step() == 0


def test_lightweight_initialize(tmp_path: Path) -> None:
    best = {"best_fn": lambda metrics: metrics["loss"]}
    with ocp.CheckpointManager(tmp_path / "a", options=options(**best)) as manager:
        save(manager, 0, metrics={"loss": 1.0})
        save(manager, 1, metrics={"loss": 0.0})
    with ocp.CheckpointManager(tmp_path / "a", options=options(
            lightweight_initialize=True, **best)) as manager:
        assert manager.all_steps() == [0, 1] and manager.best_step() is None
        manager.reload()
        assert manager.best_step() == 0


def test_root_metadata(tmp_path: Path) -> None:
    with ocp.CheckpointManager(tmp_path / "a", metadata={"lang": "en"}) as manager:
        assert manager.metadata().custom_metadata == {"lang": "en"}
    with ocp.CheckpointManager(tmp_path / "a", metadata={"lang": "other"}) as manager:
        assert manager.metadata().custom_metadata == {"lang": "en"}  # written once
    with ocp.CheckpointManager(tmp_path / "b", metadata={"lang": "en"},
                               options=options(save_root_metadata=False)) as manager:
        assert manager.metadata().custom_metadata == {}


def test_step_names(tmp_path: Path) -> None:
    formats = ocp.path.step
    with ocp.CheckpointManager(tmp_path / "a", options=options(
            step_prefix="ckpt", step_format_fixed_length=6)) as manager:
        save(manager, 5)
    assert (tmp_path / "a" / "ckpt_000005").is_dir()
    both = formats.composite_name_format(
        formats.standard_name_format(step_prefix="new"),
        [formats.standard_name_format(step_prefix="new"), formats.standard_name_format()])
    with real.CheckpointManager(tmp_path / "b") as manager:
        manager.save(1, args=real.args.StandardSave(STATE))
    with ocp.CheckpointManager(tmp_path / "b", options=options(step_name_format=both)) as manager:
        assert manager.all_steps() == [1]
        save(manager, 2)
        np.testing.assert_array_equal(manager.restore(1)["w"], STATE["w"])
    assert (tmp_path / "b" / "new_2").is_dir() and (tmp_path / "b" / "1").is_dir()

    class Spelled:
        def build_name(self, step: int) -> str:
            return f"{step}-of-the-run"

    with pytest.raises(ValueError, match="1-of-the-run"):
        ocp.CheckpointManager(tmp_path / "c", options=options(step_name_format=Spelled()))


@pytest.mark.parametrize("bad", [
    {"best_mode": "best"}, {"max_to_keep": -1}, {"todelete_subdir": "a", "todelete_full_path": "b"},
    {"enable_per_process_directory_creation": True}])
def test_options_that_contradict(bad: dict[str, Any]) -> None:
    for lib in (real, ocp):
        with pytest.raises(ValueError):
            lib.CheckpointManagerOptions(**bad)


@pytest.mark.parametrize("bad", [
    {"item_names": ("a",), "checkpointers": {"a": ocp.PyTreeCheckpointer()}},
    {"item_handlers": ocp.StandardCheckpointHandler(), "item_names": ("a",)},
    {"handler_registry": ocp.DefaultCheckpointHandlerRegistry(
        ocp.handlers.create_default_handler_registry(a=ocp.StandardCheckpointHandler())),
     "item_names": ("a",)},
    {"options": ocp.CheckpointManagerOptions(
        max_to_keep=1, preservation_policy=ocp.checkpoint_managers.LatestN(1))}])
def test_arguments_that_exclude_each_other(bad: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="exclusive"):
        ocp.CheckpointManager(tmp_path, **bad)
