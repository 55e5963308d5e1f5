# SPDX-License-Identifier: Apache-2.0
"""Steps that several processes saved, as Orbax checkpoints: read by Orbax and TensorStore as if one
process had saved them, and as they are whatever the processes do next."""

import hashlib
import json
import os
import pathlib
import shutil
import subprocess
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp_v0
import pytest
import tensorstore as ts
from equality import same
from group_runs import run
from group_values import EVERY_LEAF
from group_values import LEAVES as USUAL
from orbax.checkpoint import v1 as ocp_v1

import stepwell

# Orbax leaves its own event loops to the garbage collector, which warns of them.
pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:Sharding info not provided"),
]

LEAVES = list(USUAL)
ALL = list(EVERY_LEAF)  # one more, in pieces with chunk grids of their own


def save(step: int, leaves: list[str]) -> list[Any]:
    return ["save", {"step": step, "leaves": {"0": leaves, "1": leaves}}]


def together(root: pathlib.Path, *acts: list[Any], processes: int = 2) -> list[list[Any]]:
    """Returns what each process gave for each act."""
    said = run(root, [["open", {}], *acts, ["close", {}]], processes=processes)
    for process in said:
        assert process.status == 0, process.output[-2000:]
    return [[process.gave(i + 1) for i in range(len(acts))] for process in said]


def digests(folder: pathlib.Path, sizes: dict[str, int] | None = None) -> dict[str, str]:
    """Digests every file below; with `sizes`, the first bytes of each: a segment that was linked
    while its writer was at work gets a footer."""
    found = {}
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            name = str(file.relative_to(folder))
            content = file.read_bytes()[:(sizes or {}).get(name)]
            found[name] = hashlib.sha256(content).hexdigest()
    return found


def sizes_below(folder: pathlib.Path) -> dict[str, int]:
    return {str(file.relative_to(folder)): file.stat().st_size
            for file in folder.rglob("*") if file.is_file()}


def numpy_of(tree: Any) -> Any:
    """Typed keys as what they are made of: their kind and their words."""
    def of(leaf: Any) -> Any:
        if isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return [str(leaf.dtype), np.asarray(jax.random.key_data(leaf))]
        return np.asarray(leaf) if hasattr(leaf, "shape") else leaf
    return jax.tree.map(of, tree)


def expected(store: stepwell.Store, step: int) -> Any:
    return numpy_of(store.load(step))


def read_by_all(folder: pathlib.Path, manager: pathlib.Path, step: int, want: Any, zarr: int
                ) -> None:
    """`folder`: a checkpoint of NumPy arrays; `manager`: a root of an Orbax v0 manager with it."""
    assert same(numpy_of(ocp_v1.load(folder)), want)
    with ocp_v0.CheckpointManager(manager, options=ocp_v0.CheckpointManagerOptions(
            read_only=True)) as opened:
        assert step in opened.all_steps()
        assert same(numpy_of(opened.restore(step, args=ocp_v0.args.StandardRestore())), want)
    for name, array in want["params"].items():
        kvstore = {"driver": "ocdbt", "base": f"file://{folder}/state/", "path": f"params.{name}/"}
        read = ts.open({"driver": "zarr3" if zarr == 3 else "zarr", "kvstore": kvstore,
                        "fill_missing_data_reads": False}).result().read().result()
        assert read.dtype == array.dtype and read.tobytes() == array.tobytes(), name


@pytest.fixture(scope="module")
def saved(xfs: pathlib.Path) -> pathlib.Path:
    root = xfs / "run"
    together(root, save(1, LEAVES), save(2, ALL), save(3, LEAVES))
    return root


@pytest.mark.parametrize("zarr", [3, 2])
@pytest.mark.parametrize("mode", ["link", "reflink", "copy"])
def test_everybody_reads_every_export(saved: pathlib.Path, mode: str, zarr: int) -> None:
    with stepwell.open(saved, "r") as store:
        for step in (1, 2):
            place = saved.parent / f"{mode}{zarr}{step}"
            place.mkdir()
            options = {"mode": mode, "zarr": zarr, "leaves": "numpy"}
            report = store.export(step, place / "v1", **options)
            assert report.mode == mode
            manager = store.export(step, place / "v0", layout="v0", unnamed_default=True, **options)
            assert manager.mode == mode
            names = {file.name for file in (place / "v1/state/d").iterdir()}
            assert ("rewritten" in names) == (step == 2)
            if mode == "link":
                assert {"segment-0000000001", "segment-0000000001-part-1"} <= names
            want = expected(store, step)
            read_by_all(place / "v1", place / "v0", step, want, zarr)
            # Exports jax.Arrays, onto the devices that are here.
            store.export(step, place / "jax", mode=mode, zarr=zarr)
            here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
            target = jax.tree.map(
                lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=here),
                want["params"])
            loaded = ocp_v1.load(place / "jax", {"params": target, "count": ..., "name": ...,
                                                 "host": ...})
            assert same(numpy_of(loaded["params"]), want["params"])
            shutil.rmtree(place)


def test_all_processes_export_alike(tmp_path: pathlib.Path) -> None:
    """One of them makes it, and all have its report or its error."""
    root, shared = tmp_path / "store", tmp_path / "shared"
    shared.mkdir()
    act = ["export_together", {"dest": str(shared / "a"), "mode": "copy", "leaves": "numpy"}]
    archive = ["export_together", {"dest": str(shared / "b.npz"), "to": "npz",
                                   "on_unsupported": "skip"}]
    slow = ["export_together", {"dest": str(shared / "c"), "mode": "copy", "leaves": "numpy",
                                "progress": {str(process): {"seconds": 4, "text": "stop it"}
                                             for process in range(4)}}]
    said = run(root, [["open", {}], save(1, LEAVES), act, act, archive, slow, save(2, LEAVES),
                      ["close", {}]], processes=4, timeout=3)
    for one in said:
        mode, leaf_type, leaves, path = one.gave(2)
        assert (mode, leaf_type, path) == ("copy", "numpy", str(shared / "a"))
        assert leaves == said[0].gave(2)[2] > 4
        assert one.lines[3]["error"] == "StepExistsError", one.lines[3]
        assert one.gave(4)[3] == str(shared / "b.npz")
        assert "stop it" in one.lines[5]["text"]
        assert one.gave(6) == 2
    assert sum(one.lines[5]["error"] == "RuntimeError" for one in said) == 1
    assert {"a", "b.npz"} <= set(os.listdir(shared))
    with stepwell.open(root, "r") as store:
        assert same(numpy_of(ocp_v1.load(shared / "a")), expected(store, 1))


@pytest.mark.parametrize("exporter", [0, 1])
def test_a_linked_export_stays_whatever_becomes_of_the_store(tmp_path: pathlib.Path, exporter: int
                                                             ) -> None:
    """It is made in a running job, by the process that leads it or by another."""
    root, place = tmp_path / "store", tmp_path / "x"
    act = ["export", {"process": exporter, "step": 2, "dest": str(place), "mode": "link",
                      "leaves": "numpy"}]
    gave = together(root, save(1, LEAVES), save(2, ALL), act, save(3, LEAVES))
    # A segment that another process still writes is copied.
    assert gave[exporter][2] in ("link", "copy")
    # All that was linked is sealed by now.
    before, sizes = digests(place), sizes_below(place)
    with stepwell.open(root, "r") as store:
        want = expected(store, 2)

    def check() -> None:
        assert digests(place) == before
        assert sizes_below(place) == sizes
        assert same(numpy_of(ocp_v1.load(place)), want)

    check()
    later = [save(step, LEAVES) for step in range(4, 20)]
    together(root, *later[:8], ["delete", {"steps": [1, 2, 3, 4, 5, 6]}], ["reclaim", {}],
             *later[8:], ["delete", {"steps": list(range(7, 18))}], ["reclaim", {}])
    check()
    with stepwell.open(root, "r") as store:
        assert store.steps() == [18, 19]
        assert store.verify().problems == []
    shutil.rmtree(root)
    check()


def test_the_store_does_not_mind_what_becomes_of_an_export(tmp_path: pathlib.Path) -> None:
    root = tmp_path / "store"
    together(root, save(1, LEAVES), save(2, ALL))
    before = digests(root)
    with stepwell.open(root, "r") as store:
        assert store.export(2, tmp_path / "x").mode == "link"
    (tmp_path / "x/state/d/rewritten").write_bytes(b"others write what is theirs")
    shutil.rmtree(tmp_path / "x")
    assert digests(root) == before
    assert together(root, ["check", {"step": 1}], ["check", {"step": 2, "leaves": ALL}],
                    save(3, LEAVES)) == [["equal", "equal", 3]] * 2
    with stepwell.open(root, "r") as store:
        assert store.verify().problems == []


def test_a_view_of_a_running_job(tmp_path: pathlib.Path) -> None:
    """The leading process serves it, and leaves it as of the end."""
    root = tmp_path / "store"
    together(
        root, save(1, LEAVES),
        ["view", {"path": str(tmp_path / "v1"), "leaves": "numpy"}],
        ["view", {"path": str(tmp_path / "v0"), "leaves": "numpy", "layout": "v0",
                  "unnamed_default": True}],
        save(2, ALL), save(3, LEAVES), ["delete", {"steps": [1]}], ["reclaim", {}])
    with stepwell.open(root, "r") as store:
        for step in (2, 3):
            read_by_all(tmp_path / f"v1/{step}", tmp_path / "v0", step, expected(store, step), 3)
    assert sorted(path.name for path in (tmp_path / "v1").iterdir()) == ["2", "3", "STEPWELL_VIEW"]
    assert list((tmp_path / "v1/2/state/d").iterdir())
    assert not any(path.is_symlink() for path in (tmp_path / "v1").rglob("*"))


def test_a_view_beside_a_job_comes_and_goes_with_it(tmp_path: pathlib.Path) -> None:
    root = tmp_path / "store"
    together(root, save(1, LEAVES), save(2, LEAVES))
    with stepwell.open(root, "r") as store, \
            store.orbax_view(tmp_path / "view", leaves="numpy") as view:
        view.wait(60)
        assert same(numpy_of(ocp_v1.load(tmp_path / "view/1")), expected(store, 1))
        want = expected(store, 2)
        with stepwell.pin_view(tmp_path / "view/2"):
            together(root, *[save(step, LEAVES) for step in range(3, 9)],
                     ["delete", {"steps": [1, 2, 3, 4, 5, 6]}], ["reclaim", {}])
            view.wait(60)
            shown = {path.name for path in (tmp_path / "view").iterdir()}
            assert shown == {"2", "7", "8", "STEPWELL_VIEW"}
            assert same(numpy_of(ocp_v1.load(tmp_path / "view/2")), want)
        assert same(numpy_of(ocp_v1.load(tmp_path / "view/8")), expected(store, 8))
    assert not (tmp_path / "view").exists()


def program(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = pathlib.Path(os.environ["STEPWELL_BUILD_DIR"]) / "api/cli/stepwell"
    return subprocess.run([command, *map(str, arguments)], capture_output=True, text=True,
                          check=False, timeout=60)


def test_the_program_shows_what_all_parts_store(tmp_path: pathlib.Path) -> None:
    root = tmp_path / "store"
    together(root, save(1, ALL))
    with stepwell.open(root, "r") as store:
        stored = store[1].stored_bytes
        tree = expected(store, 1)
        arrays = sum(array.nbytes for array in tree["params"].values())
        arrays_bytes = arrays + tree["host"].nbytes
    assert stored > arrays
    (listed,) = json.loads(program("ls", root, "--json").stdout)["steps"]
    assert listed["stored_bytes"] == stored
    assert json.loads(program("show", root, 1, "--json").stdout)["step"]["stored_bytes"] == stored
    (item,) = json.loads(program("stats", root, "--json").stdout)["items"]
    assert item["stored_bytes"] == stored
    explained = program("explain", root, 1, "--mesh", "a=2", "--spec", "params/prime=(a)", "--json")
    assert explained.returncode == 0, explained.stderr
    halves = json.loads(explained.stdout)["devices"]
    assert len(halves) == 2
    for half in halves:  # of the one array in pieces, and of all others whole
        assert 0 <= half["bytes_out"] - (arrays_bytes - 4 * 2097166 // 2) < 100
    (root / "process_1").rename(root / "away")
    done = program("ls", root, "--json")
    (listed,) = json.loads(done.stdout)["steps"]
    assert listed["stored_bytes"] is None and "part 1 is missing" in listed["problem"]
    done = program("ls", root)
    assert done.returncode == 0 and "part 1 is missing" in done.stderr
    assert done.stdout.splitlines()[1].split()[-2:] == ["?", "?"]
    (item,) = json.loads(program("stats", root, "--json").stdout)["items"]
    assert item["stored_bytes"] is None
    assert "part 1 is missing" in program("stats", root).stderr
