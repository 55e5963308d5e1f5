# SPDX-License-Identifier: Apache-2.0
"""Exports to .safetensors and .npz as the real libraries read them."""

from __future__ import annotations

import fcntl
import json
import os
import struct
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.flax
import safetensors.numpy
import stepwell

FORMATS = ("safetensors", "npz")


def read(file: Path) -> dict[str, np.ndarray]:
    if file.suffix == ".npz":
        with np.load(file) as archive:
            return {name: archive[name] for name in archive.files}
    return dict(safetensors.numpy.load_file(file))


def equal(got: np.ndarray, wanted: Any) -> None:
    array = np.asarray(wanted)
    assert (got.dtype, got.shape) == (array.dtype, array.shape)
    assert got.tobytes() == array.tobytes()


def plain() -> dict[str, Any]:
    rng = np.random.default_rng(3)
    return {
        "params": {
            "w": rng.standard_normal((300, 1100)).astype(np.float32),  # several chunks
            "wide": jnp.arange(40_000, dtype=jnp.int32).reshape(2, 20_000),
            "a/b": np.arange(3, dtype=np.uint8),
        },
        "layers": [np.float64([[1.5]]), (np.array(True), np.int16([-1]))],
        "scalar": np.float32(2.5),
        "empty": np.zeros((0, 3), np.int64),
        "c": np.complex64([1 + 2j]),
        7: np.uint64([2**64 - 1]),
        "nothing": {"d": {}, "l": []},
        "h": np.float16([0.5]),
    }


NAMES = {"params/w", "params/wide", "params/a/b", "layers/0", "layers/1/0", "layers/1/1", "scalar",
         "empty", "c", "7", "h"}


def at(tree: Any, name: str) -> Any:
    if name == "params/a/b":
        return tree["params"]["a/b"]
    for key in name.split("/"):
        tree = tree[int(key) if key.isdigit() else key]
    return tree


@pytest.mark.parametrize("to", FORMATS)
def test_round_trip(store: stepwell.Store, tmp_path: Path, to: str) -> None:
    tree = plain()
    store.save(3, tree, metadata={"format": "np", "n": [1, "ä"]}, metrics={"loss": 0.5}).result()
    file = tmp_path / f"model_3.{to}"
    report = store.export(3, file, to=to)
    assert report.path == str(file) and report.mode == "copy" and report.leaves == len(NAMES)
    assert report.written_bytes == file.stat().st_size and not report.skipped
    assert os.listdir(tmp_path) == [file.name] or set(os.listdir(tmp_path)) == {file.name, "store"}
    arrays = read(file)
    assert set(arrays) == NAMES
    for name, array in arrays.items():
        equal(array, at(tree, name))
    # The import has the same names, and so has its export, byte for byte.
    store.import_checkpoint(file, 4).result()
    for name, array in store.load(4).items():
        equal(array, at(tree, name))
    again = tmp_path / f"again.{to}"
    store.export(4, again, to=to)
    assert set(read(again)) == NAMES
    if to == "npz":
        with zipfile.ZipFile(file) as archive:
            assert archive.testzip() is None
        assert subprocess.run(["python3", "-m", "zipfile", "-t", file], check=True,
                              capture_output=True, text=True).stdout.startswith("Done")
    else:
        with safetensors.safe_open(file, framework="np") as opened:
            assert opened.metadata() == {"format": "np", "n": '[1,"ä"]', "stepwell.step": "3",
                                         "stepwell.metrics": '{"loss": 0.5}'}
        loaded = safetensors.flax.load_file(file)
        assert isinstance(loaded["params/w"], jax.Array)
        equal(np.asarray(loaded["params/w"]), tree["params"]["w"])


def test_items_and_subtrees(store: stepwell.Store, tmp_path: Path) -> None:
    trees = {"params": {"w": np.ones(3)}, "opt": [np.zeros(2), {"m": np.ones((2, 2))}]}
    store.save(1, items=trees).result()

    def names(**keywords: Any) -> set[str]:
        file = tmp_path / f"{len(os.listdir(tmp_path))}.npz"
        store.export(1, file, to="npz", **keywords)
        return set(read(file))

    assert names() == {"params/w", "opt/0", "opt/1/m"}
    assert names(path="opt") == {"0", "1/m"}
    assert names(path="opt/1") == {"m"}
    assert names(path="params/w") == {"w"}
    with pytest.raises(stepwell.PathNotFoundError):
        names(path="opt/2")


def test_what_a_format_lacks(store: stepwell.Store, tmp_path: Path) -> None:
    tree = {
        "bf16": np.array([1.5, -2], ml_dtypes.bfloat16), "i4": np.array([-8, 7], ml_dtypes.int4),
        "n": 3, "rate": 0.25, "flag": True, "big": 2**70, "text": "x", "none": None,
        "key": jax.random.key(1), "w": np.ones(2, np.float32), "z": 1 + 2j, "raw": b"r",
        "c128": np.complex128([1j]),
    }
    store.save(1, tree).result()
    lacking = {"safetensors": set(tree) - {"bf16", "w"}, "npz": set(tree) - {"w", "c128"}}
    for to, bad in lacking.items():
        file = tmp_path / f"x.{to}"
        with pytest.raises(stepwell.InvalidArgumentError) as error:
            store.export(1, file, to=to)
        text = str(error.value)
        assert f"{to} cannot hold {len(bad)} parts" in text
        assert {line.split(":")[0].strip() for line in text.splitlines()[1:]} == {
            f"state/{name}" for name in bad}
        report = store.export(1, file, to=to, on_unsupported="skip")
        assert {leaf.path for leaf in report.skipped} == {f"state/{name}" for name in bad}
        assert set(read(file)) == set(tree) - bad
        with pytest.raises(stepwell.InvalidArgumentError) as error:
            store.export(1, tmp_path / f"y.{to}", to=to, on_unsupported="widen")
        complexes = {"z", "c128"} if to == "safetensors" else set()
        hopeless = {"big", "text", "none", "raw"} | complexes
        assert {line.split(":")[0].strip() for line in str(error.value).splitlines()[1:]} == {
            f"state/{name}" for name in hopeless}
    assert sorted(os.listdir(tmp_path)) == ["store", "x.npz", "x.safetensors"]


@pytest.mark.parametrize("to", FORMATS)
def test_python_values_widen(store: stepwell.Store, tmp_path: Path, to: str) -> None:
    key = jax.random.key(7)
    store.save(1, {"n": -3, "u": 2**64 - 1, "r": 0.25, "f": True, "key": key}).result()
    report = store.export(1, tmp_path / f"x.{to}", to=to, on_unsupported="widen")
    arrays = read(tmp_path / f"x.{to}")
    equal(arrays["n"], np.array(-3, np.int64))
    equal(arrays["u"], np.array(2**64 - 1, np.uint64))
    equal(arrays["r"], np.array(0.25))
    equal(arrays["f"], np.array(True))
    equal(arrays["key"], np.asarray(jax.random.key_data(key)))
    assert len(report.widened) == 5
    assert dict(report.widened)["state/n"] == "an int became an array of int64 and rank 0"


SMALL = ["int2", "int4", "uint2", "uint4", "float4_e2m1fn", "float8_e3m4", "float8_e4m3",
         "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2",
         "float8_e5m2fnuz", "float8_e8m0fnu"]


def every_value(name: str) -> np.ndarray:
    count = {"int2": 4, "uint2": 4, "int4": 16, "uint4": 16, "float4_e2m1fn": 16}.get(name, 256)
    return np.arange(count, dtype=np.uint8).view(getattr(ml_dtypes, name))


@pytest.mark.parametrize("name", [*SMALL, "bfloat16"])
def test_every_value_widens(store: stepwell.Store, tmp_path: Path, name: str) -> None:
    stored = (np.arange(2**16, dtype=np.uint16).view(ml_dtypes.bfloat16)
              if name == "bfloat16" else every_value(name))
    store.save(1, {"x": stored}).result()
    with pytest.raises(stepwell.InvalidArgumentError, match=f"is {name}; widened it would be"):
        store.export(1, tmp_path / "x.npz", to="npz")
    report = store.export(1, tmp_path / "x.npz", to="npz", on_unsupported="widen")
    got = read(tmp_path / "x.npz")["x"]
    assert dict(report.widened) == {"state/x": f"{name} became {got.dtype}"}
    with np.errstate(invalid="ignore"):
        wanted, narrow = stored.astype(got.dtype), got.astype(stored.dtype)
    nan = np.isnan(wanted) if got.dtype.kind == "f" else np.zeros(got.shape, bool)
    if got.dtype.kind == "f":
        assert np.array_equal(np.isnan(got), nan)
    assert got[~nan].tobytes() == wanted[~nan].tobytes()
    if name not in ("int2", "int4"):  # their high bits mean nothing
        assert narrow[~nan].tobytes() == stored[~nan].tobytes()


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz",
                                  "float8_e5m2fnuz", "float8_e8m0fnu", "bfloat16"])
def test_safetensors_holds(store: stepwell.Store, tmp_path: Path, name: str) -> None:
    words = {"float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "bfloat16": "BF16",
             "float8_e4m3fnuz": "F8_E4M3FNUZ", "float8_e5m2fnuz": "F8_E5M2FNUZ",
             "float8_e8m0fnu": "F8_E8M0"}
    stored = every_value(name) if name != "bfloat16" else np.array([1, 2], ml_dtypes.bfloat16)
    store.save(1, {"x": stored, "y": np.ones(3, np.float64)}).result()
    store.export(1, tmp_path / "x.safetensors", to="safetensors")
    # NumPy's loader lacks names for the float8 types; the library itself reads them.
    tensors = dict(safetensors.deserialize((tmp_path / "x.safetensors").read_bytes()))
    assert tensors["x"]["dtype"] == words[name] and tensors["x"]["shape"] == list(stored.shape)
    assert bytes(tensors["x"]["data"]) == stored.tobytes()
    store.import_checkpoint(tmp_path / "x.safetensors", 2).result()
    equal(store.load(2, "x"), stored)
    assert list(store.load(2)) == ["x", "y"]


def test_names(store: stepwell.Store, tmp_path: Path) -> None:
    one = np.ones(1)
    store.save(1, {"a/b": one, "a": {"b": one, "ä\n\"": one}, "__metadata__": one, "n\0": one,
                   "m": one, "m.npy": one}).result()
    for to, bad in (("safetensors", {"state/a\\/b", "state/__metadata__"}),
                    ("npz", {"state/a\\/b", "state/n\\x00", "state/m.npy"})):
        file = tmp_path / f"x.{to}"
        report = store.export(1, file, to=to, on_unsupported="skip")
        paths = {leaf.path.replace("\0", "\\x00") for leaf in report.skipped}
        assert paths == bad
        assert {"a/b", "a/ä\n\"", "m"} <= set(read(file))


def test_large_arrays_stream(store: stepwell.Store, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    tree = {"w": rng.standard_normal((5, 700, 3000)).astype(np.float32),  # beyond one batch
            "tall": rng.integers(0, 255, (9_000_000, 5), np.uint8),
            "bf": rng.standard_normal(21_000_000).astype(ml_dtypes.bfloat16)}
    store.save(1, tree).result()
    store.export(1, tmp_path / "x.npz", to="npz", on_unsupported="widen")
    arrays = read(tmp_path / "x.npz")
    equal(arrays["w"], tree["w"])
    equal(arrays["tall"], tree["tall"])
    equal(arrays["bf"], tree["bf"].astype(np.float32))
    store.export(1, tmp_path / "x.safetensors", to="safetensors")
    for name, array in read(tmp_path / "x.safetensors").items():
        equal(array, tree[name])


def test_many_small_arrays(store: stepwell.Store, tmp_path: Path) -> None:
    tree = {f"{i:05}": np.full(i % 5, i, np.int32) for i in range(9000)}
    store.save(1, tree).result()
    for to in FORMATS:
        file = tmp_path / f"x.{to}"
        store.export(1, file, to=to)
        arrays = read(file)
        assert len(arrays) == len(tree)
        for name, array in arrays.items():
            equal(array, tree[name])


@pytest.mark.parametrize("to", FORMATS)
def test_refusals_leave_nothing(store: stepwell.Store, tmp_path: Path, to: str) -> None:
    store.save(1, {"w": np.ones(3)}).result()
    file = tmp_path / "x"
    file.write_text("mine")
    with pytest.raises(stepwell.StepExistsError):
        store.export(1, file, to=to)
    assert file.read_text() == "mine"
    with pytest.raises(stepwell.InvalidArgumentError, match="inside the store"):
        store.export(1, Path(store.path) / "x", to=to)
    with pytest.raises(stepwell.InvalidArgumentError, match="no such directory"):
        store.export(1, tmp_path / "no" / "x", to=to)
    with pytest.raises(stepwell.InvalidArgumentError, match="mode is for to='orbax'"):
        store.export(1, tmp_path / "y", to=to, mode="copy")
    with pytest.raises(stepwell.StepNotFoundError):
        store.export(2, tmp_path / "y", to=to)
    store.save(2, {"d": {}}, items={"files": stepwell.Json({})}).result()
    with pytest.raises(stepwell.InvalidArgumentError, match="no array"):
        store.export(2, tmp_path / "y", to=to)
    assert sorted(os.listdir(tmp_path)) == ["store", "x"]
    os.symlink("nowhere", tmp_path / "link")
    with pytest.raises(stepwell.StepExistsError):
        store.export(1, tmp_path / "link", to=to)
    os.symlink(store.path, tmp_path / "way")
    with pytest.raises(stepwell.InvalidArgumentError, match="inside the store"):
        store.export(1, tmp_path / "way" / "x", to=to)
    os.unlink(tmp_path / "link")
    os.unlink(tmp_path / "way")
    (tmp_path / "died").write_text("of an export that died")
    os.link(tmp_path / "died", tmp_path / "y.stepwell-tmp")
    store.export(1, tmp_path / "y", to=to)
    assert (tmp_path / "died").read_text() == "of an export that died"
    os.unlink(tmp_path / "died")
    assert sorted(os.listdir(tmp_path)) == ["store", "x", "y"]
    with open(tmp_path / "z.stepwell-tmp", "w") as busy:
        command = fcntl.F_OFD_SETLK if hasattr(fcntl, "F_OFD_SETLK") else 37
        whole_file = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        fcntl.fcntl(busy, command, whole_file)
        with pytest.raises(stepwell.LockedError, match="another export"):
            store.export(1, tmp_path / "z", to=to)
    os.unlink(tmp_path / "z.stepwell-tmp")
    with pytest.raises(stepwell.InvalidArgumentError, match="to is 'orbax'"):
        store.export(1, tmp_path / "z", to="pickle")


@pytest.mark.parametrize("to", FORMATS)
def test_a_damaged_step_is_no_file(path: Path, tmp_path: Path, to: str) -> None:
    with stepwell.open(path) as store:
        store.save(1, {"w": np.arange(1000)}).result()
        segment = max((path / "segments").rglob("*"), key=lambda p: p.stat().st_size)
        data = segment.read_bytes()
        at_byte = data.index(np.arange(100, 108).tobytes())
        with segment.open("r+b") as raw:
            raw.seek(at_byte)
            raw.write(b"\xff")
        with pytest.raises(stepwell.CorruptionError):
            store.export(1, tmp_path / "x", to=to)
    assert os.listdir(tmp_path) == ["store"]


def test_command_line(path: Path, tmp_path: Path) -> None:
    program = Path(os.environ["STEPWELL_BUILD_DIR"]) / "api/cli/stepwell"
    with stepwell.open(path) as store:
        store.save(1, {"p": {"w": np.ones(3)}, "n": 1}).result()
    result = subprocess.run([program, "export", path, "1", tmp_path / "x.npz", "--to", "npz",
                             "--json", "--on-unsupported", "skip"], capture_output=True, text=True)
    assert result.returncode == 0, result
    assert json.loads(result.stdout)["skipped"][0]["path"] == "state/n"
    assert set(read(tmp_path / "x.npz")) == {"p/w"}
    result = subprocess.run([program, "export", path, "1", tmp_path / "x.safetensors", "--to",
                             "safetensors", "--path", "p"], capture_output=True, text=True)
    assert result.returncode == 0, result
    assert set(read(tmp_path / "x.safetensors")) == {"w"}
    result = subprocess.run([program, "export", path, "1", tmp_path / "y", "--to", "npz", "--mode",
                             "link"], capture_output=True, text=True)
    assert result.returncode == 2 and "--mode is for --to orbax" in result.stderr
