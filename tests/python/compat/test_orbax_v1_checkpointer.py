# SPDX-License-Identifier: Apache-2.0
"""stepwell.compat.orbax_v1: training.Checkpointer."""

from __future__ import annotations

import os
import pathlib
import shutil
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from orbax.checkpoint import v1 as real

import forks
import stepwell
from equality import alike
from group_runs import SCRIPT, start
from stepwell.compat import orbax_v1 as ocp

pytestmark = [pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
              pytest.mark.filterwarnings("ignore:Sharding info not provided:UserWarning")]

saves = ocp.training.save_decision_policies
keeps = ocp.training.preservation_policies


def train_step(state: dict[str, Any]) -> dict[str, Any]:
    return {"w": state["w"] + 1, "step": state["step"] + 1}


def init() -> dict[str, Any]:
    return {"w": jnp.zeros(4), "step": 0}


def loop(path: pathlib.Path, num_steps: int, source: pathlib.Path | None = None,
         library: Any = ocp) -> tuple[int, Any]:
    """The loop of Checkpointing 101: resume, else a source checkpoint, else from scratch."""
    with library.training.Checkpointer(
            path, save_decision_policy=library.training.save_decision_policies.FixedIntervalPolicy(
                1), preservation_policy=library.training.preservation_policies.LatestN(3)) as ckptr:
        if ckptr.latest is not None:
            state = ckptr.load(ckptr.latest, abstract_state=init())
        elif source is not None:
            state = library.load(source, init())
        else:
            state = init()
        start_step = ckptr.latest.step if ckptr.latest else 0
        for step in range(start_step, num_steps):
            state = train_step(state)
            ckptr.save(step, state)
        return start_step, state


def test_loads_wait_for_a_save_under_way(tmp_path: pathlib.Path) -> None:
    state = {"w": jnp.ones((1000, 1000)), **{f"w{i}": jnp.ones(2) for i in range(300)}}
    with ocp.training.Checkpointer(tmp_path / "run", preservation_policy=keeps.LatestN(1)) as ckptr:
        for step in range(0, 20, 2):
            ckptr.save_async(step, state, force=True)
            assert ckptr.load()["w"].shape == (1000, 1000)
            ckptr.save_async(step + 1, state, force=True)
            assert ckptr.metadata().step == step + 1


def test_the_guides_loop_resumes_and_starts_from_a_source(tmp_path: pathlib.Path) -> None:
    assert loop(tmp_path / "run", 5)[0] == 0
    start, state = loop(tmp_path / "run", 10)
    assert start == 4 and state["step"] == 11  # step 4 again, which is there and stays
    assert loop(tmp_path / "run", 10)[0] == 9
    assert [path for path in sorted(os.listdir(tmp_path / "run")) if path.isdigit()] == [
        "7", "8", "9"]
    ocp.save(tmp_path / "source", {"w": jnp.full(4, 100.0), "step": 100})
    assert loop(tmp_path / "tuned", 2, tmp_path / "source")[1]["step"] == 102
    assert real.load(tmp_path / "tuned" / "1")["step"] == 102
    with real.training.Checkpointer(tmp_path / "tuned") as opened:
        assert [each.step for each in opened.checkpoints] == [0, 1]
        np.testing.assert_array_equal(opened.load(1)["w"], [102.0] * 4)


def test_metrics_metadata_and_several_checkpointables(tmp_path: pathlib.Path) -> None:
    with ocp.training.Checkpointer(tmp_path, custom_metadata={"model": "small"},
                                   preservation_policy=keeps.BestN(
                                       get_metric_fn=lambda metrics: -metrics["loss"], n=2)
                                   ) as ckptr:
        for step, loss in enumerate([3.0, 1.0, 2.0, 4.0]):
            assert ckptr.save_checkpointables(
                step, {"params": {"w": jnp.full(2, loss)}, "dataset": {"at": step}},
                metrics={"loss": loss}, custom_metadata={"lr": 0.1}, force=True)
        assert [(each.step, each.metrics) for each in ckptr.checkpoints] == [
            (1, {"loss": 1.0}), (2, {"loss": 2.0})]
        assert ckptr.load_checkpointables(1, {"dataset": None}) == {"dataset": {"at": 1}}
        np.testing.assert_array_equal(ckptr.load(checkpointable_name="params")["w"], [2.0, 2.0])
        metadata = ckptr.checkpointables_metadata(2)
        assert sorted(metadata.metadata) == ["dataset", "params"]
        assert metadata.custom_metadata == {"lr": 0.1} and metadata.metrics == {"loss": 2.0}
        assert metadata.step == 2 and metadata.time.year > 2000
        assert ckptr.delete(2, checkpointable_name="dataset")
        assert list(ckptr.load_checkpointables(2)) == ["params"]
    with ocp.training.Checkpointer(tmp_path, custom_metadata={"model": "other"}) as ckptr:
        assert ckptr.root_metadata().custom_metadata == {"model": "small"}
        assert [each.metrics for each in ckptr.checkpoints] == [{"loss": 1.0}, {"loss": 2.0}]
    with real.training.Checkpointer(tmp_path) as opened:
        assert opened.root_metadata().custom_metadata == {"model": "small"}
        assert [each.step for each in opened.checkpoints] == [1, 2]
        assert opened.metadata(1).custom_metadata == {"lr": 0.1}


def test_asynchronous_saves(tmp_path: pathlib.Path) -> None:
    done: list[bool] = []
    add = jax.jit(lambda w: w + 1, donate_argnums=0)
    w = jnp.zeros(1000)
    with ocp.training.Checkpointer(tmp_path, save_decision_policy=saves.FixedIntervalPolicy(2)
                                   ) as ckptr:
        for step in range(6):
            w = add(w)
            response = ckptr.save_async(step, {"w": w})
            assert (response is None) == (step % 2 == 1)
            if response is not None:
                response.on_complete(done.append)
        ckptr.wait()
        assert not ckptr.is_saving_in_progress() and done == [True] * 3
        for step in (0, 2, 4):
            assert ckptr.load(step)["w"][0] == step + 1
        assert ckptr.load_async(2).result()["w"][5] == 3


def test_cancelled_steps_are_not_there(tmp_path: pathlib.Path) -> None:
    with ocp.training.Checkpointer(tmp_path) as ckptr:
        ckptr.save(0, init())
        ckptr.save_async(1, init(), force=True)
        ckptr.cancel(1)
        assert [each.step for each in ckptr.checkpoints] == [0]
        assert ckptr.save(1, init())
    assert [name for name in sorted(os.listdir(tmp_path)) if name.isdigit()] == ["0", "1"]


def test_a_step_is_replaced_only_when_asked_for(tmp_path: pathlib.Path) -> None:
    with ocp.training.Checkpointer(tmp_path) as ckptr:
        ckptr.save(0, {"x": 0})
        with pytest.raises(ocp.training.errors.StepAlreadyExistsError, match="Step 0"):
            ckptr.save(0, {"x": 1})
        assert ckptr.save(0, {"x": 2}, overwrite=True)
        assert ckptr.load(0) == {"x": 2}
    with ocp.training.Checkpointer(
            tmp_path, save_decision_policy=saves.SpecificStepsPolicy([5])) as ckptr:
        assert ckptr.save(0, {"x": 3}) is False  # a run that resumes
        assert ckptr.save(0, {"x": 3}, overwrite=True) is False  # the policy does not want it
        with pytest.raises(ocp.training.errors.StepAlreadyExistsError):
            ckptr.save(0, {"x": 3}, force=True)
        assert ckptr.load(0) == {"x": 2}


def test_names_of_steps(tmp_path: pathlib.Path) -> None:
    formats = ocp.path.step
    old = formats.standard_name_format()
    new = formats.standard_name_format(step_prefix="ckpt", step_format_fixed_length=8)
    with real.training.Checkpointer(tmp_path) as theirs:
        theirs.save(1, {"x": 1})
    both = formats.composite_name_format(new, [new, old])
    with ocp.training.Checkpointer(tmp_path, step_name_format=both) as ckptr:
        assert ckptr.load(1) == {"x": 1}
        ckptr.save(12, {"x": 12})
        assert ckptr.latest.path.name == "ckpt_00000012"
        assert ckptr.load() == {"x": 12}
    assert real.load(tmp_path / "ckpt_00000012") == {"x": 12}
    found = new.find_step(tmp_path, 12)
    assert found.step == 12 and [each.step for each in both.find_all(tmp_path)] == [12, 1]
    with pytest.raises(ValueError, match="No step path found with name=13"):
        old.find_step(tmp_path, 13)
    with pytest.raises(ValueError, match="must be present"):
        formats.composite_name_format(new, [old])

    class Odd:
        def build_name(self, step: int) -> str:
            return f"step-{step}-of-run"

        def find_all(self, base_path: Any) -> Any:
            return iter(())

        def find_step(self, base_path: Any, step: int) -> Any:
            raise ValueError(step)

    with pytest.raises(ValueError, match="step_name_format names step"):
        ocp.training.Checkpointer(tmp_path / "odd", step_name_format=Odd())


def test_a_root_of_real_orbax_goes_on(tmp_path: pathlib.Path) -> None:
    state = {"w": jnp.arange(4.0), "n": np.arange(3), "t": (1, 2)}
    with real.training.Checkpointer(tmp_path, custom_metadata={"run": "theirs"}) as theirs:
        for step in range(3):
            theirs.save(step, state | {"n": np.arange(step + 1)}, metrics={"loss": step / 2},
                        custom_metadata={"step": step})
        theirs.save_checkpointables(3, {"state": state, "dataset": {"at": 3}})
    with ocp.training.Checkpointer(tmp_path, preservation_policy=keeps.LatestN(4)) as ckptr:
        assert [(each.step, each.metrics) for each in ckptr.checkpoints] == [
            (0, {"loss": 0.0}), (1, {"loss": 0.5}), (2, {"loss": 1.0}), (3, None)]
        assert ckptr.root_metadata().custom_metadata == {"run": "theirs"}
        assert alike(ckptr.load(2, state), state)
        assert alike(ckptr.load(), real.load(tmp_path / "3"))
        assert ckptr.metadata(1).custom_metadata == {"step": 1}
        assert ckptr.load_checkpointables(3)["dataset"] == {"at": 3}
        assert ckptr.save(4, state)  # step 0 goes
        assert ckptr.save(2, {"x": 2}, overwrite=True, force=True)
        assert ckptr.load(2) == {"x": 2}
        assert ckptr.delete(1)
        assert ckptr.delete(3, checkpointable_name="dataset")
        assert list(ckptr.load_checkpointables(3)) == ["state"]
        assert [each.step for each in ckptr.checkpoints] == [2, 3, 4]
    names = sorted(name for name in os.listdir(tmp_path) if name.isdigit())
    assert names == ["2", "3", "4"]
    for name in names:
        real.load(tmp_path / name)


def test_a_root_is_moved_as_a_whole(tmp_path: pathlib.Path) -> None:
    with ocp.training.Checkpointer(tmp_path / "a") as ckptr:
        ckptr.save(0, init())
    shutil.move(tmp_path / "a", tmp_path / "b")
    assert alike(ocp.load(tmp_path / "b" / "0", init()), init())
    assert alike(real.load(tmp_path / "b" / "0", init()), init())
    with ocp.training.Checkpointer(tmp_path / "b") as ckptr:
        assert alike(ckptr.load(0, init()), init())
        ckptr.save(1, train_step(init()))
    with stepwell.open(tmp_path / "b" / ".stepwell", mode="r") as store:
        assert store.steps() == [0, 1]


def test_a_killed_run_keeps_what_was_saved(tmp_path: pathlib.Path) -> None:
    script = f"""
import os, numpy as np
from stepwell.compat import orbax_v1 as ocp
ckptr = ocp.training.Checkpointer({str(tmp_path)!r})
for step in range(3):
    ckptr.save(step, {{"x": np.full(1000, step)}})
ckptr.save_async(3, {{"x": np.full(1000, 3)}})
os._exit(9)
"""
    assert forks.run(script)[0] == 9
    (tmp_path / "7.orbax-checkpoint-tmp").mkdir()
    with ocp.training.Checkpointer(tmp_path, cleanup_tmp_directories=True) as ckptr:
        steps = [each.step for each in ckptr.checkpoints]
        assert steps in ([0, 1, 2], [0, 1, 2, 3])
        for step in steps:
            assert ckptr.load(step)["x"][999] == step
        assert ckptr.save(4, {"x": 4})
    assert not (tmp_path / "7.orbax-checkpoint-tmp").exists()


def test_policies_of_ones_own_loggers_and_contexts(tmp_path: pathlib.Path) -> None:
    class Odd(saves.SaveDecisionPolicy):
        def should_save(self, step: Any, previous_steps: Any, *, context: Any) -> bool:
            assert not context.is_saving_in_progress and not context.reached_preemption
            assert all(each.step < step.step for each in previous_steps)
            return bool(step.step % 2)

    class Even(keeps.PreservationPolicy):
        def should_preserve(self, checkpoints: Any, *, context: Any) -> list[bool]:
            return [each.step != 3 for each in checkpoints]

    class Logger:
        def __init__(self) -> None:
            self.entries: list[dict[str, Any]] = []

        def log_entry(self, entry: dict[str, Any]) -> None:
            self.entries.append(entry)

    logger, called = Logger(), []
    context = ocp.Context()
    context.array.saving.storage_options.dtype = jnp.bfloat16
    context.asynchronous.post_finalization_callback = lambda: called.append(1)
    with ocp.training.Checkpointer(tmp_path, context=context, save_decision_policy=Odd(),
                                   preservation_policy=Even(), logger=logger,
                                   lightweight_initialize=True) as ckptr:
        for step in range(6):
            assert ckptr.should_save(step) == ckptr.save(step, {"x": jnp.ones(2)})
        assert [each.step for each in ckptr.checkpoints] == [1, 5]
        assert ckptr.load()["x"].dtype == jnp.bfloat16
    assert [entry["event_type"] for entry in logger.entries] == ["save"] * 3 + ["load"]
    assert called == [1, 1, 1]


def test_a_failed_save_is_raised_and_forgotten(tmp_path: pathlib.Path) -> None:
    with ocp.training.Checkpointer(tmp_path) as ckptr:
        with pytest.raises(ValueError, match="x: is of type builtins.object"):
            ckptr.save(0, {"x": object()})
        assert ckptr.latest is None and ckptr.save(0, {"x": 1})
        with pytest.raises(ValueError, match="reserved"):
            ckptr.save_checkpointables(1, {"metrics": {"x": 1}})
        with pytest.raises(TypeError, match="Unsupported abstract leaf"):
            ckptr.load(0, {"x": object()})
        with pytest.raises(KeyError, match="stored int, wanted"):
            ckptr.load(0, {"x": np.zeros(3)})
        with pytest.raises(TypeError, match="explicit Python int"):
            ckptr.delete("0")  # type: ignore[arg-type]


def test_an_error_in_the_background_is_raised_once(tmp_path: pathlib.Path) -> None:
    def fail() -> None:
        raise RuntimeError("no room for a note")

    context = ocp.Context()
    context.asynchronous.post_finalization_callback = fail
    with ocp.training.Checkpointer(tmp_path, context=context) as ckptr:
        for number, raises in enumerate([
                ckptr.wait, lambda: ckptr.save(9, {"x": 1}),
                lambda: ckptr.save(2, {"x": 1}, force=True)]):
            ckptr.save_async(number, {"x": number}, force=True)
            while ckptr.is_saving_in_progress():
                time.sleep(0.01)
            with pytest.raises(RuntimeError, match="no room"):
                raises()
        ckptr.wait()
        ckptr.reload()
        assert [each.step for each in ckptr.checkpoints] == [0, 1, 2]


def test_several_processes(tmp_path: pathlib.Path) -> None:
    real.save(tmp_path / "run_orbax", {"w": np.arange(16.0, dtype=np.float32).reshape(8, 2)})
    children = start(SCRIPT.with_name("orbax_v1_processes.py"), 2, 4, str(tmp_path / "run"))
    outputs = [child.communicate(timeout=300) for child in children]
    for child, (out, err) in zip(children, outputs, strict=True):
        assert (child.returncode, out.splitlines()[-1:]) == (0, ["done"]), (out + err)[-3000:]
    assert sorted(name for name in os.listdir(tmp_path / "run") if name.isdigit()) == ["4", "5"]
    with ocp.training.Checkpointer(tmp_path / "run") as ckptr:  # one process goes on
        loaded = ckptr.load(5, {"w": np.zeros((8, 2), np.float32), "n": 0})
        np.testing.assert_array_equal(loaded["w"], np.arange(16.0).reshape(8, 2) + 5)
        assert ckptr.save(6, {"x": 1})
    left = {name for name in os.listdir(tmp_path) if name.startswith("run_")}
    assert left == {"run_orbax", "run_single", "run_second", "run_parts", "run_file"}
    for name, step in (("run_single", 2), ("run_second", 3), ("run_parts", 4)):
        for library in (ocp, real):  # one process reads what several saved
            loaded = library.load(tmp_path / name, {"w": np.zeros((8, 2), np.float32), "n": 0})
            np.testing.assert_array_equal(loaded["w"], np.arange(16.0).reshape(8, 2) + step)
            assert loaded["n"] == step
    assert ocp.checkpointables_metadata(tmp_path / "run_second").metadata.keys() == {"state"}
