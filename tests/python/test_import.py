# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of other libraries, written by those libraries, as steps of a store."""

from __future__ import annotations

import errno
import json
import os
import pathlib
import pickle
import shutil
import warnings
from typing import Any

import numpy as np
import pytest
import tensorstore as ts
import forks
from equality import same
from group_runs import run

import stepwell

NAMES = [
    "v1", "v1_bare", "v1_nnx", "v1_training/3", "v0/7", "v0_flat", "v0_files", "v0_rich",
    "dtypes_v1", "large_v1", "manager/ckpt_00000020",
    *[f"{what}_{zarr}_{store}" for what in ("dtypes", "chunks", "raw")
      for zarr in ("zarr2", "zarr3") for store in ("ocdbt", "files")],
]  # fmt: skip


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("orbax")
    script = pathlib.Path(__file__).parent / "support" / "orbax_import_save.py"
    status, _, err = forks.run(script, folder, timeout=500)
    assert status == 0, err
    return folder


@pytest.fixture(scope="module")
def expected(saved: pathlib.Path) -> dict[str, Any]:
    return pickle.loads((saved / "expected.pickle").read_bytes())


def is_key(leaf: object) -> bool:
    return isinstance(leaf, tuple) and len(leaf) == 3 and leaf[0] == "key"


def with_keys(tree: Any) -> Any:
    import jax

    return jax.tree.map(
        lambda leaf: jax.random.wrap_key_data(leaf[2], impl=leaf[1]) if is_key(leaf) else leaf,
        tree, is_leaf=is_key)


# ---- Orbax ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_what_is_loaded_is_what_orbax_restores(store, saved, expected, name):
    handle = store.import_checkpoint(saved / name, step=5)
    assert handle.result() == 5
    assert same(store.load(5), with_keys(expected[name]))
    assert store.verify().ok


def test_several_processes_import_them_alike(tmp_path, saved, expected):
    imports = [["import", {"from": str(saved / name), "how": {"step": step}}]
               for step, name in enumerate(NAMES)]
    acts = [["open", {}], *imports, ["close", {}]]
    for said in run(tmp_path / "store", acts, processes=3, devices=3):
        assert [said.gave(number + 1) for number in range(len(NAMES))] == list(range(len(NAMES)))
    with stepwell.open(tmp_path / "store", "r") as store:
        for step, name in enumerate(NAMES):
            assert same(store.load(step), with_keys(expected[name])), name
        assert store.verify().ok


def test_every_listed_checkpoint_is_there(saved, expected):
    assert set(NAMES) <= set(expected), set(NAMES) - set(expected)
    shards = expected["large_v1"]
    assert shards["rows"].shape == (1024, 768) and len(shards["small"]) == 50


def test_prng_keys_and_shardings(store, saved, expected):
    import jax

    store.import_checkpoint(saved / "v1", step=1).result()
    keys = expected["v1"]["keys"]
    like = {name: jax.random.wrap_key_data(data, impl=impl)
            for name, (_, impl, data) in keys.items()}  # fmt: skip
    assert same(store.load(1, "keys", like=like), like)


def test_items_json_metrics_and_metadata(store, saved, expected):
    custom = expected["custom"]
    store.import_checkpoint(saved / "v0_items" / "0").result()
    step = store[0]
    assert sorted(step.items) == ["arr", "custom", "state"]
    assert same(store.load(0, "arr"), np.ones((4, 4), np.float32))
    assert same(store.load(0, "custom"), custom)
    assert same(store.load(0, "state"), expected["v0_items/0/state"])
    store.export(0, saved / "v0_items_again", layout="v0")  # JSON stays JSON
    first, again = (json.loads((saved / root / "0" / "custom" / "metadata").read_text())
                    for root in ("v0_items", "v0_items_again"))
    assert json.dumps(again, sort_keys=True) == json.dumps(first, sort_keys=True)

    store.import_checkpoint(saved / "v0" / "7").result()
    assert np.isnan(store[7].metrics["loss"]) and store[7].metrics["n"] == 3
    assert store[7].metadata["orbax"] == {"root": {"m": 1}}

    store.import_checkpoint(saved / "v1", 1).result()
    assert json.dumps(store[1].metadata, sort_keys=True) == json.dumps(custom, sort_keys=True)


def test_some_items(store, saved):
    store.import_checkpoint(saved / "v0_items" / "0", items=["custom", "arr"]).result()
    assert sorted(store[0].items) == ["arr", "custom"]
    with pytest.raises(stepwell.PathNotFoundError, match="no item \"w\"; it has: arr, cus"):
        store.import_checkpoint(saved / "v0_items" / "0", 1, items=["w"])
    store.import_checkpoint(saved / "v0_items" / "0" / "arr", 2).result()
    assert list(store[2].items) == ["arr"]


def test_a_managers_root(store, saved, expected):
    assert store.import_checkpoints(saved / "manager") == [1, 20, 300]
    for step in (1, 20, 300):
        assert same(store.load(step), expected[f"manager/ckpt_{step:08}"])
        assert store[step].metrics == {"loss": 1 / step}
    with pytest.raises(stepwell.StepExistsError, match="has step 1 already"):
        store.import_checkpoints(saved / "manager")
    assert store.import_checkpoints(saved / "manager", if_exists="skip") == [1, 20, 300]
    store.import_checkpoint(saved / "manager", 20, if_exists="replace").result()
    with pytest.raises(stepwell.InvalidArgumentError, match="3 checkpoints, of the steps 1 to 300"):
        store.import_checkpoint(saved / "manager")
    with pytest.raises(stepwell.StepNotFoundError, match="no step 21; the nearest: 1, 20"):
        store.import_checkpoint(saved / "manager", 21)
    with pytest.raises(stepwell.StepNotFoundError, match="no step 2"):
        store.import_checkpoints(saved / "manager", [1, 2])


def test_steps_that_orbax_did_not_finish_are_no_steps(store, saved, tmp_path):
    root = tmp_path / "root"
    shutil.copytree(saved / "manager", root)
    unfinished = root / "ckpt_00000400.orbax-checkpoint-tmp"
    shutil.copytree(root / "ckpt_00000300", unfinished)
    assert store.import_checkpoints(root) == [1, 20, 300]
    with pytest.raises(stepwell.InvalidArgumentError, match="did not finish"):
        store.import_checkpoint(unfinished, 400)


def test_refusals(store, saved, tmp_path):
    with pytest.raises(stepwell.CheckpointNotFoundError, match="nowhere"):
        store.import_checkpoint(tmp_path / "nowhere", 1)
    (tmp_path / "empty").mkdir()
    with pytest.raises(stepwell.InvalidArgumentError, match="is not an Orbax checkpoint"):
        store.import_checkpoint(tmp_path / "empty", 1)
    with pytest.raises(stepwell.InvalidArgumentError, match="is not the root"):
        store.import_checkpoints(tmp_path / "empty")
    with pytest.raises(stepwell.InvalidArgumentError, match="is not a step's"):
        store.import_checkpoint(saved / "v0_flat")
    assert store.steps() == []


# ---- damage -----------------------------------------------------------------------------------


def test_missing_and_cut_files_name_leaf_and_file(store, saved, tmp_path):
    copy = tmp_path / "7"
    shutil.copytree(saved / "chunks_zarr2_files", copy)
    chunk = copy / "rows" / "1.0"
    chunk.write_bytes(chunk.read_bytes()[:-1])
    with pytest.raises(stepwell.CorruptionError, match=r"leaf 'rows', chunk \d+: .*rows/1\.0"):
        store.import_checkpoint(copy)
    chunk.unlink()
    with pytest.raises(stepwell.CorruptionError, match=r"leaf 'rows', chunk \d+: .*1\.0 is mis"):
        store.import_checkpoint(copy)

    copy = tmp_path / "8"
    shutil.copytree(saved / "large_v1", copy)
    data = sorted(copy.glob("state/ocdbt.process_0/d/*"), key=lambda path: path.stat().st_size)[-1]
    os.truncate(data, 1000)
    with pytest.raises(stepwell.CorruptionError, match=f"leaf '.*{data.name}.*ends at"):
        store.import_checkpoint(copy)
    data.unlink()
    with pytest.raises(stepwell.CorruptionError, match=f"{data.name}.* is missing"):
        store.import_checkpoint(copy)
    (copy / "state" / "manifest.ocdbt").unlink()
    with pytest.raises(stepwell.CorruptionError, match="manifest.ocdbt is missing"):
        store.import_checkpoint(copy)
    assert store.steps() == []


# ---- every codec, by TensorStore --------------------------------------------------------------

SHAPE, CHUNK = (300, 70), (128, 32)


def zarr3(codecs: list[Any], chunk: tuple[int, ...] = CHUNK) -> dict[str, Any]:
    return {"driver": "zarr3", "metadata": {
        "shape": SHAPE, "data_type": "float32", "codecs": codecs,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunk}}}}  # fmt: skip


def sharded(inner: list[Any], location: str) -> list[Any]:
    return [{"name": "sharding_indexed", "configuration": {
        "chunk_shape": [32, 16], "codecs": inner, "index_location": location,
        "index_codecs": [LITTLE, {"name": "crc32c"}]}}]  # fmt: skip


LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}
CRC = {"name": "crc32c"}
ZSTD = {"name": "zstd", "configuration": {"level": 3}}
GZIP = {"name": "gzip", "configuration": {"level": 5}}
BLOSC = {"name": "blosc", "configuration": {
    "cname": "lz4", "clevel": 5, "shuffle": "bitshuffle", "typesize": 4,
    "blocksize": 0,
}}  # fmt: skip
SPECS = {
    "raw": zarr3([LITTLE]),
    "raw_crc": zarr3([LITTLE, CRC]),
    "large_raw_crc": zarr3([LITTLE, CRC], (300, 70 * 20)),
    "zstd_crc": zarr3([LITTLE, ZSTD, CRC]),
    "gzip": zarr3([LITTLE, GZIP]),
    "blosc": zarr3([LITTLE, BLOSC, CRC]),
    "blosc_zstd": zarr3([LITTLE, {"name": "blosc", "configuration": {
        **BLOSC["configuration"], "cname": "zstd", "shuffle": "shuffle"}}]),
    "shards": zarr3(sharded([LITTLE, ZSTD, CRC], "end"), (128, 32)),
    "shards_start": zarr3(sharded([LITTLE], "start"), (128, 32)),
    **{name: {"driver": "zarr", "metadata": {
        "shape": SHAPE, "chunks": CHUNK, "dtype": "<f4", "compressor": compressor}}
       for name, compressor in {
           "v2_raw": None, "v2_gzip": {"id": "gzip", "level": 3},
           "v2_zlib": {"id": "zlib", "level": 3}, "v2_bz": {"id": "zstd", "level": 2},
           "v2_blosc": {"id": "blosc", "cname": "zlib", "clevel": 3, "shuffle": 1,
                        "blocksize": 0}}.items()},
}  # fmt: skip


def write_item(folder: pathlib.Path, version: int, ocdbt: bool, **metadata: Any) -> dict[str, Any]:
    """An item as Orbax lays it out, of arrays that TensorStore wrote."""
    folder.mkdir()
    names = [name for name, spec in SPECS.items() if (spec["driver"] == "zarr3") == (version == 3)]
    rng = np.random.default_rng(7)
    arrays = {}
    for name in names:
        spec = json.loads(json.dumps(SPECS[name]))
        shape = (600, 70 * 20) if name.startswith("large") else SHAPE
        spec["metadata"]["shape"] = shape
        base = f"file://{folder}/"
        spec["kvstore"] = f"{base}|ocdbt:{name}/" if ocdbt else f"{base}{name}/"
        arrays[name] = rng.integers(-50, 50, shape).astype(np.float32)
        ts.open(spec, create=True).result().write(arrays[name]).result()
    tree = {repr((name,)): {"key_metadata": [{"key": name, "key_type": 2}], "value_metadata": {
        "value_type": "np.ndarray", "skip_deserialize": False}} for name in names}  # fmt: skip
    (folder / "_METADATA").write_text(json.dumps({
        "tree_metadata": tree, "use_ocdbt": ocdbt, "use_zarr3": version == 3, **metadata}))
    return arrays


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("ocdbt", [False, True])
def test_every_codec_that_tensorstore_writes(store, tmp_path, version, ocdbt):
    arrays = write_item(tmp_path / "item", version, ocdbt)
    store.import_checkpoint(tmp_path / "item", 1).result()
    assert same(store.load(1), arrays)


def test_chunks_that_equal_the_fill_value(store, tmp_path):
    item = tmp_path / "item"
    arrays = write_item(item, 3, False)
    assert arrays["raw"].any()
    for chunk in (item / "raw" / "c" / "1").iterdir():
        chunk.unlink()
    arrays["raw"][128:256] = 0
    store.import_checkpoint(item, 1).result()
    assert same(store.load(1), arrays)

    metadata = json.loads((item / "_METADATA").read_text())
    metadata["store_array_data_equal_to_fill_value"] = True
    (item / "_METADATA").write_text(json.dumps(metadata))
    with pytest.raises(stepwell.CorruptionError, match="'raw', chunk 3: .*raw/c/1/0 is missing"):
        store.import_checkpoint(item, 2)


@pytest.mark.parametrize("name", ["raw_crc", "zstd_crc", "blosc", "shards", "large_raw_crc"])
def test_a_flipped_byte_is_found(store, tmp_path, name):
    item = tmp_path / "item"
    write_item(item, 3, False)
    chunk = item / name / "c" / "0" / "0"
    data = bytearray(chunk.read_bytes())
    data[len(data) // 2] ^= 1
    chunk.write_bytes(data)
    with pytest.raises(stepwell.CorruptionError, match=f"leaf '{name}', chunk 0: .*/c/0/0"):
        store.import_checkpoint(item, 1)


def test_names_do_not_leave_the_folder(store, tmp_path):
    item = tmp_path / "item"
    write_item(item, 3, False)
    text = (item / "_METADATA").read_text()
    (item / "_METADATA").write_text(text.replace('"key": "raw"', '"key": "../item/raw"'))
    with pytest.raises(stepwell.InvalidArgumentError, match=r"\.\."):
        store.import_checkpoint(item, 1)


def test_names_that_lost_an_array_are_refused(store, tmp_path):
    import orbax.checkpoint as ocp

    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "1", {"a": {"b": np.ones(2)}, "a.b": np.zeros(2)})
    with pytest.raises(stepwell.CorruptionError, match=r"2 leaves have the name \"a\.b\""):
        store.import_checkpoint(tmp_path / "1")


# ---- files ------------------------------------------------------------------------------------


def tree() -> dict[str, Any]:
    import jax.numpy as jnp

    return {"w": np.arange(6, dtype=np.float32).reshape(2, 3),
            "deep": {"b": jnp.ones(3, jnp.bfloat16), "n": np.int32([4])}}  # fmt: skip


def test_flax_msgpack(store, tmp_path):
    from flax import serialization

    path = tmp_path / "model_12.msgpack"
    path.write_bytes(serialization.to_bytes(tree()))
    assert store.import_checkpoint(path).result() == 12
    assert same(store.load(12), serialization.msgpack_restore(path.read_bytes()))
    store.import_checkpoint(path, 13, like=tree()).result()
    assert same(store.load(13, like=tree()), tree())


def test_equinox(store, tmp_path):
    import equinox as eqx
    import jax

    model = eqx.nn.MLP(2, 3, 4, 2, key=jax.random.key(0))
    eqx.tree_serialise_leaves(tmp_path / "model.eqx", model)
    like = eqx.nn.MLP(2, 3, 4, 2, key=jax.random.key(1))
    store.import_checkpoint(tmp_path / "model.eqx", 1, like=like).result()
    arrays = eqx.filter(model, eqx.is_array)
    assert same(eqx.filter(store.load(1, like=like), eqx.is_array), arrays)
    with pytest.raises(stepwell.InvalidArgumentError, match="like="):
        store.import_checkpoint(tmp_path / "model.eqx", 2)


def test_safetensors(store, tmp_path):
    import ml_dtypes
    from safetensors.numpy import save_file

    arrays = {"a.w": np.arange(6, dtype=np.float32).reshape(2, 3),
              "a.b": np.ones(3, ml_dtypes.bfloat16), "n": np.int64([7])}  # fmt: skip
    save_file(arrays, tmp_path / "model-3.safetensors")
    assert store.import_checkpoint(tmp_path / "model-3.safetensors").result() == 3
    assert same(store.load(3), arrays)


def test_npz(store, tmp_path):
    arrays = {"w": np.arange(6.0).reshape(2, 3), "z/y": np.array(True)}
    np.savez_compressed(tmp_path / "4.npz", **arrays)
    assert store.import_checkpoint(tmp_path / "4.npz").result() == 4
    assert same(store.load(4), arrays)
    np.savez(tmp_path / "5.npz", evil=np.array([object()]))
    with pytest.raises(stepwell.CorruptionError, match="5.npz"):
        store.import_checkpoint(tmp_path / "5.npz")


def test_a_disk_that_fails_is_not_damage(store, tmp_path, monkeypatch):
    np.savez(tmp_path / "4.npz", w=np.arange(6.0))

    def failing(*_, **__):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(np, "load", failing)
    with pytest.raises(stepwell.StorageError, match="4.npz: Input/output error") as error:
        store.import_checkpoint(tmp_path / "4.npz")
    assert error.value.errno == errno.EIO


def test_what_flax_saves_without_a_suffix(store, tmp_path, monkeypatch):
    import flax
    from flax.training import checkpoints

    monkeypatch.setattr(flax.config, "_values",
                        {**flax.config._values, "flax_use_orbax_checkpointing": False})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = checkpoints.save_checkpoint(tmp_path, tree(), 40)
    assert os.path.basename(path) == "checkpoint_40" and os.path.isfile(path)
    assert store.import_checkpoint(path).result() == 40
    assert same(store.load(40, like=tree()), tree())
    for name, data in (("checkpoint_41", b""), ("checkpoint_42", b"\x82\x01\x02"),
                       ("checkpoint_43", b"text, and no checkpoint")):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(stepwell.FormatError, match="unknown kind"):
            store.import_checkpoint(tmp_path / name)
    os.rename(path, tmp_path / "checkpoint_1.5")
    with pytest.raises(stepwell.InvalidArgumentError, match="not a step's"):
        store.import_checkpoint(tmp_path / "checkpoint_1.5")


def test_files_that_are_refused(store, tmp_path):
    (tmp_path / "1.bin").write_bytes(b"x")
    with pytest.raises(stepwell.FormatError, match=r"\.msgpack, \.eqx, \.safetensors, \.npz"):
        store.import_checkpoint(tmp_path / "1.bin")
    for suffix in ("msgpack", "safetensors", "npz"):
        (tmp_path / f"2.{suffix}").write_bytes(b"\xc1 this is none")
        with pytest.raises(stepwell.CorruptionError, match=f"2.{suffix}"):
            store.import_checkpoint(tmp_path / f"2.{suffix}")
    with pytest.raises(stepwell.InvalidArgumentError, match="like is not for them"):
        store.import_checkpoint(tmp_path / "2.npz", like={})
    assert store.steps() == []
