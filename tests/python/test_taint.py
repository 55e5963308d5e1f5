# SPDX-License-Identifier: Apache-2.0
"""Steps that are not to be resumed from, and the way back."""

from __future__ import annotations

import copy
import pickle
import threading
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from equality import same
from group_runs import machines, run
from jax.sharding import NamedSharding, PartitionSpec
from test_damage import flip

import stepwell
from stepwell.policy import BestN, EveryN, LatestN


def state_of(step: int) -> dict[str, Any]:
    mesh = jax.make_mesh((len(jax.devices()),), ("x",))
    sharded = jnp.arange(16 * len(jax.devices()), dtype=jnp.bfloat16) + step
    return {"w": jax.device_put(sharded, NamedSharding(mesh, PartitionSpec("x"))),
            "f8": np.full((3, 5), step, ml_dtypes.float8_e4m3fn),
            "i4": np.arange(7).astype(ml_dtypes.int4), "key": jax.random.key(step),
            "zero": np.float32(step), "empty": np.zeros((0, 3)), "step": step}


def save(store: stepwell.Store, *steps: int, **more: Any) -> None:
    for step in steps:
        store.save(step, state_of(step), **more).result()


@pytest.mark.parametrize("delta", [False, True])
def test_newest_is_what_can_be_resumed_from(path: Path, delta: bool) -> None:
    with stepwell.open(path, delta=delta) as store:
        save(store, 1, 2, 3, 4)
        store.taint([3, 4], "loss spike")
        store.taint(3, "NaN in the optimizer: ∞")
        store.taint(np.int64(1), "too early")
        store.untaint(1, [1])
        tainted = {3: "NaN in the optimizer: ∞", 4: "loss spike"}
        for opened in (store, stepwell.open(path, mode="r")):
            assert opened.tainted_steps() == tainted
            assert opened.steps() == [1, 2, 3, 4] and opened.latest == 2
            assert same(opened.load(like=state_of(0)), state_of(2))
            assert opened.load(path="step") == 2
            assert opened.load_async().result()["step"] == 2
            state, start = opened.load_or(state_of(0))
            assert same(state, state_of(2)) and start == 3
            assert opened[-1].step == 2 and opened[-2].step == 1
            assert opened.tree().step == 2
            assert same(opened.load(4, like=state_of(0)), state_of(4))
            assert opened[4].taint == "loss spike"
            assert opened[2].taint is None
            assert ", tainted (loss spike), items" in repr(opened[4])
            assert "loss spike" in opened[4]._repr_html_()
            assert "<td>loss spike</td>" in opened._repr_html_()
            with pytest.raises(stepwell.StepNotFoundError, match="2 steps that are not tainted"):
                opened[-3]
        store.export(None, path.parent / "orbax")
        store.branch("b")
    with stepwell.open(path, branch="b") as store:
        assert store.tainted_steps() == tainted and store.latest == 2
    with stepwell.open(path.parent / "imported") as store:
        store.import_checkpoint(path.parent / "orbax", step=0).result()
        assert store.load(0, "step") == 2 and store.tainted_steps() == {}
    with stepwell.open(path) as store:
        save(store, 4, if_exists="replace")
        assert store.tainted_steps() == {3: tainted[3]} and store.latest == 4
        assert store.verify().problems == []


def test_where_every_step_is_tainted(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with stepwell.open(path) as store:
        save(store, 1, 2)
        store.taint(range(1, 3), "bad data")
        assert store.latest is None and len(store) == 2
        for call in (store.load, lambda: store[-1], store.tree, lambda: store.export(None, "x")):
            with pytest.raises(stepwell.StepNotFoundError, match="tainted"):
                call()
        with pytest.raises(stepwell.StepNotFoundError, match="step 2 is tainted, 'bad data'"):
            store.load()
        init = state_of(0)
        assert store.load_or(init) == (init, 0)
        assert store.load(2, "step") == 2
    assert "has only tainted steps" in caplog.text


def test_a_branch_where_every_step_is_tainted(path: Path) -> None:
    with stepwell.open(path) as store:
        save(store, 1, 2)
        store.taint([1, 2], "loss spike")
        with pytest.raises(stepwell.StepNotFoundError, match="only tainted steps: step 2 is tainted"
                           ", 'loss spike'; branch from one by its number, or untaint it"):
            store.branch("x")
        assert store.branches() == []
        with stepwell.open(store.branch("x", 1)) as branch:
            assert branch.steps() == [1]


def test_the_best_are_untainted(path: Path) -> None:
    with stepwell.open(path, keep=BestN(1, "loss")) as store:
        for step, loss in enumerate((3.0, 1.0, 2.0)):
            store.save(step, state_of(step), metrics={"loss": loss}).result()
        assert store.steps() == [1, 2]
        store.taint(1, "loss spike")
        assert store.best("loss") == 2
        store.save(3, state_of(3), metrics={"loss": 9.0}).result()
        assert store.steps() == [2, 3]


def test_a_damaged_step_falls_back_to_an_untainted_one(path: Path) -> None:
    save_arrays(path, 0, 1, 2, 3)
    with stepwell.open(path) as store:
        store.taint(2, "loss spike")
    damage(path, 3)
    with stepwell.open(path) as store:
        assert store.load(path="w", on_corrupt="previous")[0] == 1


def test_retention_keeps_a_step_to_go_back_to(path: Path) -> None:
    with stepwell.open(path, keep=LatestN(2) | EveryN(100)) as store:
        save(store, 1, 2)
        store.taint(2, "spike")
        save(store, 3)
        assert store.steps() == [1, 2, 3]
        store.taint(3, "spike")
        report = store.retention()
        assert [step.newest_untainted for step in report.steps] == [True, False, False]
        assert "step 1: kept by being the newest that is not tainted" in str(report)
        with stepwell.open(path, mode="r") as reader:
            assert reader.retention() == report
        save(store, 4)
        assert store.steps() == [1, 3, 4]
        save(store, 5)
        assert store.steps() == [4, 5]


def test_what_is_no_taint(store: stepwell.Store, path: Path) -> None:
    save(store, 1)
    for why in ("", "  ", None, 5, "x" * 1025, "é" * 513, "\ud800"):
        with pytest.raises(stepwell.InvalidArgumentError, match="taint"):
            store.taint(1, why)  # type: ignore[arg-type]
    for call in (lambda: store.taint([1, 7], "no"), lambda: store.untaint(7)):
        with pytest.raises(stepwell.StepNotFoundError, match="7"):
            call()
    with pytest.raises(stepwell.InvalidArgumentError, match="a step must be an int, not '1'"):
        store.taint("1", "no")  # type: ignore[arg-type]
    store.untaint()
    store.taint(1, "é" * 512)
    store.untaint(1)
    assert store.tainted_steps() == {}
    with stepwell.open(path, mode="r") as reader:
        with pytest.raises(stepwell.PermissionDeniedError, match="reading only"):
            reader.taint(1, "no")
    store.close()
    with pytest.raises(stepwell.Error, match="is closed"):
        store.taint(1, "no")


def test_a_taint_survives_a_kill(path: Path, run_python: Any) -> None:
    status, _, errors = run_python("""
import os, sys
import numpy as np, stepwell
store = stepwell.open(sys.argv[1])
for step in range(3):
    store.save(step, {"w": np.full(9, step)}).result()
store.taint(2, "loss spike")
os._exit(3)
""", path)
    assert status == 3, errors
    with stepwell.open(path, mode="r") as store:
        assert store.tainted_steps() == {2: "loss spike"} and store.load(path="w")[0] == 1


def test_what_should_be_saved_again(path: Path) -> None:
    with stepwell.open(path) as store:
        save(store, 1, 2, 3)
        assert not store.should_save(3)
        store.taint(3, "spike")
        assert store.should_save(3) and not store.should_save(2)
        with pytest.raises(stepwell.StepExistsError):
            save(store, 3)
        save(store, 3, if_exists="replace")
        assert not store.should_save(3)


def test_pushed_steps_keep_their_taint(tmp_path: Path) -> None:
    place = str(tmp_path / "bucket")
    with stepwell.open(tmp_path / "from") as store:
        save(store, 1, 2)
        store.taint(2, "loss spike")
        for step in (1, 2):
            store.push(step, place, layout="stepwell")
    with stepwell.open(tmp_path / "to", keep=LatestN(1)) as store:
        for step in (1, 2):
            store.pull(place, step)
        assert store.tainted_steps() == {2: "loss spike"}
        assert store.steps() == [1, 2] and store.latest == 1  # what can be resumed from stays
        assert same(store.load(2, like=state_of(0)), state_of(2))


@pytest.mark.parametrize("disks", ["shared", "local"])
def test_processes_taint_together(tmp_path: Path, disks: str) -> None:
    roots: Any = tmp_path / "store"
    if disks == "local":
        roots = machines(tmp_path, 0, 1)
    acts = [["open", {"disks": disks}], *[["save", {"step": step}] for step in (1, 2, 3)],
            ["taint", {"step": [2, 3], "why": "loss spike"}], ["untaint", {"step": 2}],
            ["steps", {}], ["look", {"step": -1}], ["taint", {"step": 9, "why": "no"}],
            ["save", {"step": 3, "if_exists": "replace"}], ["taint", {"step": 1, "why": "old"}],
            ["close", {}], ["open", {"disks": disks}], ["tainted", {}], ["close", {}]]
    for said in run(roots, acts):
        assert said.gave(4) == {"2": "loss spike", "3": "loss spike"}, said.output[-2000:]
        assert said.gave(5) == {"3": "loss spike"}
        assert said.gave(7)[0] == {"at": 2}
        assert said.lines[8]["error"] == "StepNotFoundError"
        assert said.gave(10) == {"1": "old"}
        assert said.gave(13) == {"1": "old"}


def test_processes_give_the_same_reason(tmp_path: Path) -> None:
    for said in run(tmp_path / "store", [
            ["open", {}], ["save", {"step": 1}],
            ["taint", {"step": 1, "why": "loss spike", "own": True}], ["tainted", {}],
            ["close", {}]]):
        assert said.lines[2]["error"] == "PeerError"
        assert "why is 'loss spike of 1'" in said.lines[2]["text"]
        assert said.gave(3) == {}


# ---- rollback -----------------------------------------------------------------------------------


def test_rollback_deletes_what_is_above(path: Path) -> None:
    with stepwell.open(path) as store:
        save(store, 1, 2, 3, 4)
        store.taint(4, "spike")
        store.save(5, state_of(5))  # perhaps under way
        assert store.rollback(to=2) == [3, 4, 5]
        assert store.steps() == [1, 2] and store.latest == 2
        assert store.rollback(2) == []
        save(store, 3)
        assert same(store.load(like=state_of(0)), state_of(3))
    with stepwell.open(path, mode="r") as reader:
        assert reader.steps() == [1, 2, 3]
        with pytest.raises(stepwell.PermissionDeniedError, match="reading only"):
            reader.rollback(1)
    with pytest.raises(stepwell.Error, match="is closed"):
        store.rollback(1)


def test_rollback_taints_what_is_above(path: Path) -> None:
    with stepwell.open(path, keep=LatestN(2)) as store:
        save(store, 1, 2)
        store.taint(1, "other")
        save(store, 3)
        with pytest.raises(stepwell.InvalidArgumentError, match="needs a reason"):
            store.rollback(2, taint="")
        store.pin(3)
        assert store.rollback(np.int64(2), taint="loss spike") == [3]
        assert store.tainted_steps() == {3: "loss spike"} and store.steps() == [2, 3]
        assert store.load_or(state_of(0))[1] == 3
        save(store, 4)
        assert store.rollback(2, taint="worse") == [3, 4]
        assert store.tainted_steps() == {3: "worse", 4: "worse"} and store.latest == 2


def test_rollbacks_that_change_nothing(path: Path) -> None:
    with stepwell.open(path) as store:
        save(store, 1, 2, 3)
        store.pin(3)
        store.taint(1, "spike")
        with pytest.raises(stepwell.StepPinnedError, match="step 3 is pinned"):
            store.rollback(2)
        with pytest.raises(stepwell.StepNotFoundError, match="0"):
            store.rollback(0)
        with pytest.raises(stepwell.InvalidArgumentError, match="step 1 is tainted, 'spike'"):
            store.rollback(1)
        with pytest.raises(stepwell.InvalidArgumentError, match="a step must be an int"):
            store.rollback("1")  # type: ignore[arg-type]
        assert store.steps() == [1, 2, 3] and store.tainted_steps() == {1: "spike"}


def test_a_rollback_is_one_commit(path: Path) -> None:
    with stepwell.open(path) as store, stepwell.open(path, mode="r") as reader:
        save(store, *range(10))
        seen: list[list[int]] = []

        def look() -> None:
            while not stop.is_set():
                seen.append(reader.steps())

        stop = threading.Event()
        thread = threading.Thread(target=look)
        thread.start()
        store.rollback(3)
        stop.set()
        thread.join()
        seen.append(reader.steps())
    assert {tuple(steps) for steps in seen} <= {tuple(range(10)), tuple(range(4))}
    assert seen[-1] == [0, 1, 2, 3]


@pytest.mark.parametrize("disks", ["shared", "local"])
def test_processes_roll_back_together(tmp_path: Path, disks: str) -> None:
    roots: Any = tmp_path / "store"
    if disks == "local":
        roots = machines(tmp_path, 0, 1)
    acts = [["open", {"disks": disks}], *[["save", {"step": step}] for step in range(5)],
            ["rollback", {"to": 3}], ["rollback", {"to": 1, "taint": "loss spike"}],
            ["tainted", {}], ["steps", {}], ["rollback", {"to": 3}], ["rollback", {"to": 9}],
            ["rollback", {"to": 1}], ["steps", {}], ["save", {"step": 2}], ["close", {}]]
    for said in run(roots, acts):
        assert said.gave(6) == [4] and said.gave(7) == [2, 3]
        assert said.gave(8) == {"2": "loss spike", "3": "loss spike"}
        assert said.gave(9) == [0, 1, 2, 3]
        assert said.lines[10]["error"] == "InvalidArgumentError"
        assert said.lines[11]["error"] == "StepNotFoundError"
        assert said.gave(12) == [2, 3] and said.gave(13) == [0, 1] and said.gave(14) == 2


# ---- load_or ------------------------------------------------------------------------------------


def damage(path: Path, step: int) -> None:
    """A step with an array of its number."""
    flip(path, np.full(100, step, np.float32).tobytes())


def save_arrays(path: Path, *steps: int) -> None:
    with stepwell.open(path, codec="raw") as store:
        for step in steps:
            store.save(step, {"w": np.full(5000, step, np.float32)}).result()


def test_load_or_says_what_it_passed_over(path: Path) -> None:
    init = {"w": np.zeros(5000, np.float32)}
    save_arrays(path, 1, 2, 3, 4, 5)
    with stepwell.open(path) as store:
        store.taint([1, 3, 5], "loss spike")
    damage(path, 4)
    with stepwell.open(path) as store:
        with pytest.raises(stepwell.CorruptionError):
            store.load_or(init)
        resumed = store.load_or(init, on_corrupt="previous")
        state, start = resumed
        assert isinstance(resumed, stepwell.Resumed) and len(resumed) == 2
        assert start == resumed.next_step == 3 and state["w"][0] == 2
        assert resumed.state is state
        assert list(resumed.skipped) == [3, 4, 5]
        assert resumed.skipped[3] == resumed.skipped[5] == "loss spike"
        assert "segments" in resumed.skipped[4]
        assert "skipped={3: 'loss spike', 4: " in repr(resumed)
        for other in (copy.copy(resumed), pickle.loads(pickle.dumps(resumed))):
            assert other.next_step == 3 and other.skipped == resumed.skipped
        other = resumed._replace(next_step=7)
        assert other == (state, 7) and other.skipped == resumed.skipped
        assert isinstance(other, stepwell.Resumed) and "skipped={3: " in repr(other)
        store.untaint([1, 3, 5])
        store.taint(2, "below what is loaded")
        resumed = store.load_or(init)
        assert resumed.next_step == 6 and resumed.skipped == {}
        assert "skipped" not in repr(resumed)
    with stepwell.open(path.parent / "new") as store:
        resumed = store.load_or(init, source=path)
        assert resumed.next_step == 0 and resumed.state["w"][0] == 5 and resumed.skipped == {}
        assert store.load_or(init).state is init
    with stepwell.open(path) as store:
        store.taint([4, 5], "late")
    with stepwell.open(path.parent / "new") as store:
        assert store.load_or(init, source=path).skipped == {4: "late", 5: "late"}


def test_load_or_never_goes_back_too_far(path: Path) -> None:
    init = {"w": np.zeros(5000, np.float32)}
    with stepwell.open(path) as store:
        assert store.load_or(init).next_step == 0
        with pytest.raises(stepwell.StepNotFoundError, match="no step from 0 on.*has no step yet"):
            store.load_or(init, min_step=0)
        with pytest.raises(stepwell.StepNotFoundError, match="no step from 4 on"):
            store.load_or(init, min_step=4, source=path.parent)
    save_arrays(path, 1, 2, 3)
    with stepwell.open(path) as store:
        assert store.load_or(init, min_step=np.int32(3)).next_step == 4
        with pytest.raises(stepwell.StepNotFoundError, match="min_step=4.*is step 3"):
            store.load_or(init, min_step=4)
        store.taint(3, "spike")
        assert store.load_or(init, min_step=2).next_step == 3
        with pytest.raises(stepwell.StepNotFoundError, match="min_step=3.*is step 2"):
            store.load_or(init, min_step=3)
        with pytest.raises(stepwell.InvalidArgumentError, match="a step must be"):
            store.load_or(init, min_step="3")  # type: ignore[arg-type]
    damage(path, 2)
    with stepwell.open(path) as store:
        assert store.load_or(init, min_step=1, on_corrupt="previous").next_step == 2
        with pytest.raises(stepwell.StepNotFoundError, match="step 2 is damaged, and the one"):
            store.load_or(init, min_step=2, on_corrupt="previous")
        store.taint([1, 2, 3], "all")
        with pytest.raises(stepwell.StepNotFoundError, match="min_step=1.*only tainted steps"):
            store.load_or(init, min_step=1)
        assert store.load_or(init).skipped == dict.fromkeys((1, 2, 3), "all")


def test_a_loop_that_saves_a_tainted_step_again_is_told_why_not(path: Path) -> None:
    with stepwell.open(path) as store:
        save(store, 1, 2)
        store.taint(2, "loss spike")
        with pytest.raises(stepwell.StepExistsError,
                           match="has step 2 already, which is tainted: loss spike; if_exists"):
            store.save(2, {"x": 2})
        store.save(2, {"x": 2}, if_exists="replace").result()
        assert store.latest == 2
