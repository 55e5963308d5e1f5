# SPDX-License-Identifier: Apache-2.0
"""Items that are JSON, and items that are files: here, in Orbax, and back."""

from __future__ import annotations

import os
import pathlib
import types

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from orbax.checkpoint import v1

import stepwell
from equality import same

VALUE = {"epoch": 3, "loss": 0.25, "names": ["a", "é", ""], "none": None, "flag": True,
         "nested": {"empty": {}, "list": [[], [1, [2]]]}, "large": 2**63 + 1}


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "iterator"
    (folder / "deep" / "er").mkdir(parents=True)
    (folder / "empty").mkdir()
    (folder / "state.bin").write_bytes(bytes(range(256)) * 5000)
    (folder / "deep" / "er" / "x").write_bytes(b"")
    (folder / "deep" / "é name").write_text("text")
    return folder


def files_of(folder: pathlib.Path) -> dict[str, bytes | None]:
    return {str(path.relative_to(folder)) + ("/" if path.is_dir() else ""):
            None if path.is_dir() else path.read_bytes()
            for path in sorted(folder.rglob("*")) if path.is_file() or not any(path.iterdir())}


def test_json_comes_back_and_orbax_reads_it(store, tmp_path):
    state = {"w": np.arange(3.0)}
    store.save(4, state, items={"data": stepwell.Json(VALUE), "one": stepwell.Json(5)}).result()
    assert store.load(4, "data") == VALUE and store.load(4, "one") == 5
    assert store.load(items=["data"], like={"data": VALUE}) == {"data": VALUE}
    store.export(4, tmp_path / "v1")
    loaded = v1.load_checkpointables(tmp_path / "v1")
    assert loaded["data"] == VALUE and same(loaded["state"], state)
    store.export(4, tmp_path / "v0", layout="v0")
    with ocp.CheckpointManager(tmp_path / "v0", item_names=("state", "data", "one")) as manager:
        restored = manager.restore(4, args=ocp.args.Composite(
            data=ocp.args.JsonRestore(), one=ocp.args.JsonRestore(),
            state=ocp.args.StandardRestore()))
        assert restored.data == VALUE and restored.one == 5
    store.import_checkpoint(tmp_path / "v1", step=5).result()
    assert store.load(5, "data") == VALUE


@pytest.mark.filterwarnings("ignore:Sharding info not provided")
def test_orbax_reads_a_tree_of_json_as_json_and_as_a_tree(store, tmp_path):
    value = {name: each for name, each in VALUE.items() if name != "large"}
    store.save(4, {"w": np.arange(3.0)}, items={"data": value, "one": 5}).result()
    store.export(4, tmp_path / "v0", layout="v0")
    args = ocp.args
    for kind in (args.JsonRestore, args.StandardRestore):
        with ocp.CheckpointManager(tmp_path / "v0") as manager:
            assert manager.restore(4, args=args.Composite(data=kind())).data == value
    with ocp.CheckpointManager(tmp_path / "v0") as manager:
        assert manager.restore(4, args=args.Composite(one=args.JsonRestore())).one == 5
    assert not os.path.exists(tmp_path / "v0/4/state/metadata")
    store.import_checkpoint(tmp_path / "v0" / "4", step=5).result()
    assert store.load(5, "data") == value and store.load(5, "one") == 5


@pytest.mark.parametrize("value", [{"a": np.zeros(2)}, {1, 2}, object(), b"bytes"])
def test_what_is_not_json_is_refused(value):
    with pytest.raises(stepwell.InvalidArgumentError, match="is not JSON"):
        stepwell.Json(value)
    assert stepwell.Json((1, {2: 3})).value == [1, {"2": 3}]


def test_files_come_back_byte_for_byte(store, tmp_path, folder):
    wanted = files_of(folder)
    store.save(1, {"w": 1}, items={"data": stepwell.Files(folder)}).result()
    assert store.load(1, "data") == wanted
    assert store.load(items=["data"])["data"] == wanted
    store[1].write_files("data", tmp_path / "out")
    assert files_of(tmp_path / "out") == wanted
    with pytest.raises(stepwell.InvalidArgumentError, match="is not empty"):
        store[1].write_files("data", tmp_path / "out")
    with pytest.raises(stepwell.InvalidArgumentError, match="is not an item of files"):
        store[1].write_files("state", tmp_path / "other")
    with pytest.raises(stepwell.PathNotFoundError, match="no item 'nothing'"):
        store[1].write_files("nothing", tmp_path / "other")
    for layout in ("v1", "v0"):
        report = store.export(1, tmp_path / layout, layout=layout)
        made = pathlib.Path(report.path) / "data"
        assert {name: data for name, data in files_of(made).items()
                if name != "commit_success.txt"} == wanted
        store.import_checkpoint(report.path, step=2, if_exists="replace").result()
        assert store.load(2, "data") == wanted
    with store.orbax_view(tmp_path / "view") as view:
        view.wait(60)
        assert files_of(tmp_path / "view" / "1" / "data") == wanted
    assert store.verify().ok


def test_only_files_and_directories_are_taken(tmp_path, folder):
    os.symlink("/etc/hostname", folder / "link")
    with pytest.raises(stepwell.InvalidArgumentError, match="neither a file nor a directory"):
        stepwell.Files(folder)
    with pytest.raises(stepwell.InvalidArgumentError, match="takes a directory"):
        stepwell.Files(folder / "state.bin")


@pytest.mark.parametrize("name", ["../x", "/x", "a//b", "a/../b", ".", ""])
def test_files_never_lie_elsewhere(store, tmp_path, folder, name):
    files = stepwell.Files(folder)
    files.contents = {name: b"x"}
    store.save(0, {"w": 1}, items={"data": files}).result()
    with pytest.raises(stepwell.CorruptionError, match="lies elsewhere"):
        store[0].write_files("data", tmp_path / "out")
    with pytest.raises(stepwell.InvalidArgumentError, match="no path of a file"):
        store.export(0, tmp_path / "export")
    assert store.export(0, tmp_path / "export", on_unsupported="skip").skipped
    assert sorted(path.name for path in tmp_path.iterdir()) == ["export", "iterator", "out",
                                                                "store"]


def test_links_in_items_of_others_are_not_followed(store, tmp_path):
    with ocp.CheckpointManager(tmp_path / "theirs") as manager:
        manager.save(9, args=ocp.args.Composite(state=ocp.args.StandardSave({"w": np.arange(3)}),
                                                rng=ocp.args.NumpyRandomKeySave(
                                                    np.random.RandomState(3).get_state())))
    os.symlink("/etc/passwd", tmp_path / "theirs/9/rng/secret")
    with pytest.raises(stepwell.FormatError, match="secret is a symbolic link"):
        store.import_checkpoint(tmp_path / "theirs/9")
    assert store.import_checkpoint(tmp_path / "theirs/9", items=["state"]).result() == 9


def test_a_tree_without_its_description_is_not_taken_for_files(store, tmp_path):
    with ocp.CheckpointManager(tmp_path / "theirs") as manager:
        manager.save(9, args=ocp.args.Composite(
            state=ocp.args.StandardSave({"w": np.arange(3)}), data=ocp.args.JsonSave({"a": 1})))
    for lost in ("state/_METADATA", "data/metadata"):
        os.rename(tmp_path / "theirs/9" / lost, tmp_path / "away")
        with pytest.raises(stepwell.CorruptionError, match=lost.split("/")[0]):
            store.import_checkpoint(tmp_path / "theirs/9")
        os.rename(tmp_path / "away", tmp_path / "theirs/9" / lost)
    store.import_checkpoint(tmp_path / "theirs/9").result()


@pytest.mark.filterwarnings("ignore:Sharding info not provided")
def test_items_that_stepwell_does_not_know_pass_through(store, tmp_path):
    """The files of Orbax's own handlers of random keys are kept, and they read them again."""
    key = jax.random.key(7)
    numpy_key = np.random.RandomState(3).get_state(legacy=False)
    with ocp.CheckpointManager(tmp_path / "real") as manager:
        manager.save(3, args=ocp.args.Composite(
            state=ocp.args.StandardSave({"w": np.arange(3)}), rng=ocp.args.JaxRandomKeySave(key),
            nrng=ocp.args.NumpyRandomKeySave(numpy_key)))
    store.import_checkpoint(tmp_path / "real" / "3").result()
    assert store[3].items == ["nrng", "rng", "state"]
    store.export(3, tmp_path / "again", layout="v0")
    with ocp.CheckpointManager(tmp_path / "again") as manager:
        restored = manager.restore(3, args=ocp.args.Composite(
            state=ocp.args.StandardRestore({"w": np.zeros(3, int)}),
            rng=ocp.args.JaxRandomKeyRestore(), nrng=ocp.args.NumpyRandomKeyRestore()))
    assert (jax.random.key_data(restored.rng) == jax.random.key_data(key)).all()
    assert same(types.SimpleNamespace(**restored.nrng).state, numpy_key["state"])
    assert same(restored.state, {"w": np.arange(3)})


@pytest.mark.parametrize("names", [
    {"_METADATA": b"mine"}, {"manifest.ocdbt": b"mine"}, {"metadata": b"{"}, {"metrics": b"mine"},
    {"_METADATA": b"{}", "array_metadatas/process_0": b"x", "d/1": b"y", "mine.txt": b"hi"},
], ids=lambda names: next(iter(names)))
@pytest.mark.parametrize("layout", ["v0", "v1"])
def test_files_with_names_of_orbax_stay_files(store, tmp_path, names, layout):
    folder = tmp_path / "files"
    for name, data in names.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    store.save(1, {"w": 1.5}, items={"c": stepwell.Files(folder)}).result()
    store.export(1, tmp_path / "exported", layout=layout)
    exported = tmp_path / "exported" / ("1" if layout == "v0" else "")
    store.import_checkpoint(exported, step=2).result()
    store.push(1, tmp_path / "pushed")
    with stepwell.open(tmp_path / "other") as other:
        other.pull(tmp_path / "pushed", step=3)
        for got in (store.load(2), other.load(3)):
            assert got["state"]["w"] == 1.5
            files = {name: data for name, data in got["c"].items() if name != "commit_success.txt"}
            assert files == names
        store[2].write_files("c", tmp_path / "out")
    assert set(files_of(tmp_path / "out")) - {"commit_success.txt"} == set(names)
