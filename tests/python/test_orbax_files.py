# SPDX-License-Identifier: Apache-2.0
"""format/orbax's JSON files against those that the real Orbax and TensorStore write.

What Orbax wrote is decoded and encoded again by the helper program stepwell_orbax_files, found
below $STEPWELL_BUILD_DIR; the bytes must be the same. A missing helper is a failure, not a skip.
"""

import collections
import json
import os
import pathlib
import random
import struct
import subprocess
import unicodedata

import pytest
import tensorstore as ts

import forks

# Names of files, and the kinds that the helper knows; None: not one of these.
KINDS = {
    "_METADATA": "tree",
    "_sharding": "sharding",
    "process_0": "arrays",
    "_strings.json": "strings",
    "_CHECKPOINT_METADATA": "checkpoint",
    "_ROOT_METADATA": "root",
    "metadata": "json",
    "metrics": "json",
    "zarr.json": "zarr3",
    ".zarray": "zarr2",
}


def run_helper(*arguments: object, refused: bool = False) -> bytes:
    folder = os.environ.get("STEPWELL_BUILD_DIR")
    assert folder, "STEPWELL_BUILD_DIR must name the build folder"
    program = pathlib.Path(folder, "tests", "format", "stepwell_orbax_files")
    assert program.is_file(), f"{program} is not built"
    result = subprocess.run([program, *map(str, arguments)], capture_output=True, check=False)
    assert (result.returncode != 0) == refused, result.stderr.decode()
    return result.stderr if refused else result.stdout


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("orbax")
    script = pathlib.Path(__file__).parent / "support" / "orbax_save.py"
    status, _, err = forks.run(script, folder, timeout=300)
    assert status == 0, err
    return folder


def test_every_file_that_orbax_writes_comes_back_byte_for_byte(saved):
    seen = collections.Counter()
    for path in saved.rglob("*"):
        kind = KINDS.get(path.name) if path.is_file() else None
        if kind:
            assert run_helper("reencode", kind, path) == path.read_bytes(), path
            seen[kind] += 1
    # So that a change of Orbax's names does not make this test empty.
    assert seen.keys() == set(KINDS.values()) - {"zarr3"}, seen
    assert seen["tree"] >= 8 and seen["sharding"] >= 8 and seen["checkpoint"] >= 8, seen


def test_metadata_of_every_array_in_ocdbt_comes_back_byte_for_byte(saved, tmp_path):
    seen = collections.Counter()
    copy = tmp_path / "metadata"
    for item in {path.parent for path in saved.rglob("_METADATA")}:
        if not (item / "manifest.ocdbt").exists():
            continue
        kvstore = ts.KvStore.open(f"file://{item}/|ocdbt:").result()
        for key in kvstore.list().result():
            kind = KINDS.get(key.decode().split("/")[-1])
            if kind not in ("zarr3", "zarr2"):
                continue
            copy.write_bytes(kvstore.read(key).result().value)
            assert run_helper("reencode", kind, copy) == copy.read_bytes(), key
            seen[kind] += 1
    assert seen["zarr3"] > 40 and seen["zarr2"] > 40, seen


def test_names_are_those_of_orbax(saved):
    checked = 0
    for path in saved.rglob("process_0"):
        item = path.parent.parent
        tree = json.loads((item / "_METADATA").read_text())["tree_metadata"].values()
        theirs = {
            entry["array_metadata"]["param_name"]
            for entry in json.loads(path.read_text())["array_metadatas"]
        }
        names = list(map(json.loads, run_helper("names", item / "_METADATA").splitlines()))
        types = [entry["value_metadata"]["value_type"] for entry in tree]
        assert len(names) == len(types)
        assert {name for name, type_ in zip(names, types) if type_ == "jax.Array"} == theirs
        checked += len(theirs)
    assert checked > 30


def test_trees_have_what_orbax_can_say(saved):
    """The files above are worth something only with every type of value, key and sharding."""
    entries = [
        entry
        for path in saved.rglob("_METADATA")
        for entry in json.loads(path.read_text())["tree_metadata"].values()
    ]
    assert {entry["value_metadata"]["value_type"] for entry in entries} == {
        "jax.Array", "np.ndarray", "scalar", "string", "None", "Dict", "List", "Tuple",
        "NamedTuple",
    }  # fmt: skip
    assert {key["key_type"] for entry in entries for key in entry["key_metadata"]} == {1, 2}
    text = "".join(path.read_text() for path in saved.rglob("_sharding"))
    assert "NamedSharding" in text and "SingleDeviceSharding" in text and "null" in text
    text = "".join(path.read_text() for path in saved.rglob("process_0"))
    assert "threefry2x32" in text and "rbg" in text


def test_commit_success_is_orbaxs(saved):
    path = saved / "v1" / "commit_success.txt"
    assert path.read_text() == f"Checkpoint commit was successful to {path.parent}"


def random_json(chance: random.Random, depth: int):
    kind = chance.randrange(10 if depth else 7)
    if kind == 0:
        return chance.choice([None, True, False])
    if kind == 1:
        return chance.randrange(-(2**63), 2**64)
    if kind < 4:  # any double: NaNs, infinities, subnormals
        return struct.unpack("<d", chance.randbytes(8))[0]
    if kind == 4:
        return chance.choice([0.0, -0.0, 1e16, 1e15, 9999999999999998.0, 1e-4, 1e-5, float("nan")])
    if kind == 5:
        return round(chance.uniform(-1e6, 1e6), chance.randrange(6))
    if kind == 6:
        characters = [chance.choice("a\"\\\n\x7f\x00é\u2028\U0001f600") for _ in range(4)]
        return "".join(characters) + chance.choice(["", "NaN", "Infinity"])
    if kind == 7:
        return [random_json(chance, depth - 1) for _ in range(chance.randrange(6))]
    return {f"k{i}é": random_json(chance, depth - 1) for i in range(chance.randrange(6))}


def test_json_is_spelled_as_python_does(tmp_path):
    chance = random.Random(5)
    text = json.dumps([random_json(chance, 5) for _ in range(3000)])
    assert text.count("NaN") > 100 and "Infinity" in text
    path = tmp_path / "json"
    path.write_text(text)
    assert run_helper("reencode", "json", path).decode() == text
    # Other spellings of the same values.
    path.write_text(json.dumps(json.loads(text), ensure_ascii=False, indent=1))
    assert run_helper("reencode", "json", path).decode() == text


def test_repr_is_pythons_for_every_character(tmp_path):
    """The Unicode versions of the table and of Python may differ: only characters that are in all
    of them count."""
    ours = unicodedata.unidata_version == "14.0.0"
    old = unicodedata.ucd_3_2_0
    text = "".join(
        chr(code)
        for code in range(0x110000)
        if not 0xD800 <= code <= 0xDFFF and (ours or old.category(chr(code)) != "Cn")
    )
    assert len(text) > 90_000
    path = tmp_path / "text"
    for part in (text, text.replace('"', ""), "'", '"'):
        path.write_bytes(part.encode())
        assert run_helper("repr", path).decode() == repr(part)


BYTES = {"name": "bytes", "configuration": {"endian": "little"}}
CRC = {"name": "crc32c"}


def sharded(inner, codecs, index=(BYTES, CRC), **more):
    configuration = {"chunk_shape": inner, "codecs": codecs, "index_codecs": list(index), **more}
    return [{"name": "sharding_indexed", "configuration": configuration}]


def blosc(shuffle, cname="lz4"):
    configuration = {
        "cname": cname, "clevel": 3, "shuffle": shuffle, "typesize": 4, "blocksize": 0,
    }  # fmt: skip
    return {"name": "blosc", "configuration": configuration}


V3_CODECS = {
    "raw": [BYTES],
    "crc": [BYTES, CRC],
    "zstd": [BYTES, {"name": "zstd", "configuration": {"level": 3}}],
    "gzip": [BYTES, {"name": "gzip", "configuration": {"level": 6}}, CRC],
    "blosc": [BYTES, blosc("bitshuffle"), CRC],
    "blosc_zstd": [BYTES, blosc("noshuffle", "zstd")],
    "one_in_shard": sharded([4, 4], [BYTES, {"name": "zstd", "configuration": {"level": 1}}]),
    "several_in_shard": sharded([2, 1], [BYTES, blosc("shuffle"), CRC]),
    "index_first": sharded([2, 2], [BYTES], [BYTES], index_location="start"),
}
V2_COMPRESSORS = [
    None, {"id": "zstd"}, {"id": "zstd", "level": 9}, {"id": "gzip", "level": 2}, {"id": "zlib"},
    {"id": "blosc"}, {"id": "blosc", "cname": "zlib", "clevel": 1, "shuffle": 2},
]  # fmt: skip


def write_metadata(tmp_path, driver: str, metadata: dict) -> pathlib.Path:
    """Writes TensorStore's own metadata into a file."""
    spec = {"driver": driver, "kvstore": {"driver": "file", "path": f"{tmp_path}/"}}
    ts.open(spec | {"metadata": metadata}, create=True, delete_existing=True).result()
    return tmp_path / ("zarr.json" if driver == "zarr3" else ".zarray")


def v3_metadata(**more) -> dict:
    return {
        "shape": [8, 6], "data_type": "float32", "fill_value": 0.0, "codecs": [BYTES],
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4, 4]}},
        "chunk_key_encoding": {"name": "default"}, **more,
    }  # fmt: skip


@pytest.mark.parametrize("codecs", V3_CODECS)
def test_tensorstores_v3_comes_back_byte_for_byte(tmp_path, codecs):
    for keys in (
        {"name": "default"},
        {"name": "default", "configuration": {"separator": "."}},
        {"name": "v2"},
    ):
        metadata = v3_metadata(codecs=V3_CODECS[codecs], chunk_key_encoding=keys)
        path = write_metadata(tmp_path, "zarr3", metadata)
        assert run_helper("reencode", "zarr3", path) == path.read_bytes()


@pytest.mark.parametrize("compressor", V2_COMPRESSORS, ids=str)
def test_tensorstores_v2_comes_back_byte_for_byte(tmp_path, compressor):
    for dtype, fill, separator in (("<f4", None, "."), ("|i1", -3, "/"), ("<c8", [1.0, 2.0], ".")):
        metadata = {
            "shape": [8, 6], "chunks": [4, 4], "dtype": dtype, "compressor": compressor,
            "fill_value": fill, "dimension_separator": separator,
        }  # fmt: skip
        path = write_metadata(tmp_path, "zarr", metadata)
        assert run_helper("reencode", "zarr2", path) == path.read_bytes()


@pytest.mark.parametrize(
    "data_type, fill",
    [
        ("float32", "NaN"), ("float32", "0x7fc00001"), ("float64", 1e300), ("float32", "-Infinity"),
        ("complex64", ["NaN", 1.5]), ("int64", -5), ("uint64", 2**63), ("int4", -3), ("int2", 1),
        ("bool", True), ("bfloat16", "0x7fc1"), ("float8_e8m0fnu", 0.0), ("uint8", 255),
        ("float16", 0.0),
    ],
)  # fmt: skip
def test_absent_chunks_are_what_tensorstore_takes_them_for(tmp_path, data_type, fill):
    single = data_type in ("int4", "int2", "bool", "uint8", "float8_e8m0fnu")
    codecs = [{"name": "bytes"}] if single else [BYTES]
    metadata = v3_metadata(data_type=data_type, fill_value=fill, codecs=codecs)
    path = write_metadata(tmp_path, "zarr3", metadata)
    assert run_helper("reencode", "zarr3", path) == path.read_bytes()
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{tmp_path}/"}}
    element = ts.open(spec).result()[0, 0].read().result()
    ours = run_helper("fill", path)
    if data_type in ("int4", "int2"):  # the high bits mean nothing
        mask = 15 if data_type == "int4" else 3
        assert ours[0] == element.tobytes()[0] & mask
    else:
        assert ours == element.tobytes()


@pytest.mark.parametrize(
    "driver, metadata, reason",
    [
        ("zarr3", {"codecs": [{"name": "bytes", "configuration": {"endian": "big"}}]},
         b"codecs[0].configuration.endian: chunks in the byte order"),
        ("zarr3", {"codecs": [{"name": "transpose", "configuration": {"order": [1, 0]}}, BYTES]},
         b"transposed"),
        ("zarr", {"dtype": ">f4"}, b"big-endian"),
        ("zarr", {"order": "F"}, b"C order"),
        ("zarr", {"dtype": [["a", "<f4"]]}, b"structs"),
        ("zarr", {"compressor": {"id": "bz2"}}, b"bz2"),
    ],
)  # fmt: skip
def test_what_is_not_read_says_so(tmp_path, driver, metadata, reason):
    if driver == "zarr3":
        metadata = v3_metadata(**metadata)
    else:
        plain = {"shape": [8, 6], "chunks": [4, 4], "dtype": "<f4", "compressor": None}
        metadata = plain | metadata
    path = write_metadata(tmp_path, driver, metadata)
    message = run_helper("reencode", "zarr3" if driver == "zarr3" else "zarr2", path, refused=True)
    assert str(path).encode() in message and reason in message
