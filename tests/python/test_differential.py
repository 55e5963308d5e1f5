# SPDX-License-Identifier: Apache-2.0
"""Our readers of OCDBT and zarr against TensorStore, on what TensorStore writes from random seeds.

$STEPWELL_SEEDS seeds from $STEPWELL_SEED on: tests/soak has the long form.
"""

from __future__ import annotations

import json
import os
import pathlib
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tensorstore as ts
from equality import bits
from test_ocdbt import walk

import stepwell

SEEDS = int(os.environ.get("STEPWELL_SEEDS", "6"))
FIRST_SEED = int(os.environ.get("STEPWELL_SEED", "1"))

CONTEXT = ts.Context({"file_io_sync": False})


@pytest.fixture
def folder() -> Iterator[pathlib.Path]:
    """In memory: TensorStore makes a file for each commit."""
    base = "/dev/shm" if os.path.isdir("/dev/shm") else None
    made = pathlib.Path(tempfile.mkdtemp(prefix="stepwell-differential-", dir=base))
    yield made
    shutil.rmtree(made)


def run_seeds(what: str, check: Callable[[random.Random, int], int]) -> None:
    """Runs `check`, which gives the number of its comparisons, seed after seed."""
    cases = 0
    for seed in range(FIRST_SEED, FIRST_SEED + SEEDS):
        try:
            cases += check(random.Random(seed), seed)
        except BaseException:
            print(f"{what}: STEPWELL_SEED={seed}")
            raise
    print(f"\n{what}: seeds {FIRST_SEED}:{FIRST_SEED + SEEDS}, {cases} comparisons")
    assert cases >= SEEDS


# ---- OCDBT ------------------------------------------------------------------------------------


def random_config(rng: random.Random) -> dict[str, Any]:
    return {
        "manifest_kind": rng.choice(["single", "numbered"]),
        "max_inline_value_bytes": rng.choice([0, 1, 10, 100, 5000]),
        "max_decoded_node_bytes": rng.choice([1, 100, 300, 1000, 10_000, 8_000_000]),
        "version_tree_arity_log2": rng.choice([1, 1, 2, 3, 5]),
        "compression": rng.choice([None, {"id": "zstd"}, {"id": "zstd", "level": 9}]),
    }


def random_key(rng: random.Random) -> bytes:
    parts = [b"", b"a", b"layers.0.kernel/", b"c/0/", b"\x00", b"\xff", b"\xff\xff", b"x" * 200,
             b"/", b".zarray", b"zarr.json"]  # fmt: skip
    key = b"".join(rng.choices(parts, k=rng.randrange(4)))
    return key + str(rng.randrange(300)).encode() if rng.random() < 0.9 else key


def random_value(rng: random.Random) -> bytes:
    size = rng.choice([0, 1, rng.randrange(20), rng.randrange(200), rng.randrange(4000)])
    return rng.randbytes(size)


def change(rng: random.Random, kvstore: ts.KvStore, model: dict[bytes, bytes]) -> None:
    """One commit, or several."""
    roll = rng.random()
    if roll < 0.5:
        transaction = ts.Transaction(atomic=True)
        for _ in range(rng.choice([1, 3, 30, 300])):
            key = random_key(rng)
            if model and rng.random() < 0.1:
                key = rng.choice(list(model))
                del kvstore.with_transaction(transaction)[key]
                del model[key]
            else:
                model[key] = random_value(rng)
                kvstore.with_transaction(transaction)[key] = model[key]
        transaction.commit_sync()
    elif roll < 0.9:
        for _ in range(rng.randrange(1, 12)):  # a generation each
            key = random_key(rng)
            model[key] = random_value(rng)
            kvstore[key] = model[key]
    elif roll < 0.98:
        low, high = sorted([random_key(rng), random_key(rng)])
        if low < high:
            kvstore.delete_range(ts.KvStore.KeyRange(low, high)).result()
            for key in [key for key in model if low <= key < high]:
                del model[key]
    else:
        kvstore.delete_range(ts.KvStore.KeyRange()).result()
        model.clear()


def newest_version(place: pathlib.Path) -> dict[str, Any]:
    """Reads the version of the newest manifest by TensorStore."""
    base = ts.KvStore.open(f"file://{place}/").result()
    numbered = sorted(path.name for path in place.glob("manifest.0*"))
    if not numbered:
        return ts.ocdbt.dump(base).result()["versions"][-1]
    return {"generation_number": int(numbered[-1].removeprefix("manifest."), 16)}


def check_database(rng: random.Random, place: pathlib.Path, model: dict[bytes, bytes]) -> None:
    spec = {"driver": "ocdbt", "base": f"file://{place}/"}
    theirs = ts.KvStore.open(spec, context=CONTEXT).result()
    keys = theirs.list().result()
    values = {key: theirs.read(key) for key in keys}
    assert {key: value.result().value for key, value in values.items()} == model
    walked = walk(place)
    assert list(walked.values) == sorted(model)
    assert walked.values == model
    version = newest_version(place)
    assert walked.generation == version["generation_number"]
    if "root_height" in version:
        assert walked.height == version["root_height"]
    low, high = sorted([random_key(rng), random_key(rng)])
    part = walk(place, low, high)
    assert list(part.values) == sorted(key for key in model if low <= key < high)
    assert part.reads <= walked.reads


def test_ocdbt_databases(folder: pathlib.Path) -> None:
    seen: dict[str, set[int]] = {"heights": set(), "generations": set()}

    def check(rng: random.Random, seed: int) -> int:
        place = folder / str(seed)
        spec = {"driver": "ocdbt", "base": f"file://{place}/", "config": random_config(rng)}
        kvstore = ts.KvStore.open(spec, context=CONTEXT).result()
        model: dict[bytes, bytes] = {}
        checks = 0
        for _ in range(rng.choice([1, 5, 12])):
            for _ in range(rng.randrange(1, 6)):
                change(rng, kvstore, model)
            if rng.random() < 0.3:
                kvstore = ts.KvStore.open(spec, context=CONTEXT).result()
            check_database(rng, place, model)
            checks += 1
        walked = walk(place)
        seen["heights"].add(walked.height)
        seen["generations"].add(walked.generation)
        shutil.rmtree(place)
        return checks

    run_seeds("OCDBT", check)
    print(f"heights {sorted(seen['heights'])}, generations to {max(seen['generations'])}")
    assert max(seen["heights"]) >= 1 and max(seen["generations"]) > 5


# ---- zarr -------------------------------------------------------------------------------------

NUMPY_DTYPES = ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
                "float16", "float32", "float64", "complex64", "complex128"]  # fmt: skip
ML_DTYPES = ["bfloat16", "int2", "int4", "float8_e3m4", "float8_e4m3b11fnuz", "float8_e4m3fn",
             "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu",
             "float4_e2m1fn"]  # fmt: skip
SUB_BYTE_BITS = {"int2": 2, "int4": 4, "float4_e2m1fn": 4}


def numpy_dtype(name: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, name) if name in ML_DTYPES else name)


def random_array(rng: random.Random, name: str, shape: list[int]) -> np.ndarray[Any, Any]:
    """Any bits; sometimes with much that repeats."""
    dtype = numpy_dtype(name)
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    raw = np.frombuffer(rng.randbytes(size), np.uint8).copy()
    if rng.random() < 0.5:
        raw[rng.randrange(size + 1):] = 0
    if name == "bool":
        raw &= 1
    elif name in SUB_BYTE_BITS:
        raw &= (1 << SUB_BYTE_BITS[name]) - 1
    return raw.view(dtype).reshape(shape)


def random_fill(rng: random.Random, name: str) -> Any:
    if name == "bool":
        return rng.random() < 0.5
    if name in ("int2", "int4"):
        return rng.choice([0, 1, -1])
    if "int" in name:
        return rng.choice([0, 1, 7, 100])
    if numpy_dtype(name).itemsize < 4:
        return 0.0  # others of small types are not read where a chunk is missing, and said so
    values = [0.0, -0.0, 1.0, 0.5, 0.1, 1e-3, "NaN", "Infinity", "-Infinity"]
    if name.startswith("complex"):
        return [rng.choice(values), rng.choice(values)]
    return rng.choice(values)


def random_blosc(rng: random.Random, named: bool) -> dict[str, Any]:
    blosc: dict[str, Any] = {
        "cname": rng.choice(["lz4", "zstd", "zlib", "lz4hc"]),
        "clevel": rng.randrange(10),
        "blocksize": rng.choice([0, 0, 256, 4096]),
    }
    if named:
        return blosc | {"shuffle": rng.choice(["noshuffle", "shuffle", "bitshuffle"]),
                        "typesize": rng.choice([1, 2, 4, 8])}
    return blosc | {"id": "blosc", "shuffle": rng.choice([-1, 0, 1, 2])}


def random_codecs(rng: random.Random, item_bytes: int) -> list[dict[str, Any]]:
    endian = {"configuration": {"endian": "little"}} if item_bytes > 1 else {}
    codecs: list[dict[str, Any]] = [{"name": "bytes", **endian}]
    compressor = rng.choice([None, "zstd", "gzip", "blosc"])
    if compressor == "zstd":
        codecs.append({"name": "zstd", "configuration": {
            "level": rng.randrange(-5, 20), "checksum": rng.random() < 0.5}})
    elif compressor == "gzip":
        codecs.append({"name": "gzip", "configuration": {"level": rng.randrange(10)}})
    elif compressor == "blosc":
        codecs.append({"name": "blosc", "configuration": random_blosc(rng, named=True)})
    if rng.random() < 0.5:
        codecs.append({"name": "crc32c"})
    return codecs


def random_zarr3(rng: random.Random, name: str, shape: list[int]) -> dict[str, Any]:
    item_bytes = numpy_dtype(name).itemsize
    inner = [rng.randrange(1, extent + 3) for extent in shape]
    chunk = inner
    codecs = random_codecs(rng, item_bytes)
    if rng.random() < 0.4:
        chunk = [extent * rng.randrange(1, 4) for extent in inner]
        index: list[dict[str, Any]] = [{"name": "bytes", "configuration": {"endian": "little"}}]
        if rng.random() < 0.8:
            index.append({"name": "crc32c"})
        codecs = [{"name": "sharding_indexed", "configuration": {
            "chunk_shape": inner, "codecs": codecs, "index_codecs": index,
            "index_location": rng.choice(["start", "end"])}}]  # fmt: skip
    encoding: dict[str, Any] = {"name": rng.choice(["default", "v2"])}
    if rng.random() < 0.7:
        encoding["configuration"] = {"separator": rng.choice("./")}
    metadata: dict[str, Any] = {
        "shape": shape, "data_type": name, "codecs": codecs, "fill_value": random_fill(rng, name),
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunk}},
        "chunk_key_encoding": encoding,
    }  # fmt: skip
    if rng.random() < 0.2:
        metadata["attributes"] = {"note": ["ä", 1, None]}
    if rng.random() < 0.2:
        metadata["dimension_names"] = [rng.choice([f"x{i}", None]) for i in range(len(shape))]
    return {"driver": "zarr3", "metadata": metadata}


def random_zarr2(rng: random.Random, name: str, shape: list[int]) -> dict[str, Any]:
    dtype = name if name in ML_DTYPES else numpy_dtype(name).str
    compressor = rng.choice([None, "zstd", "gzip", "zlib", "blosc"])
    described: dict[str, Any] | None = None if compressor is None else {"id": compressor}
    if compressor == "blosc":
        described = random_blosc(rng, named=False)
    elif compressor is not None and described is not None:
        described["level"] = rng.randrange(1, 10)
    return {"driver": "zarr", "metadata": {
        "shape": shape, "chunks": [rng.randrange(1, extent + 3) for extent in shape],
        "dtype": dtype, "compressor": described, "dimension_separator": rng.choice("./"),
        "fill_value": None if name in ML_DTYPES else rng.choice([None, random_fill(rng, name)]),
        "order": "C",
    }}  # fmt: skip


def write_arrays(rng: random.Random, item: pathlib.Path, version: int,
                 ocdbt: bool) -> dict[str, np.ndarray[Any, Any]]:
    """Some arrays, of which not every chunk may have been written; as TensorStore reads them."""
    item.mkdir()
    arrays = {}
    base = f"file://{item}/"
    for number in range(rng.randrange(1, 8)):
        dtype = rng.choice(NUMPY_DTYPES + ML_DTYPES)
        shape = [rng.choice([1, 2, 3, 5, 17, 40]) for _ in range(rng.choice([0, 1, 1, 2, 2, 3]))]
        spec = (random_zarr3 if version == 3 else random_zarr2)(rng, dtype, shape)
        name = rng.choice(["a", "ä b", "x.y", "deep.0"]) + str(number)
        spec["kvstore"] = f"{base}|ocdbt:" if ocdbt else base
        spec["path"] = f"{name}/"
        store_fill = {"store_data_equal_to_fill_value": True} if rng.random() < 0.5 else {}
        opened = ts.open(spec | store_fill, create=True, context=CONTEXT).result()
        array = random_array(rng, dtype, shape)
        has_fill = spec["metadata"]["fill_value"] is not None  # else what is missing is an error
        if shape and has_fill and rng.random() < 0.3:
            rows = slice(rng.randrange(shape[0] + 1), None)
            opened[rows].write(array[rows]).result()
        else:
            opened.write(array).result()
        arrays[name] = np.asarray(opened.read().result())
    tree = {repr((name,)): {"key_metadata": [{"key": name, "key_type": 2}], "value_metadata": {
        "value_type": "np.ndarray", "skip_deserialize": False}} for name in arrays}  # fmt: skip
    (item / "_METADATA").write_text(json.dumps({
        "tree_metadata": tree, "use_ocdbt": ocdbt, "use_zarr3": version == 3}))
    return arrays


def read_exported(place: pathlib.Path, name: str, zarr: int) -> np.ndarray[Any, Any]:
    kvstore = {"driver": "ocdbt", "base": f"file://{place}/state/", "path": f"{name}/"}
    return np.asarray(ts.open({"driver": "zarr3" if zarr == 3 else "zarr", "kvstore": kvstore},
                              context=CONTEXT).result().read().result())  # fmt: skip


def test_zarr_arrays_there_and_back(folder: pathlib.Path) -> None:
    """Imported from random metadata, exported, and read by TensorStore."""
    with stepwell.open(folder / "store") as store:

        def check(rng: random.Random, seed: int) -> int:
            item, place = folder / f"item{seed}", folder / f"export{seed}"
            version, zarr = rng.choice([2, 3]), rng.choice([2, 3])
            arrays = write_arrays(rng, item, version, ocdbt=rng.random() < 0.5)
            store.import_checkpoint(item, seed).result()
            loaded = store.load(seed)
            assert loaded.keys() == arrays.keys()
            for name, array in arrays.items():
                assert bits(loaded[name]) == bits(array), name
            store.export(seed, place, zarr=zarr, mode=rng.choice(["link", "copy"]))
            for name, array in arrays.items():
                assert bits(read_exported(place, name, zarr)) == bits(array), name
            store.delete(seed)
            shutil.rmtree(item)
            shutil.rmtree(place)
            return 2 * len(arrays)

        run_seeds("zarr", check)
        assert store.verify().ok
