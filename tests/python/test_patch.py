# SPDX-License-Identifier: Apache-2.0
"""Patches between steps, applied by the reference consumer and by another implementation with the
safetensors library, bit for bit."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import safetensors
from group_runs import run
from group_values import EVERY_LEAF
from test_damage import flip

import stepwell
from stepwell._interop.patch import index_dtype
from stepwell.rename import Fuse, Split, Transpose

EXAMPLE = Path(__file__).parents[2] / "api/examples/apply_patch.py"
SPEC = importlib.util.spec_from_file_location("apply_patch", EXAMPLE)
assert SPEC is not None and SPEC.loader is not None
apply_patch = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(apply_patch)


def tensors_of(path: Path) -> dict[str, tuple[str, list[int], bytes]]:
    return {name: (each["dtype"], list(each["shape"]), bytes(each["data"]))
            for name, each in safetensors.deserialize(path.read_bytes())}


def metadata_of(path: Path) -> dict[str, str]:
    with safetensors.safe_open(path, framework="np") as opened:
        return dict(opened.metadata())


def by_reference(base: Path, patch: Path, times: int = 1) -> dict[str, Any]:
    tensors = apply_patch.read(base)[0]
    for _ in range(times):
        apply_patch.apply(tensors, *apply_patch.read(patch))
    return {name: (word, shape, bytes(data)) for name, (word, shape, data) in tensors.items()}


def by_library(base: Path, patch: Path) -> dict[str, Any]:
    """With JAX's scatter over arrays of bits; it looks at no digest."""
    bits = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}
    result = tensors_of(base)
    given = tensors_of(patch)
    about = metadata_of(patch)
    for name, kind in json.loads(about["tensors"]).items():
        word, shape, data = result[name]
        assert (word, shape) == (kind["dtype"], kind["shape"]) == (given[f"{name}.values"][0],
                                                                   shape)
        indices = np.frombuffer(given.pop(f"{name}.indices")[2], np.int32)
        assert (np.diff(indices) > 0).all()
        count = int(np.prod(shape))
        width = len(data) // count
        if width in bits:
            old, new = (jnp.asarray(np.frombuffer(each, f"u{width}")) for each in (
                data, given.pop(f"{name}.values")[2]))
            made = np.asarray(old.at[indices].set(new)).tobytes()
        else:
            whole = np.frombuffer(data, "u8").copy()
            whole[indices] = np.frombuffer(given.pop(f"{name}.values")[2], "u8")
            made = whole.tobytes()
        result[name] = (word, shape, made)
    for name in json.loads(about["removed"]):
        del result[name]
    return result | given


def digest_of(path: Path) -> str:
    arrays = {name: np.frombuffer(data, np.dtype(apply_patch.name_of(word))).reshape(shape)
              for name, (word, shape, data) in tensors_of(path).items()}
    return stepwell.digest(arrays)


class Run:
    """A store, and files of its steps and patches."""

    def __init__(self, store: stepwell.Store, folder: Path, **how: Any) -> None:
        self.store, self.folder, self.how = store, folder, how

    def base(self, step: int) -> Path:
        file = self.folder / f"{step}.safetensors"
        if not file.exists():
            how = {"path" if name == "item" else name: value for name, value in self.how.items()}
            self.store.export(step, file, to="safetensors", **how)
        return file

    def patch(self, since: int, to: int, **more: Any) -> tuple[Path, stepwell.PatchReport]:
        file = self.folder / f"{since}-{to}.patch"
        return file, self.store.export_patch(since, to, file, **self.how, **more)

    def check(self, since: int, to: int) -> stepwell.PatchReport:
        """Makes a patch and applies it in every way."""
        base, result = self.base(since), self.base(to)
        file, report = self.patch(since, to, replace=True)
        wanted = tensors_of(result)
        assert by_reference(base, file) == by_reference(base, file, times=2) == wanted
        assert by_reference(result, file) == wanted  # it is there already
        assert by_library(base, file) == wanted
        about = metadata_of(file)
        assert (about["format"], about["version"]) == ("stepwell-patch", "1")
        assert (about["since"], about["to"]) == (str(since), str(to))
        assert report.base_digest == about["base_digest"] == digest_of(base)
        assert report.result_digest == about["result_digest"] == digest_of(result)
        assert report.size_bytes == file.stat().st_size
        assert report.sparse + report.dense + report.unchanged == len(wanted)
        for name, (word, _, _) in tensors_of(file).items():  # of it readers may take views
            begin = offset_of(file, name)
            assert begin % np.dtype(apply_patch.name_of(word)).itemsize == 0
        quick = self.folder / "quick"
        self.store.export_patch(since, to, quick, **self.how, digests=False, replace=True)
        assert tensors_of(quick) == tensors_of(file)
        assert "base_digest" not in metadata_of(quick)
        return report


def offset_of(file: Path, name: str) -> int:
    data = file.read_bytes()
    size = int.from_bytes(data[:8], "little")
    begin: int = json.loads(data[8:8 + size])[name]["data_offsets"][0]
    return 8 + size + begin


# ---- random steps -------------------------------------------------------------------------------

DTYPES = (np.float32, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2,
          ml_dtypes.int4, np.int64, np.bool_, np.complex64, np.float16)
RULES: tuple[Any, ...] = (
    None, lambda name: "model." + name.replace("/", "."),
    [Split("layers/**", "layers/{}/**"), Transpose("**/kernel")],
    [Transpose("**/kernel"), Fuse(["layers/q/kernel", "layers/k/kernel"], "layers/qk", 0)])


def changed(rng: np.random.Generator, array: np.ndarray) -> np.ndarray:
    """A copy of which none, a few, or many elements differ; some of NaNs and zeros in their bits
    alone."""
    flat = array.reshape(-1).copy()
    share = rng.choice([0, 0.001, 0.02, 0.3, 1])
    places = rng.random(flat.size) < share
    kinds = rng.integers(0, 7, flat.size).astype(np.int8).astype(array.dtype)
    flat[places] = kinds[places]
    if flat.dtype == ml_dtypes.bfloat16 and flat.size > 4 and share:
        flat.view(np.uint16)[:4] = rng.choice([0x8000, 0x0000, 0x7FC1, 0xFFC0], 4)
    return flat.reshape(array.shape)


def random_tree(rng: np.random.Generator) -> dict[str, Any]:
    def array(*shape: int) -> np.ndarray:
        dtype = DTYPES[rng.integers(len(DTYPES))]
        return rng.integers(0, 7, shape).astype(np.int8).astype(dtype)

    kernel = ml_dtypes.bfloat16
    return {"layers": {"q": {"kernel": rng.standard_normal((3, 70, 50)).astype(kernel)},
                       "k": {"kernel": rng.standard_normal((3, 70, 50)).astype(kernel)},
                       "b": array(3, 900)},
            "table": array(200, 170), "scalar": array(), "empty": array(0, 4), "few": array(5),
            "n": int(rng.integers(9))}


def next_tree(rng: np.random.Generator, tree: dict[str, Any]) -> dict[str, Any]:
    layers = tree["layers"]
    made = {**tree, **{name: changed(rng, tree[name]) for name in ("table", "scalar", "few")},
            "layers": {"q": {"kernel": changed(rng, layers["q"]["kernel"])},
                       "k": {"kernel": changed(rng, layers["k"]["kernel"])},
                       "b": changed(rng, layers["b"])}}
    if rng.random() < 0.3:
        made["n"] = int(rng.integers(9))
    if rng.random() < 0.3:
        made["more"] = np.arange(rng.integers(1, 9))
    if rng.random() < 0.2:
        made["table"] = made["table"][: rng.integers(1, 200)]
    return made


@pytest.mark.parametrize("seed", range(10))
def test_random_pairs_of_steps(path, tmp_path, seed):
    rng = np.random.default_rng(seed)
    how: dict[str, Any] = {"on_unsupported": "widen", "rename": RULES[seed % len(RULES)]}
    if seed % 3 == 2:
        how["dtype"] = "bfloat16"
    with stepwell.open(path, delta=bool(seed % 2)) as store:
        tree = random_tree(rng)
        for step in range(6):
            chunks = stepwell.ChunkShape(4096, (1, 0)) if rng.random() < 0.2 else None
            store.save(step, {"w": tree} if seed == 9 else tree, chunks=None if chunks is None
                       else {"**/table": chunks} if seed == 9 else {"table": chunks}).result()
            tree = next_tree(rng, tree)
        if seed == 9:
            how["item"] = "w"
        run = Run(store, tmp_path, **how)
        for _ in range(5):
            run.check(*rng.permutation(6)[:2].tolist())  # the later one first, too


# ---- what is in a patch -------------------------------------------------------------------------


def test_few_changed_elements_are_indices_and_values(store, tmp_path):
    w = np.random.default_rng(0).standard_normal((300, 400)).astype(ml_dtypes.bfloat16)
    after = w.copy()
    after[7, 3], after[299, 399] = 9, -0.0
    state = {"params": {"w": w, "same": np.arange(9), "dense": np.arange(4)}, "opt": np.ones(3)}
    store.save(1, items=state).result()
    store.save(2, items={**state, "params": {**state["params"], "w": after,
                                             "dense": np.arange(4) + 1, "new": np.arange(2)}},
               ).result()
    run = Run(store, tmp_path, item="params", rename={"w": "model.w"})
    report = run.check(1, 2)
    assert (report.sparse, report.dense, report.unchanged) == (1, 2, 1)
    assert report.elements == 2 and report.removed == ()
    given = tensors_of(tmp_path / "1-2.patch")
    assert set(given) == {"model.w.indices", "model.w.values", "dense", "new"}
    assert given["model.w.indices"][:2] == ("I32", [2])
    assert np.frombuffer(given["model.w.indices"][2], np.int32).tolist() == [2803, 119_999]
    assert np.frombuffer(given["model.w.values"][2], np.uint16).tolist() == [0x4110, 0x8000]
    back = run.check(2, 1)
    assert back.removed == ("new",)
    assert json.loads(metadata_of(tmp_path / "2-1.patch")["removed"]) == ["new"]
    none = run.check(1, 1)
    assert (none.sparse, none.dense, none.unchanged) == (0, 0, 3)
    assert not tensors_of(tmp_path / "1-1.patch") and none.base_digest == none.result_digest


def test_a_tensor_is_whole_where_that_is_not_larger(store, tmp_path):
    w = np.zeros(90, ml_dtypes.bfloat16)
    for step, count in enumerate((29, 30, 31)):
        after = w.copy()
        after[:count] = 1
        store.save(2 * step, {"w": w}).result()
        store.save(2 * step + 1, {"w": after}).result()
        report = Run(store, tmp_path).check(2 * step, 2 * step + 1)
        assert report.dense == (count >= 30)  # (4 + 2) · 30 = 2 · 90


def test_indices_are_of_32_bits_as_long_as_these_hold_them():
    assert index_dtype(0) == index_dtype(1) == index_dtype(2**31) == np.int32
    assert index_dtype(2**31 + 1) == index_dtype(2**40) == np.int64
    assert np.array([2**31 - 1]).astype(index_dtype(2**31))[0] == 2**31 - 1


def test_without_digests_only_changed_chunks_are_read(path, tmp_path):
    rng = np.random.default_rng(1)
    w = rng.standard_normal((8, 200, 1000)).astype(np.float32)
    frozen = rng.standard_normal((500, 1000)).astype(np.float32)
    after = w.copy()
    after[3, 5, 7] = 0
    with stepwell.open(path, codec="raw") as store:
        chunks = {"w": stepwell.ChunkShape(800_000, (0,))}  # one for each layer
        store.save(1, {"w": w, "frozen": frozen}, chunks=chunks).result()
        store.save(2, {"w": after, "frozen": frozen}, chunks=chunks).result()
        for rename in (None, [Split("w", "w/{}"), Transpose("w/*")]):
            file = tmp_path / "patch"
            report = store.export_patch(1, 2, file, rename=rename, digests=False, replace=True)
            assert report.elements == 1 and report.base_digest == ""
            assert store.stats()["last_load"]["bytes_out"] == 2 * 200 * 1000 * 4
            store.export_patch(1, 2, file, rename=rename, replace=True)
            read = store.stats()["last_load"]["bytes_out"]
            assert read == w.nbytes * 2 + frozen.nbytes if rename is None else read < w.nbytes * 2


def test_another_grid_of_chunks_is_compared_by_its_elements(store, tmp_path):
    w = np.arange(2000, dtype=np.float32).reshape(40, 50)
    store.save(1, {"w": w, "v": w}).result()
    after = w.copy()
    after[2, 3] = 0
    store.save(2, {"w": after, "v": w}, chunks=stepwell.ChunkShape(4096, (1,))).result()
    report = Run(store, tmp_path).check(1, 2)
    assert (report.sparse, report.unchanged, report.elements) == (1, 1, 1)


def test_the_parts_of_a_large_tensor_come_in_order(store, tmp_path, monkeypatch):
    monkeypatch.setattr("stepwell._load.slicing.PART_BYTES", 700)
    monkeypatch.setattr("stepwell._backend.tensors.PART_BYTES", 700)
    rng = np.random.default_rng(2)
    w = rng.standard_normal((60, 50)).astype(np.float32)
    dense, few = w.copy(), w.copy()
    few[rng.random(w.shape) < 0.05] = 1
    dense[30:] = 1  # seen to be dense in the middle
    chunks = stepwell.ChunkShape(4096, (1,))
    store.save(1, {"few": w, "dense": w}, chunks=chunks).result()
    store.save(2, {"few": few, "dense": dense}, chunks=chunks).result()
    for rename in (None, Transpose("*")):
        (tmp_path / str(rename is None)).mkdir()
        report = Run(store, tmp_path / str(rename is None), rename=rename).check(1, 2)
        assert (report.sparse, report.dense) == (1, 1)


# ---- what goes wrong ----------------------------------------------------------------------------


def test_a_wrong_base_is_refused(store, tmp_path):
    for step in range(3):
        store.save(step, {"w": np.arange(600) // (step + 1)}).result()
    run = Run(store, tmp_path)
    file, _ = run.patch(1, 2)
    with pytest.raises(ValueError, match="not the tensors of step 1"):
        by_reference(run.base(0), file)
    tensors, (patch, about) = apply_patch.read(run.base(1))[0], apply_patch.read(file)
    name = next(iter(patch))
    patch[name][2][0] ^= 1
    with pytest.raises(ValueError, match="the result is not step 2"):
        apply_patch.apply(tensors, patch, about)
    with pytest.raises(ValueError, match="not a patch"):
        apply_patch.apply(tensors, patch, {**about, "version": "2"})
    done = subprocess.run([sys.executable, EXAMPLE, run.base(1), file, tmp_path / "result"],
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert tensors_of(tmp_path / "result") == tensors_of(run.base(2))


def test_names_that_would_be_there_twice(store, tmp_path):
    w = np.zeros(1000)
    store.save(1, {"w": w, "w.values": np.zeros(2)}).result()
    after = w.copy()
    after[5] = 1
    store.save(2, {"w": after, "w.values": np.ones(2)}).result()
    with pytest.raises(stepwell.InvalidArgumentError, match="'w.values' twice"):
        store.export_patch(1, 2, tmp_path / "patch")
    assert os.listdir(tmp_path) == ["store"]
    report = store.export_patch(1, 2, tmp_path / "patch", rename={"w": "kernel"})
    assert (report.sparse, report.dense) == (1, 1)


def test_what_is_refused(store, tmp_path, path):
    store.save(1, {"w": np.zeros(3), "s": "text"}).result()
    store.save(2, {"w": np.ones(3), "s": "text"}).result()
    file = tmp_path / "patch"
    with pytest.raises(stepwell.InvalidArgumentError, match="cannot hold state/s: is a str"):
        store.export_patch(1, 2, file)
    skipped = store.export_patch(1, 2, file, on_unsupported="skip").skipped
    assert [leaf.path for leaf in skipped] == ["state/s"]
    how: dict[str, Any] = {"on_unsupported": "skip"}
    with pytest.raises(stepwell.StepExistsError):
        store.export_patch(1, 2, file, **how)
    store.export_patch(1, 2, file, replace=True, **how)
    for arguments, error in (((1, 3), stepwell.StepNotFoundError),
                             ((-1, 2), stepwell.InvalidArgumentError)):
        with pytest.raises(error):
            store.export_patch(*arguments, tmp_path / "other", **how)
    with pytest.raises(stepwell.PathNotFoundError):
        store.export_patch(1, 2, tmp_path / "other", item="v", **how)
    with pytest.raises(stepwell.InvalidArgumentError, match="inside the store"):
        store.export_patch(1, 2, path / "other", **how)
    with pytest.raises(stepwell.InvalidArgumentError, match="digests must be True or False"):
        store.export_patch(1, 2, tmp_path / "other", digests="no", **how)
    store.delete(1)
    with pytest.raises(stepwell.StepNotFoundError):
        store.export_patch(1, 2, tmp_path / "other", **how)
    store.close()
    with pytest.raises(stepwell.Error, match="is closed"):
        store.export_patch(1, 2, tmp_path / "other")
    assert set(os.listdir(tmp_path)) == {"store", "patch"}


def test_damage_is_an_error_and_leaves_nothing(path, tmp_path):
    w = np.random.default_rng(0).standard_normal((400, 1000)).astype(np.float32)
    after = w.copy()
    after[0, 0] = 1
    with stepwell.open(path, codec="raw") as store:
        store.save(1, {"w": w}).result()
        store.save(2, {"w": after}).result()
    flip(path, w[:1, 100:120].tobytes())
    with stepwell.open(path, mode="r") as store:
        with pytest.raises(stepwell.CorruptionError):
            store.export_patch(1, 2, tmp_path / "patch")
    assert os.listdir(tmp_path) == ["store"]


def test_an_export_that_is_killed_leaves_no_file(store, tmp_path, path):
    store.save(1, {"w": np.zeros(3000)}).result()
    store.save(2, {"w": np.ones(3000)}).result()
    program = """if True:
        import os, signal, sys, stepwell
        from stepwell._backend.safetensors_file import Spool
        Spool.finish = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        with stepwell.open(sys.argv[1], mode="r") as store:
            store.export_patch(1, 2, sys.argv[2])
    """
    done = subprocess.run([sys.executable, "-c", program, path, tmp_path / "patch"], check=False)
    assert done.returncode == -signal.SIGKILL
    assert not (tmp_path / "patch").exists() and len(os.listdir(tmp_path)) == 2
    store.export_patch(1, 2, tmp_path / "patch")  # removes what is left of it
    assert set(os.listdir(tmp_path)) == {"store", "patch"}


def test_steps_that_two_processes_saved_together(tmp_path):
    root = tmp_path / "store"
    acts = [["save", {"step": step, "leaves": dict.fromkeys("01", list(EVERY_LEAF))}]
            for step in (1, 2)]
    for process in run(root, [["open", {}], *acts, ["close", {}]], processes=2):
        assert process.status == 0, process.output[-2000:]
    with stepwell.open(root, mode="r") as store:
        report = Run(store, tmp_path, on_unsupported="skip", rename=Transpose("**")).check(1, 2)
    assert report.sparse == 1 and report.dense >= len(EVERY_LEAF) - 2  # "empty" is the same


def test_a_directory_never_gives_way_to_a_file(store: stepwell.Store, tmp_path: Path) -> None:
    for step in range(2):
        store.save(step, {"w": np.full(9, step)}).result()
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "notes").write_text("mine")
    with pytest.raises(stepwell.StepExistsError, match="is a directory: give the path of a file"):
        store.export_patch(0, 1, folder, replace=True)
    assert (folder / "notes").read_text() == "mine"
