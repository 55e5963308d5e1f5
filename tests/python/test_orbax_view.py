# SPDX-License-Identifier: Apache-2.0
"""Views of a store, read by Orbax and TensorStore themselves while the store goes on."""

import contextlib
import fcntl
import os
import pathlib
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import orbax.checkpoint as ocp_v0
import pytest
import stepwell
import tensorstore as ts
from orbax.checkpoint import v1 as ocp_v1

# Orbax leaves its own event loops to the garbage collector, which warns of them.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

LONG_S = 120.0

# Orbax raises these when a step goes away after Orbax listed it, or between two looks at it.
GONE = (FileNotFoundError, NotADirectoryError)

# Trains until the file `enough` is there; says when the first step is shown.
TRAINING = """
import pathlib, sys, time
import numpy as np, stepwell
root = pathlib.Path(sys.argv[1])
with stepwell.open(root / "store", keep=stepwell.policy.LatestN(3)) as store:
    v1 = store.orbax_view(root / "v1")
    v0 = store.orbax_view(root / "v0", layout="v0", step_prefix="ckpt", step_digits=5,
                          unnamed_default=True, items=["state"])
    step = 0
    while not (root / "enough").exists():
        state = {"w": np.full((300, 1000), step, np.float32), "step": step, "name": "adam"}
        store.save(step, state, metrics={"loss": 1 / (1 + step)})
        store.wait()
        if step == 0:
            v0.wait(), v1.wait()
            print("ready", flush=True)
        step += 1
        time.sleep(0.02)
    print(step - 1, v0.stats()["errors"], v1.stats()["errors"])
"""


@pytest.fixture
def store(tmp_path: pathlib.Path) -> stepwell.Store:
    with stepwell.open(tmp_path / "store") as opened:
        yield opened


def state(step: int) -> dict[str, object]:
    return {"w": np.full((300, 1000), step, np.float32), "step": step, "name": "adam"}


def check(loaded: dict[str, object], step: int) -> None:
    assert loaded["step"] == step and loaded["name"] == "adam"
    assert np.array_equal(loaded["w"], np.full((300, 1000), step, np.float32))


def reload(reader: ocp_v0.CheckpointManager | ocp_v1.training.Checkpointer) -> None:
    """Looks for steps. Orbax looks at each that it has listed, and some are gone by then."""
    while True:
        try:
            return reader.reload()
        except GONE:
            pass


def opened(make: Callable[[], Any]) -> Any:
    """Orbax looks at each step that it has listed, and the training may have deleted it."""
    while True:
        with contextlib.suppress(*GONE):
            return make()


def test_evaluators_follow_a_training_run(tmp_path: pathlib.Path, start_python) -> None:
    training = start_python(TRAINING, tmp_path)
    assert training.stdout.readline() == "ready\n"
    seen: dict[str, set[int]] = {"v0": set(), "v1": set()}
    options = ocp_v0.CheckpointManagerOptions(
        step_prefix="ckpt", step_format_fixed_length=5, read_only=True)
    with opened(lambda: ocp_v0.CheckpointManager(tmp_path / "v0", options=options)) as manager, \
            opened(lambda: ocp_v1.training.Checkpointer(tmp_path / "v1")) as checkpointer:
        while min(len(steps) for steps in seen.values()) < 5:
            reload(manager)
            step = manager.latest_step()  # None: all that it had listed were gone
            try:
                with stepwell.pin_view(tmp_path / f"v0/ckpt_{step or 0:05}"):
                    check(manager.restore(step, args=ocp_v0.args.StandardRestore()), step)
                    seen["v0"].add(step)
            except stepwell.StepNotFoundError:
                pass  # before it was pinned
            reload(checkpointer)
            step = checkpointer.latest.step if checkpointer.latest else 0
            try:
                with stepwell.pin_view(tmp_path / "v1" / str(step)) as path:
                    check(checkpointer.load(step), step)
                    check(ocp_v1.load(path), step)
                    seen["v1"].add(step)
            except stepwell.StepNotFoundError:
                pass
        (tmp_path / "enough").touch()
        out, err = training.communicate(timeout=LONG_S)
        last, *errors = map(int, out.split())
        assert (training.returncode, errors) == (0, [0, 0]), err
        wanted = [last - 2, last - 1, last]
        reload(manager)
        reload(checkpointer)
        assert manager.all_steps() == wanted
        assert [checkpoint.step for checkpoint in checkpointer.checkpoints] == wanted
        for step in wanted:
            check(manager.restore(step, args=ocp_v0.args.StandardRestore()), step)
            check(checkpointer.load(step), step)


def test_a_pinned_step_stays_whole(tmp_path: pathlib.Path, store: stepwell.Store) -> None:
    with store.orbax_view(tmp_path / "view") as view:
        for step in range(4):
            store.save(step, state(step)).result()
        view.wait(LONG_S)
        assert view.path == str(tmp_path / "view")
        assert view.path_of(2) == str(tmp_path / "view/2")
        with view.pin(0) as path:
            store.delete([0, 1])
            store.reclaim()
            view.wait(LONG_S)
            check(ocp_v1.load(path), 0)
            assert view.stats()["held"] == 1 and sorted(os.listdir(view.path))[0] == "0"
        while view.stats()["held"]:
            pass
        assert not os.path.exists(path)
        with pytest.raises(stepwell.StepNotFoundError, match="deleted"), stepwell.pin_view(path):
            pass
        # Any program can do it.
        with open(tmp_path / "view/2/stepwell-view") as file:
            fcntl.flock(file, fcntl.LOCK_SH)
            store.delete(2)
            view.wait(LONG_S)
            check(ocp_v1.load(tmp_path / "view/2"), 2)
        held = subprocess.run(["flock", "-s", tmp_path / "view/3/stepwell-view", "true"])
        assert held.returncode == 0


def test_what_a_reader_without_a_pin_meets(tmp_path: pathlib.Path, store: stepwell.Store) -> None:
    store.save(0, {"w": np.arange(300_000.0)}).result()
    view = store.orbax_view(tmp_path / "view")
    view.wait(LONG_S)
    base = f"file://{view.path}/0/state/"
    spec = {"driver": "zarr3", "kvstore": {"driver": "ocdbt", "base": base, "path": "w/"},
            "fill_missing_data_reads": False}
    array = ts.open(spec).result()
    assert np.array_equal(array.read().result(), np.arange(300_000.0))
    array = ts.open(spec).result()
    abstract = ocp_v1.metadata(f"{view.path}/0")
    store.delete(0)
    view.wait(LONG_S)
    with pytest.raises(ValueError, match="missing"):
        array.read().result()
    with pytest.raises(Exception, match="0"):
        ocp_v1.load(f"{view.path}/0", abstract.metadata)


def test_views_are_told_apart(tmp_path: pathlib.Path, store: stepwell.Store) -> None:
    store.save(1, state(1)).result()
    view = store.orbax_view(tmp_path / "view")
    assert store.orbax_view(tmp_path / "view").path == view.path
    with stepwell.open(store.path, "r") as reader:
        with pytest.raises(stepwell.LockedError, match="serves"):
            reader.orbax_view(tmp_path / "view")
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis/main.tex").write_text("")
    with pytest.raises(stepwell.Error, match=r"main\.tex"):
        store.orbax_view(tmp_path / "thesis")
    with pytest.raises(stepwell.InvalidArgumentError, match="view be in its store"):
        store.orbax_view(tmp_path / "store/view")
    for wrong in ({"layout": "v3"}, {"zarr": 4}, {"items": "state"}, {"poll": 0}):
        with pytest.raises(stepwell.InvalidArgumentError):
            store.orbax_view(tmp_path / "other", **wrong)
    assert not (tmp_path / "other").exists()
    view.wait()
    stats = store.stats()["views"]
    assert [each["path"] for each in stats] == [view.path]
    assert (stats[0]["shown"], stats[0]["following"], stats[0]["last_error"]) == (1, True, "")
    assert "of 1 step, following" in repr(view)
    view.close()
    view.close()
    assert not (tmp_path / "view").exists()
    with pytest.raises(stepwell.Error, match="closed"):
        view.wait()


def test_a_view_of_a_store_of_another_process(tmp_path: pathlib.Path,
                                              store: stepwell.Store) -> None:
    store.save(1, {**state(1), "bad": 2**64}).result()
    store.save(2, state(2)).result()
    with stepwell.open(tmp_path / "store", "r") as reader:
        view = reader.orbax_view(tmp_path / "view", poll=0.01)
        view.wait(LONG_S)
        assert view.stats()["not_shown"] == 1 and "bad" in view.stats()["last_error"]
        with ocp_v0.CheckpointManager(view.path) as manager:
            assert manager.all_steps() == [2]
            restored = manager.restore(2, args=ocp_v0.args.Composite(
                state=ocp_v0.args.StandardRestore()))
            check(restored["state"], 2)
        store.save(3, state(3)).result()
        store.delete(2)
        while sorted(os.listdir(view.path)) != ["3", "STEPWELL_VIEW"]:
            pass
        check(ocp_v1.load(view.path_of(3)), 3)
    assert not os.path.exists(view.path)


def test_closing_the_store_leaves_the_view(tmp_path: pathlib.Path) -> None:
    with stepwell.open(tmp_path / "store") as store:
        view = store.orbax_view(tmp_path / "view", on_unsupported="skip")
        store.save(1, {**state(1), "bad": 2**64})
    assert not view.stats()["following"]
    check(ocp_v1.load(tmp_path / "view/1"), 1)
    with stepwell.open(tmp_path / "store") as store:
        store.delete(1)  # it follows by itself
        assert [each["path"] for each in store.stats()["views"]] == [str(tmp_path / "view")]
        again = store.orbax_view(tmp_path / "view", on_unsupported="skip")
        again.wait(LONG_S)
        assert os.listdir(again.path) == ["STEPWELL_VIEW"]
        store.save(2, state(2))
    check(ocp_v1.load(tmp_path / "view/2"), 2)


# One leaf of bytes, as a data loader's state is, is enough that Orbax cannot hold a step.
ENDING = """
import sys, numpy as np, stepwell
store = stepwell.open(sys.argv[1] + "/store")
view = store.orbax_view(sys.argv[1] + "/view")
for step in range(5):
    store.save(step, {"w": np.zeros(3), "loader": b"position"})
if len(sys.argv) > 2:
    store.close()
print("ended")
"""


@pytest.mark.parametrize("close", [[], ["close"]])
def test_training_ends_with_steps_that_cannot_be_shown(
    tmp_path: pathlib.Path, close: list[str]
) -> None:
    ended = subprocess.run([sys.executable, "-c", ENDING, str(tmp_path), *close], check=True,
                           timeout=LONG_S, capture_output=True, text=True)
    assert ended.stdout == "ended\n"
    with stepwell.open(tmp_path / "store", mode="r") as opened:
        assert opened.steps() == [0, 1, 2, 3, 4]
