# SPDX-License-Identifier: Apache-2.0
"""The Orbax v0 facade: every option, policies, handlers of one's own, following a run, errors."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import inspect
import json
import os
import pathlib
import threading
from pathlib import Path
from typing import Any

import grain.python as grain
import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as real
import pytest
from etils import epath
from group_runs import SCRIPT, start

import stepwell
from stepwell.compat import orbax as ocp

STATE = {"w": jnp.arange(4.0)}


def save(manager: Any, *steps: int, **more: Any) -> list[bool]:
    done = [manager.save(step, args=ocp.args.StandardSave(STATE), **more) for step in steps]
    manager.wait_until_finished()
    return done


def options(**more: Any) -> ocp.CheckpointManagerOptions:
    return ocp.CheckpointManagerOptions(**more)


# ---- names and tables ---------------------------------------------------------------------------


def test_options_have_the_fields_of_orbax() -> None:
    for name in ("CheckpointManagerOptions", "AsyncOptions"):
        of_orbax = {f.name: f for f in dataclasses.fields(getattr(real, name))}
        of_ours = {f.name: f for f in dataclasses.fields(getattr(ocp, name))}
        assert list(of_ours) == list(of_orbax)
        for field in of_orbax:
            if isinstance(of_orbax[field].default, (int, bool, str, type(None))):
                assert of_ours[field].default == of_orbax[field].default, field
    for name in ("MultiprocessingOptions", "FileOptions", "AtomicityOptions"):
        assert ([f.name for f in dataclasses.fields(getattr(ocp.options, name))]
                == [f.name for f in dataclasses.fields(getattr(real.options, name))])


def test_arguments_have_the_fields_of_orbax() -> None:
    for name in ocp.args.__all__:
        cls = getattr(ocp.args, name)
        if dataclasses.is_dataclass(cls) and name not in ("Composite", "CheckpointArgs"):
            assert ([f.name for f in dataclasses.fields(cls)]
                    == [f.name for f in dataclasses.fields(getattr(real.args, name))]), name
    for name in ("SaveArgs", "RestoreArgs", "ArrayRestoreArgs", "Transform", "RestoreTransform"):
        assert ([f.name for f in dataclasses.fields(getattr(ocp, name))]
                == [f.name for f in dataclasses.fields(getattr(real, name))]), name


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
    assert {name for name in ocp.__all__ if not hasattr(real, name)} == ours_only


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
    assert manager.all_steps() == []
    manager.reload()
    assert manager.all_steps() == [0]  # it is on the disk
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
            return f"step-{step}"

    with pytest.raises(ValueError, match="step-1"):
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


# ---- policies -----------------------------------------------------------------------------------


@dataclasses.dataclass
class Info:
    step: int
    time: datetime.datetime
    metrics: Any


def test_policies_decide_as_those_of_orbax() -> None:
    start = datetime.datetime.now(tz=datetime.timezone.utc) - datetime.timedelta(hours=2)
    infos = [Info(step, start + datetime.timedelta(minutes=7 * step),
                  None if step % 4 == 1 else {"loss": (step * 7) % 5}) for step in range(1, 14)]
    ours, theirs = ocp.checkpoint_managers, real.checkpoint_managers
    for make in (
            lambda p: p.LatestN(4), lambda p: p.LatestN(None), lambda p: p.LatestN(0),
            lambda p: p.EveryNSeconds(1000), lambda p: p.EveryNSteps(3),
            lambda p: p.EveryNSteps(3, exact_interval=False, max_to_keep=2),
            lambda p: p.EveryNStepsClosest(5), lambda p: p.EveryNStepsClosest(4, max_to_keep=1),
            lambda p: p.CustomSteps([2, 9, 40]),
            lambda p: p.LatestDuration(datetime.timedelta(minutes=70)),
            lambda p: p.BestN(get_metric_fn=lambda m: m["loss"], n=3),
            lambda p: p.BestN(get_metric_fn=lambda m: m["loss"], n=3, reverse=True,
                              keep_checkpoints_without_metrics=False),
            lambda p: p.AnyPreservationPolicy([p.LatestN(1), p.EveryNSteps(6)])):
        for count in (0, 1, 5, 13):
            if count == 0 and make(ours) == ours.EveryNStepsClosest(5):
                continue
            found = [list(make(p).should_preserve(infos[:count], context=p.PreservationContext()))
                     for p in (ours, theirs)]
            assert found[0] == found[1], (make(ours), count)
    for make in (lambda p: p.FixedIntervalPolicy(4), lambda p: p.SpecificStepsPolicy([3, 5]),
                 lambda p: p.InitialSavePolicy(), lambda p: p.PreemptionCheckpointingPolicy(),
                 lambda p: p.ContinuousCheckpointingPolicy(),
                 lambda p: p.ContinuousCheckpointingPolicy(minimum_interval_secs=1200),
                 lambda p: p.AnySavePolicy([p.InitialSavePolicy(), p.FixedIntervalPolicy(6)])):
        for number, before in ((0, 0), (3, 2), (5, 3), (12, 11)):
            for saving, preempted in ((False, False), (True, False), (False, True)):
                found = [make(p).should_save(
                    infos[number], infos[:before], context=p.DecisionContext(
                        is_saving_in_progress=saving, reached_preemption=preempted,
                        multiprocessing_options=ocp.MultiprocessingOptions()))
                    for p in (ours, theirs)]
                assert found[0] == found[1], (make(ours), number)


# ---- handlers of one's own ----------------------------------------------------------------------


class LinesHandler(ocp.CheckpointHandler):
    """Saves a list of strings as a file, and a copy in a folder."""

    closed = 0

    def save(self, directory: Any, args: Any) -> None:
        (directory / "lines.txt").write_text("\n".join(args.item))
        (directory / "deep" / "er").mkdir(parents=True)
        (directory / "deep" / "er" / "count").write_text(str(len(args.item)))

    def restore(self, directory: Any, args: Any = None) -> Any:
        lines = (directory / "lines.txt").read_text().split("\n")
        assert (directory / "deep" / "er" / "count").read_text() == str(len(lines))
        return [args.prefix + line for line in lines]

    def finalize(self, directory: Any) -> None:
        (directory / "finalized").write_text("")

    def close(self) -> None:
        LinesHandler.closed += 1


@ocp.args.register_with_handler(LinesHandler, for_save=True)
@dataclasses.dataclass
class LinesSave(ocp.args.CheckpointArgs):
    item: list[str]


@ocp.args.register_with_handler(LinesHandler, for_restore=True)
@dataclasses.dataclass
class LinesRestore(ocp.args.CheckpointArgs):
    prefix: str = ""


class AsyncBytesHandler(ocp.AsyncCheckpointHandler):
    """Writes bytes from a coroutine; has no class of arguments."""

    async def async_save(self, directory: Any, item: bytes) -> Any:
        await asyncio.sleep(0)

        class Write:
            def result(self, timeout: Any = None) -> None:
                (pathlib.Path(directory) / "bytes").write_bytes(item)

        return [Write()]

    def save(self, directory: Any, item: bytes) -> None:
        raise AssertionError("async_save is there")

    def restore(self, directory: Any, item: Any = None) -> bytes:
        return (pathlib.Path(directory) / "bytes").read_bytes()


def test_handlers_of_ones_own(tmp_path: Path) -> None:
    with ocp.CheckpointManager(tmp_path / "a") as manager:
        manager.save(0, args=ocp.args.Composite(text=LinesSave(["a", "b"]),
                                                state=ocp.args.StandardSave(STATE)))
        found = manager.restore(0, args=ocp.args.Composite(text=LinesRestore("> ")))
        assert found.text == ["> a", "> b"]
        manager.wait_until_finished()
        assert (tmp_path / "a" / "0" / "text" / "finalized").exists()
    with ocp.CheckpointManager(tmp_path / "a") as manager:
        assert manager.restore(0).text == ["a", "b"]  # the step knows the handler
    assert LinesHandler.closed == 2
    with ocp.Checkpointer(LinesHandler()) as checkpointer:
        checkpointer.save(tmp_path / "b", args=LinesSave(["c"]))
        assert checkpointer.restore(tmp_path / "b", args=LinesRestore("+")) == ["+c"]


def test_handlers_without_arguments_of_their_own(tmp_path: Path) -> None:
    with ocp.CheckpointManager(
            tmp_path / "a", {"blob": ocp.Checkpointer(AsyncBytesHandler())}) as manager:
        manager.save(0, {"blob": b"123"})
        assert manager.restore(0, {"blob": None})["blob"] == b"123"

    async def inside_a_loop() -> Any:
        with ocp.Checkpointer(AsyncBytesHandler()) as checkpointer:
            checkpointer.save(tmp_path / "b", b"456")
            return checkpointer.restore(tmp_path / "b")

    assert asyncio.run(inside_a_loop()) == b"456"


class NoisyHandler(ocp.CheckpointHandler):
    """A handler that is built on another one."""

    def __init__(self) -> None:
        self.inner = ocp.PyTreeCheckpointHandler()

    def save(self, directory: Any, args: Any) -> None:
        self.inner.save(directory, args=ocp.args.PyTreeSave({"inner": args.item}))

    def restore(self, directory: Any, args: Any) -> Any:
        return self.inner.restore(directory, args=ocp.args.PyTreeRestore())["inner"]


@ocp.args.register_with_handler(NoisyHandler, for_save=True, for_restore=True)
@dataclasses.dataclass
class Noisy(ocp.args.CheckpointArgs):
    item: Any = None


def test_handlers_built_on_others(tmp_path: Path) -> None:
    with ocp.CheckpointManager(tmp_path / "a") as manager:
        manager.save(0, args=ocp.args.Composite(noisy=Noisy({"x": np.arange(3)})))
        found = manager.restore(0, args=ocp.args.Composite(noisy=Noisy()))
    np.testing.assert_array_equal(found.noisy["x"], np.arange(3))


def test_registry(tmp_path: Path) -> None:
    registry = ocp.DefaultCheckpointHandlerRegistry()
    registry.add("state", ocp.args.PyTreeSave)
    registry.add("state", ocp.args.PyTreeRestore, ocp.PyTreeCheckpointHandler())
    with pytest.raises(ValueError, match="already exists"):
        registry.add("state", ocp.args.PyTreeSave)
    with pytest.raises(KeyError):
        registry.get("other", ocp.args.PyTreeSave)
    with ocp.CheckpointManager(tmp_path / "a", handler_registry=registry) as manager:
        manager.save(0, args=ocp.args.Composite(state=ocp.args.PyTreeSave(STATE)))
        assert list(manager.restore(0)) == ["state"]
        with pytest.raises(ValueError, match="does not match with any registered handler"):
            manager.save(1, args=ocp.args.Composite(state=ocp.args.StandardSave(STATE)))


def test_handlers_that_others_registered_with_orbax(tmp_path: Path) -> None:
    class Handler(real.CheckpointHandler):
        def save(self, directory: Any, args: Any) -> None:
            (directory / "value").write_text(json.dumps(args.item))

        def restore(self, directory: Any, args: Any) -> Any:
            return json.loads((directory / "value").read_text())

    @real.args.register_with_handler(Handler, for_save=True, for_restore=True)
    @dataclasses.dataclass
    class Both(real.args.CheckpointArgs):
        item: Any = None

    with ocp.CheckpointManager(tmp_path / "a") as manager:
        manager.save(0, args=ocp.args.Composite(it=Both([1, 2]), s=real.args.StandardSave(STATE)))
        found = manager.restore(0, args=real.args.Composite(it=Both(),
                                                            s=real.args.StandardRestore()))
    assert found.it == [1, 2]
    np.testing.assert_array_equal(found.s["w"], STATE["w"])


# ---- arguments of leaves ------------------------------------------------------------------------


def test_save_args_convert(tmp_path: Path) -> None:
    tree = {"a": jnp.ones(3, jnp.float32), "b": np.ones(2), "c": 3}
    for lib in (real, ocp):  # SaveArgs of either
        path = tmp_path / lib.__name__
        save_args = jax.tree.map(lambda _: lib.SaveArgs(dtype=jnp.bfloat16), tree)  # noqa: B023
        ocp.PyTreeCheckpointer().save(path, tree, save_args=save_args)
        found = ocp.PyTreeCheckpointer().restore(path)
        assert (found["a"].dtype, found["b"].dtype, found["c"]) == (jnp.bfloat16, jnp.bfloat16, 3)


def test_what_standard_save_refuses(tmp_path: Path) -> None:
    """As Orbax does, which waits for minutes then."""
    with ocp.CheckpointManager(tmp_path / "a") as manager:
        for item in (None, jnp.ones(3), 3):
            with pytest.raises(ValueError):
                manager.save(0, args=ocp.args.StandardSave(item))
        assert manager.all_steps() == []
        with pytest.raises(TypeError, match="Unsupported type"):
            ocp.Checkpointer(ocp.ArrayCheckpointHandler()).save(
                tmp_path / "array", args=ocp.args.ArraySave("text"))
        save(manager, 0)  # the manager goes on


def test_placeholders_are_not_read(tmp_path: Path) -> None:
    with ocp.CheckpointManager(tmp_path / "a") as manager:
        manager.save(0, args=ocp.args.PyTreeSave({"a": jnp.ones(2), "b": 3}))
        found = manager.restore(0, args=ocp.args.PyTreeRestore({"a": ocp.PLACEHOLDER, "b": 0}))
        assert found == {"a": ..., "b": 3}


def test_metadata_is_a_target(tmp_path: Path) -> None:
    with ocp.CheckpointManager(tmp_path / "a") as manager:
        manager.save(0, args=ocp.args.StandardSave({"a": jnp.ones((2, 3)), "b": [1, np.zeros(2)]}))
        described = manager.item_metadata(0)
        assert (described["a"].shape, described["a"].dtype) == ((2, 3), np.float32)
        assert described["b"][0].dtype == np.int64
        assert jax.tree.map(lambda leaf: leaf.shape, described).tree == {
            "a": (2, 3), "b": [(), (2,)]}
        for target in (described, described.tree,
                       jax.tree.map(ocp.utils.to_shape_dtype_struct, described.tree)):
            found = manager.restore(0, args=ocp.args.StandardRestore(target))
            assert found["a"].sharding == jnp.ones(1).sharding and found["b"][0] in (0, 1)
        args = ocp.checkpoint_utils.construct_restore_args(described)
        found = manager.restore(0)
        assert args["a"].global_shape == (2, 3) and args["b"][0].restore_type is int


def test_custom_metadata_of_items(tmp_path: Path) -> None:
    with ocp.CheckpointManager(tmp_path / "a") as manager:
        manager.save(0, args=ocp.args.Composite(
            s=ocp.args.PyTreeSave(STATE, custom_metadata={"of": "item"})),
            custom_metadata={"of": "step"})
        step = manager.metadata(0)
        assert step.custom_metadata == {"of": "step"}
        assert step.item_metadata.s.custom_metadata == {"of": "item"}
        assert step.item_handlers["s"].endswith(".PyTreeCheckpointHandler")
        assert step.commit_timestamp_nsecs > 0


def test_leaves_that_orbax_cannot_keep_apart_or_save(tmp_path: Path) -> None:
    tree = {"a.b": jnp.ones(2), "a": {"b": jnp.zeros(3)}, "text": "x", "bytes": b"12",
            "big": 2**70, "empty": jnp.zeros((0, 3)), "complex": 1j, "none": {}, "a/b": np.arange(2)}
    with ocp.CheckpointManager(tmp_path / "a") as manager:
        manager.save(0, args=ocp.args.StandardSave(tree))
        manager.wait_until_finished()
        for args in (None, ocp.args.StandardRestore(tree), ocp.args.PyTreeRestore(tree)):
            with ocp.CheckpointManager(tmp_path / "a") as other:
                found = other.restore(0, args=args)
            assert jax.tree.structure(found) == jax.tree.structure(tree)
            for one, wanted in zip(jax.tree.leaves(found), jax.tree.leaves(tree), strict=True):
                assert type(one) is type(wanted)
                np.testing.assert_array_equal(one, wanted)
        with pytest.raises(ValueError, match="default/x: is of type builtins.object"):
            manager.save(1, args=ocp.args.StandardSave({"x": object()}))
    with pytest.raises(ValueError, match="builtins.object"):
        ocp.PyTreeCheckpointer().save(tmp_path / "b", {"x": object()})
    assert not (tmp_path / "b").exists()


def test_damage_is_found(tmp_path: Path) -> None:
    with ocp.CheckpointManager(tmp_path / "a") as manager:
        manager.save(0, args=ocp.args.StandardSave({"w": np.random.default_rng(0).random(50_000)}))
        manager.wait_until_finished()
        segment = max((tmp_path / "a" / ".stepwell" / "segments").rglob("*"),
                      key=lambda path: path.stat().st_size)
        with open(segment, "r+b") as file:
            file.seek(200_000)
            byte = file.read(1)
            file.seek(200_000)
            file.write(bytes([byte[0] ^ 1]))
        with pytest.raises(stepwell.CorruptionError):
            manager.restore(0)


def test_a_second_process_reads(start_python: Any, tmp_path: Path) -> None:
    child = start_python("""
import sys, time
from stepwell.compat import orbax as ocp
with ocp.CheckpointManager(sys.argv[1]) as manager:
    manager.save(0, args=ocp.args.StandardSave({"w": 1}))
    manager.wait_until_finished()
    print("saved", flush=True)
    time.sleep(600)
""", tmp_path / "a")
    assert child.stdout.readline() == "saved\n"
    with ocp.CheckpointManager(tmp_path / "a") as manager:
        assert manager.restore(0) == {"w": 1}
        for change in (lambda: save(manager, 1), lambda: manager.delete(0)):
            with pytest.raises(stepwell.LockedError, match=str(child.pid)):
                change()
    child.kill()
    child.wait()


def test_grain_iterators(tmp_path: Path) -> None:
    dataset = grain.MapDataset.range(20).map(lambda x: x * 2).to_iter_dataset()
    iterator = iter(dataset)
    for _ in range(5):
        next(iterator)
    with ocp.CheckpointManager(tmp_path / "a") as manager:
        manager.save(0, args=ocp.args.Composite(
            data=grain.PyGrainCheckpointSave(iterator), state=ocp.args.StandardSave(STATE)))
        other = iter(dataset)
        found = manager.restore(0, args=ocp.args.Composite(
            data=grain.PyGrainCheckpointRestore(other)))
        assert next(found.data) == next(iterator) == 10


# ---- single checkpoints -------------------------------------------------------------------------


def test_composite_checkpointer(tmp_path: Path) -> None:
    with ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as checkpointer:
        checkpointer.save(tmp_path / "a", args=ocp.args.Composite(
            state=ocp.args.StandardSave(STATE), data=ocp.args.JsonSave({"x": 1})))
        found = checkpointer.restore(tmp_path / "a", args=ocp.args.Composite(
            data=ocp.args.JsonRestore()))
        assert dict(found) == {"data": {"x": 1}}
        everything = checkpointer.restore(tmp_path / "a")
        assert sorted(everything) == ["data", "state"]
        assert sorted(checkpointer.metadata(tmp_path / "a").item_handlers) == ["data", "state"]
        with pytest.raises(KeyError, match="other"):
            checkpointer.restore(tmp_path / "a", args=ocp.args.Composite(
                other=ocp.args.JsonRestore()))
    with real.Checkpointer(real.CompositeCheckpointHandler()) as checkpointer:
        found = checkpointer.restore(tmp_path / "a", args=real.args.Composite(
            state=real.args.StandardRestore(STATE), data=real.args.JsonRestore()))
        np.testing.assert_array_equal(found.state["w"], STATE["w"])


def test_json_and_array_checkpointers(tmp_path: Path) -> None:
    for writer, reader in ((ocp, real), (real, ocp), (ocp, ocp)):
        name = f"{writer.__name__}-{reader.__name__}"
        with writer.Checkpointer(writer.JsonCheckpointHandler()) as checkpointer:
            checkpointer.save(tmp_path / f"{name}-json", {"a": [1, None]})
        with reader.Checkpointer(reader.JsonCheckpointHandler()) as checkpointer:
            assert checkpointer.restore(tmp_path / f"{name}-json") == {"a": [1, None]}
        with writer.Checkpointer(writer.ArrayCheckpointHandler()) as checkpointer:
            checkpointer.save(tmp_path / f"{name}-array", np.arange(4))
        with reader.Checkpointer(reader.ArrayCheckpointHandler()) as checkpointer:
            np.testing.assert_array_equal(
                checkpointer.restore(tmp_path / f"{name}-array"), np.arange(4))


def test_single_checkpoints_move(tmp_path: Path) -> None:
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "a", STATE, custom_metadata={"x": 1})
        checkpointer.check_for_errors()
        checkpointer.wait_until_finished()
        os.rename(tmp_path / "a", tmp_path / "b")
        np.testing.assert_array_equal(checkpointer.restore(tmp_path / "b")["w"], STATE["w"])
        assert checkpointer.metadata(tmp_path / "b").custom_metadata == {"x": 1}
        with pytest.raises(FileNotFoundError):
            checkpointer.restore(tmp_path / "a")


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
        assert two.all_steps() == []
        two.reload()
        assert two.all_steps() == [0]
        save(two, 1)
        assert one.all_steps(read=True) == [0, 1]


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
        transforms = {"a1": lib.Transform(original_key="a"), "c1": lib.Transform(
            original_key="b/c"), "b": {"c": lib.Transform(multi_value_fn=lambda _, kv: kv["a"] * 7)},
            "x": lib.Transform(original_key="f", value_fn=lambda v: v + 0.5),
            r"x(\d.*)": lib.Transform(original_key=r"b\1")}
        found.append([lib.apply_transformations(original, transforms, new, default)
                      for default in (True, False)])
        found[-1].append(lib.merge_trees({"a": 1, "b": {"c": 2}}, {"b": {"c": 3, "d": 4}}))
    assert found[0] == found[1]


def test_import_of_the_facade_imports_no_jax(run_python: Any) -> None:
    status, out, err = run_python("""
import sys
from stepwell.compat import orbax
print(sorted({name.split(".")[0] for name in sys.modules} & {"jax", "orbax", "flax", "etils"}))
""")
    assert (status, out.strip()) == (0, "[]"), err


def test_meshes(run_python: Any, tmp_path: Path) -> None:
    status, out, err = run_python("""
import sys
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
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
              "k": jax.ShapeDtypeStruct((8,), state["k"].dtype, sharding=NamedSharding(four, P("z"))),
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
    status, out, err = run_python("""
import sys
import jax, numpy as np
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


def test_a_run_that_was_killed_goes_on(run_python: Any, tmp_path: Path) -> None:
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
        status, _, err = run_python(line + source, root)
        assert status == -9, err
        with lib.CheckpointManager(root, options=lib.CheckpointManagerOptions(
                max_to_keep=2)) as manager:
            found.append([list(manager.all_steps()), manager.latest_step(),
                          int(manager.restore(None)["n"]),
                          manager.save(4, args=lib.args.StandardSave({"n": jnp.asarray(4)}))])
            manager.wait_until_finished()
            found[-1].append(list(manager.all_steps()))
    assert found[0] == found[1] == [[2, 3], 3, 3, True, [3, 4]]
