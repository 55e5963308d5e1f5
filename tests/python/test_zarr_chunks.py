# SPDX-License-Identifier: Apache-2.0
"""Stepwell's chunks against TensorStore's zarr drivers, both ways.

Our encoders are reached through the helper programs stepwell_zarr_chunks and
stepwell_orbax_files, found below $STEPWELL_BUILD_DIR. A missing helper is a failure, not a skip.
"""

import itertools
import json
import os
import pathlib
import subprocess

import ml_dtypes
import numpy as np
import pytest
import tensorstore as ts

NUMPY_DTYPES = [
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "float32", "float64", "complex64", "complex128",
]  # fmt: skip
ML_DTYPES = [
    "bfloat16", "int2", "int4", "float8_e3m4", "float8_e4m3b11fnuz", "float8_e4m3fn",
    "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn",
]  # fmt: skip
DTYPES = NUMPY_DTYPES + ML_DTYPES
SUB_BYTE_BITS = {"int2": 2, "int4": 4, "float4_e2m1fn": 4}

# (shape, chunk shape): with and without edge chunks, one axis, none.
GRIDS = [
    ((5, 7), (2, 3)),
    ((64, 48), (16, 48)),
    ((4097,), (1024,)),
    ((), ()),
    ((3, 2, 5), (1, 2, 4)),
]


def numpy_dtype(name: str) -> np.dtype:
    return np.dtype(getattr(ml_dtypes, name) if name in ML_DTYPES else name)


def make_array(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Every bit pattern that the type has, also NaNs; bools 0 or 1."""
    dtype = numpy_dtype(name)
    count = int(np.prod(shape, dtype=np.int64))
    generator = np.random.default_rng(1)
    raw = generator.integers(0, 256, count * dtype.itemsize, dtype=np.uint8)
    if name == "bool":
        raw &= 1
    elif name in SUB_BYTE_BITS:
        raw &= (1 << SUB_BYTE_BITS[name]) - 1
    return raw.view(dtype).reshape(shape)


def fill_value(name: str):
    if name == "bool":
        return False
    if name.startswith("complex"):
        return [0.0, 0.0]
    return 0.0 if "float" in name else 0


def zarr_json(name: str, shape, chunk_shape, codec: str) -> dict:
    item_bytes = numpy_dtype(name).itemsize
    codecs = [{"name": "bytes"}]
    if item_bytes > 1:
        codecs[0]["configuration"] = {"endian": "little"}
    if codec == "blosc":
        blosc = {
            "cname": "lz4", "clevel": 5, "shuffle": "bitshuffle",
            "typesize": item_bytes, "blocksize": 0,
        }  # fmt: skip
        codecs.append({"name": "blosc", "configuration": blosc})
    codecs.append({"name": "crc32c"})
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(shape),
        "data_type": name,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(chunk_shape)}},
        "chunk_key_encoding": {"name": "default"},
        "codecs": codecs,
        "fill_value": fill_value(name),
    }


def chunk_names(shape, chunk_shape) -> list[str]:
    """zarr's file of chunk 0, 1, ... in C order."""
    counts = [-(-extent // chunk) for extent, chunk in zip(shape, chunk_shape)]
    indices = itertools.product(*(range(count) for count in counts))
    return ["/".join(["c", *map(str, index)]) for index in indices]


def open_zarr(path: pathlib.Path, driver: str = "zarr3", **options):
    spec = {"driver": driver, "kvstore": {"driver": "file", "path": f"{path}/"}}
    return ts.open(spec, **options).result()


def helper(name: str) -> str:
    folder = os.environ.get("STEPWELL_BUILD_DIR")
    assert folder, "STEPWELL_BUILD_DIR must name the build folder"
    program = pathlib.Path(folder, "tests", "format", name)
    assert program.is_file(), f"{program} is not built"
    return str(program)


def run(*command: str) -> str:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


def run_helper(action: str, name: str, shape, chunk_shape, codec: str, source, target) -> None:
    extents = ["x".join(map(str, part)) for part in (shape, chunk_shape)]
    run(helper("stepwell_zarr_chunks"), action, name, *extents, codec, str(source), str(target))


def metadata_of_chunks(zarr_format: int, name: str, shape, chunk_shape, codec: str):
    """The text of zarr.json or .zarray that names Stepwell's chunks, and their keys."""
    extents = ["x".join(map(str, part)) for part in (shape, chunk_shape)]
    program = helper("stepwell_orbax_files")
    text, *keys = run(program, "metadata", str(zarr_format), name, *extents, codec).split("\n")
    return text, keys


def encode(tmp_path: pathlib.Path, array: np.ndarray, name: str, chunk_shape, codec: str):
    """The payloads that Stepwell stores, in the order of chunk indices."""
    source = tmp_path / "array"
    source.write_bytes(array.tobytes())
    folder = tmp_path / "payloads"
    folder.mkdir()
    run_helper("encode", name, array.shape, chunk_shape, codec, source, folder)
    count = len(chunk_names(array.shape, chunk_shape))
    return [(folder / str(index)).read_bytes() for index in range(count)]


@pytest.mark.parametrize("zarr_format", [3, 2])
@pytest.mark.parametrize("codec", ["raw", "blosc"])
@pytest.mark.parametrize("name", DTYPES)
def test_tensorstore_reads_our_chunks(tmp_path, name, codec, zarr_format):
    for number, (shape, chunk_shape) in enumerate(GRIDS):
        work = tmp_path / str(number)
        work.mkdir()
        array = make_array(name, shape)
        zarr = work / "zarr"
        zarr.mkdir()
        text, keys = metadata_of_chunks(zarr_format, name, shape, chunk_shape, codec)
        if zarr_format == 3:
            assert json.loads(text) == zarr_json(name, shape, chunk_shape, codec)
            assert keys == chunk_names(shape, chunk_shape)
        (zarr / ("zarr.json" if zarr_format == 3 else ".zarray")).write_text(text)
        payloads = encode(work, array, name, chunk_shape, codec)
        assert len(keys) == len(payloads)
        for chunk, payload in zip(keys, payloads):
            (zarr / chunk).parent.mkdir(parents=True, exist_ok=True)
            # zarr v2 has no checksums: the same bytes less the last four.
            (zarr / chunk).write_bytes(payload if zarr_format == 3 else payload[:-4])
        driver = "zarr3" if zarr_format == 3 else "zarr"
        opened = open_zarr(zarr, driver, open=True)
        read = np.asarray(opened.read().result())
        assert read.dtype == array.dtype
        assert read.shape == array.shape
        assert read.tobytes() == array.tobytes()


@pytest.mark.parametrize("zarr_format", [3, 2])
@pytest.mark.parametrize("codec", ["raw", "blosc"])
def test_our_metadata_is_spelled_as_tensorstores(tmp_path, codec, zarr_format):
    for name in DTYPES:
        text, _ = metadata_of_chunks(zarr_format, name, (5, 7), (2, 3), codec)
        work = tmp_path / name
        driver = "zarr3" if zarr_format == 3 else "zarr"
        spec = {"driver": driver, "kvstore": {"driver": "file", "path": f"{work}/"}}
        ts.open(spec | {"metadata": json.loads(text)}, create=True).result()
        assert (work / ("zarr.json" if zarr_format == 3 else ".zarray")).read_text() == text


def write_with_tensorstore(path: pathlib.Path, name, array, chunk_shape, codec) -> list[bytes]:
    metadata = zarr_json(name, array.shape, chunk_shape, codec)
    metadata.pop("zarr_format")
    spec = {
        "driver": "zarr3",
        "kvstore": {"driver": "file", "path": f"{path}/"},
        "metadata": metadata,
        "store_data_equal_to_fill_value": True,
    }
    ts.open(spec, create=True).result().write(array).result()
    return [(path / chunk).read_bytes() for chunk in chunk_names(array.shape, chunk_shape)]


@pytest.mark.parametrize("name", DTYPES)
def test_raw_chunks_are_byte_for_byte_those_of_tensorstore(tmp_path, name):
    for number, (shape, chunk_shape) in enumerate(GRIDS):
        work = tmp_path / str(number)
        work.mkdir()
        array = make_array(name, shape)
        theirs = write_with_tensorstore(work / "zarr", name, array, chunk_shape, "raw")
        assert encode(work, array, name, chunk_shape, "raw") == theirs


@pytest.mark.parametrize("codec", ["raw", "blosc"])
@pytest.mark.parametrize("name", DTYPES)
def test_we_read_the_chunks_of_tensorstore(tmp_path, name, codec):
    for number, (shape, chunk_shape) in enumerate(GRIDS):
        work = tmp_path / str(number)
        work.mkdir()
        array = make_array(name, shape)
        theirs = write_with_tensorstore(work / "zarr", name, array, chunk_shape, codec)
        folder = work / "payloads"
        folder.mkdir()
        for index, payload in enumerate(theirs):
            (folder / str(index)).write_bytes(payload)
        target = work / "decoded"
        run_helper("decode", name, shape, chunk_shape, codec, folder, target)
        assert target.read_bytes() == array.tobytes()


@pytest.mark.parametrize("codec", ["raw", "blosc"])
def test_tensorstore_refuses_a_flipped_bit(tmp_path, codec):
    shape, chunk_shape = (64, 48), (64, 48)
    array = make_array("float32", shape)
    payload = bytearray(encode(tmp_path, array, "float32", chunk_shape, codec)[0])
    payload[len(payload) // 2] ^= 1
    zarr = tmp_path / "zarr"
    (zarr / "c" / "0").mkdir(parents=True)
    (zarr / "zarr.json").write_text(json.dumps(zarr_json("float32", shape, chunk_shape, codec)))
    (zarr / "c" / "0" / "0").write_bytes(payload)
    with pytest.raises(ValueError, match="Digest mismatch"):
        open_zarr(zarr, open=True).read().result()
