# SPDX-License-Identifier: Apache-2.0
"""The root of a CheckpointManager with the store in it: Orbax and TensorStore read what is shown,
also after the whole was moved or copied, and what others put there stays."""

import os
import pathlib
import shutil
import subprocess

import numpy as np
import orbax.checkpoint as ocp_v0
import pytest
import stepwell
import tensorstore as ts
from orbax.checkpoint import v1 as ocp_v1

# Orbax leaves its own event loops to the garbage collector, which warns of them.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

LONG_S = 120.0


def state(step: int) -> dict[str, object]:
    return {"w": np.full((300, 1000), step, np.float32), "step": step, "name": "adam"}


def check(loaded: dict[str, object], step: int) -> None:
    assert loaded["step"] == step and loaded["name"] == "adam"
    assert np.array_equal(loaded["w"], np.full((300, 1000), step, np.float32))


def show(store: stepwell.Store, layout: str) -> stepwell.OrbaxView:
    """The view of the directory that the store lies in, with all that was saved."""
    store.wait()
    view = store.orbax_view(os.path.dirname(store.path), layout=layout, beside=True,
                            zarr=2 if layout == "v0" else 3)
    view.wait(LONG_S)
    return view


def write_v0(root: pathlib.Path, step: int) -> None:
    with ocp_v0.CheckpointManager(root) as manager:
        manager.save(step, args=ocp_v0.args.PyTreeSave(state(step)))


def read_v0(root: pathlib.Path, steps: list[int]) -> None:
    """Those that Orbax wrote are below 10 and have no item names."""
    with ocp_v0.CheckpointManager(root) as manager:
        assert sorted(manager.all_steps()) == steps
        for step in steps:
            if step < 10:
                continue
            restored = manager.restore(step, args=ocp_v0.args.Composite(
                state=ocp_v0.args.StandardRestore(), opt=ocp_v0.args.StandardRestore()))
            check(restored["state"], step)
            assert restored["opt"]["mu"].tolist() == [step] * 3
    with ocp_v0.CheckpointManager(root) as manager:
        for step in steps:
            if step < 10:
                check(manager.restore(step, args=ocp_v0.args.PyTreeRestore()), step)


def read_tensors(root: pathlib.Path, step: int, item: str, driver: str) -> None:
    kvstore = {"driver": "ocdbt", "base": f"file://{root}/{step}/{item}/", "path": "w/"}
    spec = {"driver": driver, "kvstore": kvstore, "fill_missing_data_reads": False}
    read = ts.open(spec).result().read().result()
    assert np.array_equal(read, np.full((300, 1000), step, np.float32))


def copies(root: pathlib.Path, to: pathlib.Path) -> list[pathlib.Path]:
    """The root after mv, and what cp -a made of it."""
    moved, copied = to / "moved", to / "copied"
    shutil.move(root, moved)
    subprocess.run(["cp", "-a", moved, copied], check=True)
    return [moved, copied]


def test_a_managers_root_of_orbax_v0(tmp_path: pathlib.Path) -> None:
    root = tmp_path / "root"
    write_v0(root, 3)
    theirs = {path: path.stat().st_mtime_ns for path in (root / "3").rglob("*")}
    with stepwell.open(root / ".stepwell") as store:
        store.save(3, state(3))  # the name is taken
        for step in (20, 21):
            store.save(step, items={"state": state(step), "opt": {"mu": np.full(3, step)}},
                       metrics={"loss": 1 / step})
        view = show(store, "v0")
        stats = view.stats()
        assert (stats["shown"], stats["not_shown"], stats["errors"]) == (2, 1, 1)
        assert f"{root}/3 is there" in stats["last_error"]
        store.delete(3)
        read_v0(root, [3, 20, 21])
    for place in copies(root, tmp_path):
        read_v0(place, [3, 20, 21])
        read_tensors(place, 20, "state", "zarr")
        with stepwell.open(place / ".stepwell") as store:
            assert [each["path"] for each in store.stats()["views"]] == [str(place)]
            store.delete(20)
            store.save(22, items={"state": state(22), "opt": {"mu": np.full(3, 22)}})
            view = show(store, "v0")
            assert (view.stats()["shown"], view.stats()["not_shown"]) == (2, 0)
            read_v0(place, [3, 21, 22])
            read_tensors(place, 22, "state", "zarr")
        read_v0(place, [3, 21, 22])
        assert {path.relative_to(place): path.stat().st_mtime_ns
                for path in (place / "3").rglob("*")} == {
                    path.relative_to(root): time for path, time in theirs.items()}
        shutil.rmtree(place)


def test_a_root_of_orbax_v1(tmp_path: pathlib.Path) -> None:
    root = tmp_path / "root"
    with ocp_v1.training.Checkpointer(root) as checkpointer:
        checkpointer.save(3, state(3))
    with stepwell.open(root / ".stepwell") as store:
        store.save(20, state(20), metrics={"loss": 0.5})
        show(store, "v1")
    for place in copies(root, tmp_path):
        with ocp_v1.training.Checkpointer(place) as checkpointer:
            assert [each.step for each in checkpointer.checkpoints] == [3, 20]
            assert checkpointer.latest.step == 20
            check(checkpointer.load(3), 3)
            check(checkpointer.load(20), 20)
        check(ocp_v1.load(place / "20"), 20)
        read_tensors(place, 20, "state", "zarr3")
        with stepwell.open(place / ".stepwell") as store:
            store.save(21, state(21)).result()
            show(store, "v1")
            check(ocp_v1.load(place / "21"), 21)
        shutil.rmtree(place)


# Saves until it is killed.
TRAINING = """
import os, sys
import numpy as np, stepwell
root = sys.argv[1]
with stepwell.open(root + "/.stepwell", keep=stepwell.policy.LatestN(2)) as store:
    view = store.orbax_view(root, layout="v0", zarr=2, beside=True)
    start = (store.latest or 0) + 1
    for step in range(start, 10_000):
        w = np.full((300, 1000), step, np.float32)
        store.save(step, {"w": w, "step": step, "name": "adam"}).result()
        if step == start + 5:
            view.wait()
            print("ready", flush=True)
"""


def test_killed_writers_leave_a_root_that_is_read(tmp_path: pathlib.Path, start_python) -> None:
    root = tmp_path / "root"
    for _ in range(3):
        training = start_python(TRAINING, root)
        assert training.stdout.readline() == "ready\n"
        training.kill()
        training.communicate(timeout=LONG_S)
        with ocp_v0.CheckpointManager(root) as manager:
            steps = manager.all_steps()
            assert steps
            for step in steps:
                restored = manager.restore(step, args=ocp_v0.args.Composite(
                    state=ocp_v0.args.StandardRestore()))
                check(restored["state"], step)
        moved = tmp_path / f"moved{len(os.listdir(tmp_path))}"
        shutil.move(root, moved)
        root = moved
    with stepwell.open(root / ".stepwell") as store:
        show(store, "v0")
        shown = sorted(int(name) for name in os.listdir(root) if name.isdigit())
        assert shown == store.steps()
        for step in shown:
            read_tensors(root, step, "state", "zarr")


def test_a_step_that_orbax_deletes(tmp_path: pathlib.Path) -> None:
    root = tmp_path / "root"
    with stepwell.open(root / ".stepwell") as store:
        for step in (20, 21):
            store.save(step, state(step))
        view = show(store, "v0")
        with ocp_v0.CheckpointManager(root) as manager:
            manager.delete(20)
        view.wait(LONG_S)
        assert view.stats()["shown"] == 1 and view.stats()["errors"] == 0
        assert store.steps() == [20, 21]


def test_the_store_is_in_the_directory(tmp_path: pathlib.Path) -> None:
    with stepwell.open(tmp_path / "root/.stepwell") as store:
        for path in ("root/.stepwell", "other", ""):
            with pytest.raises(stepwell.InvalidArgumentError, match="beside"):
                store.orbax_view(tmp_path / path, beside=True)
        with pytest.raises(stepwell.InvalidArgumentError, match="beside"):
            store.orbax_view(tmp_path / "root")
