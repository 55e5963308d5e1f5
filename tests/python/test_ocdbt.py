# SPDX-License-Identifier: Apache-2.0
"""Stepwell's OCDBT databases against TensorStore's, both ways.

Our code is reached through the helper program stepwell_ocdbt, found below $STEPWELL_BUILD_DIR. A
missing helper is a failure, not a skip.
"""

import os
import pathlib
import random
import subprocess
from typing import NamedTuple

import jax
import numpy as np
import orbax.checkpoint as ocp_v0
import pytest
import tensorstore as ts
from orbax.checkpoint import v1 as ocp_v1

NODES = "d/000102030405060708090a0b0c0d0e0f"

# A value: bytes that are inline, or (number of the file, offset, length).
Value = bytes | tuple[int, int, int]


def helper() -> str:
    folder = os.environ.get("STEPWELL_BUILD_DIR")
    assert folder, "STEPWELL_BUILD_DIR must name the build folder"
    program = pathlib.Path(folder, "tests", "format", "stepwell_ocdbt")
    assert program.is_file(), f"{program} is not built"
    return str(program)


def run_helper(*arguments: object) -> str:
    command = [helper(), *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


def make_data_files(folder: pathlib.Path, names: list[str]) -> list[bytes]:
    contents = []
    for number, name in enumerate(names):
        content = random.Random(number).randbytes(100_000)
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        contents.append(content)
    return contents


def build(
    folder: pathlib.Path,
    database: dict[bytes, Value],
    files: list[str],
    *,
    node_entries_max: int = 2000,
    compression: str = "zstd",
) -> tuple[int, int, int]:
    """Writes the database to `folder`; (keys, nodes, height)."""
    lines = [f"file {name}" for name in files]
    for key, value in sorted(database.items()):
        if isinstance(value, bytes):
            lines.append(f"inline x{key.hex()} x{value.hex()}")
        else:
            lines.append("range x{} {} {} {}".format(key.hex(), *value))
    description = folder.parent / f"{folder.name}.txt"
    description.write_text("".join(f"{line}\n" for line in lines))
    (folder / "d").mkdir(parents=True, exist_ok=True)
    out = run_helper("build", description, folder, NODES, node_entries_max, compression)
    keys, nodes, height = map(int, out.split())
    return keys, nodes, height


def open_kvstore(folder: pathlib.Path, **config: object) -> ts.KvStore:
    spec: dict[str, object] = {"driver": "ocdbt", "base": {"driver": "file", "path": f"{folder}/"}}
    if config:
        spec["config"] = config
    return ts.KvStore.open(spec).result()


def read_all(folder: pathlib.Path) -> dict[bytes, bytes]:
    """Every key that TensorStore lists (node after node, as they arrive), with its value."""
    kvstore = open_kvstore(folder)
    keys = kvstore.list().result()
    reads = [(key, kvstore.read(key)) for key in keys]
    values = {key: read.result() for key, read in reads}
    assert all(value.state == "value" for value in values.values())
    return {key: value.value for key, value in values.items()}


def expected(database: dict[bytes, Value], contents: list[bytes]) -> dict[bytes, bytes]:
    return {
        key: value
        if isinstance(value, bytes)
        else contents[value[0]][value[1] : value[1] + value[2]]
        for key, value in database.items()
    }


def random_database(seed: int, count: int) -> dict[bytes, Value]:
    """Keys that are prefixes of each other, share long prefixes, are empty, or have any bytes."""
    generator = random.Random(seed)
    parts = [b"", b"a", b"layers.0.kernel/", b"c/0/", b"\x00", b"\xff", b"\xff\xff", b"x" * 300]
    database: dict[bytes, Value] = {b"": b"the empty key"}
    while len(database) < count:
        key = b"".join(generator.choices(parts, k=generator.randrange(4)))
        key += str(generator.randrange(count)).encode()
        if generator.random() < 0.3:
            database[key] = generator.randbytes(generator.randrange(60))
        else:
            offset = generator.randrange(90_000)
            database[key] = (generator.randrange(3), offset, generator.randrange(1, 500))
    return database


FILES = ["ocdbt.process_0/d/b", "d/segment 1.seg", "segments/é"]


@pytest.mark.parametrize("compression", ["zstd", "raw"])
@pytest.mark.parametrize(
    ("count", "node_entries_max", "height"),
    [(1, 2000, 0), (2, 2, 0), (500, 2000, 0), (3, 2, 1), (3000, 100, 1), (3000, 16, 2), (65, 2, 6)],
)
def test_tensorstore_reads_our_databases(tmp_path, count, node_entries_max, height, compression):
    folder = tmp_path / "database"
    contents = make_data_files(folder, FILES)
    database = random_database(count, count)
    keys, nodes, our_height = build(
        folder, database, FILES, node_entries_max=node_entries_max, compression=compression
    )
    assert (keys, our_height) == (count, height)
    assert (nodes == 1) == (height == 0)
    assert read_all(folder) == expected(database, contents)


def test_tensorstore_reads_a_database_without_keys(tmp_path):
    folder = tmp_path / "database"
    assert build(folder, {}, []) == (0, 0, 0)
    assert read_all(folder) == {}


def test_tensorstore_reads_the_longest_values_and_keys(tmp_path):
    folder = tmp_path / "database"
    database: dict[bytes, Value] = {
        b"k" * 65535: random.Random(1).randbytes(1 << 20),
        b"k" * 65534: bytes(1 << 20),
        b"nothing": b"",
        b"range of nothing": (0, 7, 0),
    }
    contents = make_data_files(folder, FILES[:1])
    _, nodes, height = build(folder, database, FILES[:1])
    assert (nodes, height) == (4, 1)  # each long value has a leaf of its own
    assert read_all(folder) == expected(database, contents)


def test_tensorstore_finds_ranges_of_keys(tmp_path):
    folder = tmp_path / "database"
    database: dict[bytes, Value] = {f"a/c/{i}".encode(): str(i).encode() for i in range(3000)}
    database |= {f"b{i}".encode(): b"" for i in range(3000)}
    build(folder, database, [], node_entries_max=50)
    kvstore = open_kvstore(folder)
    for low, high in [(b"a/c/1", b"a/c/2"), (b"a/c/299", b"b1"), (b"b", b"b0"), (b"x", b"y")]:
        found = kvstore.list(ts.KvStore.KeyRange(low, high)).result()
        assert sorted(found) == sorted(key for key in database if low <= key < high)
    assert kvstore.read(b"a/c/3000").result().state == "missing"


def test_tensorstore_goes_on_writing_to_our_database(tmp_path):
    folder = tmp_path / "database"
    contents = make_data_files(folder, FILES)
    database = random_database(7, 2000)
    build(folder, database, FILES, node_entries_max=100)
    kvstore = open_kvstore(folder)
    for i in range(3):
        kvstore.write(f"new {i}".encode(), bytes(5000 * i)).result()
    kvstore.write(b"", b"another").result()
    found = read_all(folder)
    assert found == expected(database, contents) | {
        b"": b"another",
        b"new 0": b"",
        b"new 1": bytes(5000),
        b"new 2": bytes(10000),
    }


class Walked(NamedTuple):
    values: dict[bytes, bytes]  # in the order of the walk
    inline: set[bytes]  # keys whose values lie in nodes
    reads: int
    generation: int
    height: int


def walk(folder: pathlib.Path, *bounds: bytes) -> Walked:
    out = run_helper("walk", folder, *(f"x{bound.hex()}" for bound in bounds))
    *lines, last = out.splitlines()
    fields = [line.split() for line in lines]
    values = {bytes.fromhex(key[1:]): bytes.fromhex(value[1:]) for key, _, value in fields}
    assert len(values) == len(lines)
    inline = {bytes.fromhex(key[1:]) for key, kind, _ in fields if kind == "inline"}
    return Walked(values, inline, *map(int, last.split()))


def check_walk(folder: pathlib.Path) -> Walked:
    """Our walk gives what TensorStore does: all of it, and ranges of it."""
    theirs = read_all(folder)
    walked = walk(folder)
    assert list(walked.values) == sorted(theirs)
    assert walked.values == theirs
    keys = sorted(theirs)
    for low, high in [(len(keys) // 3, len(keys) // 2), (len(keys) // 2, len(keys) // 2 + 1)]:
        if high < len(keys):
            part = walk(folder, keys[low], keys[high])
            assert list(part.values) == keys[low:high]
            assert part.reads <= walked.reads
    return walked


def test_our_databases_come_back(tmp_path):
    folder = tmp_path / "database"
    contents = make_data_files(folder, FILES)
    database = random_database(11, 3000)
    _, nodes, height = build(folder, database, FILES, node_entries_max=16)
    walked = check_walk(folder)
    assert walked.values == expected(database, contents)
    assert (walked.reads, walked.generation, walked.height) == (nodes, 1, height)


@pytest.mark.parametrize("compression", [None, {"id": "zstd", "level": 3}])
@pytest.mark.parametrize("arity_log2", [1, 4])
def test_we_read_what_tensorstore_wrote(tmp_path, arity_log2, compression):
    """Many generations, small nodes: high trees, and old versions in nodes of their own."""
    folder = tmp_path / "database"
    kvstore = open_kvstore(
        folder,
        max_inline_value_bytes=20,
        max_decoded_node_bytes=300,
        version_tree_arity_log2=arity_log2,
        compression=compression,
    )
    database = {
        key: random.Random(key).randbytes(len(key) % 40) for key in random_database(5, 400)
    }
    heights, generations = set(), set()
    for number, part in enumerate([1, 3, 50, 120, 400]):
        transaction = ts.Transaction()
        for key in list(database)[:part]:
            kvstore.with_transaction(transaction)[key] = database[key]
        transaction.commit_async().result()
        for i in range(20):  # a generation each
            kvstore.write(b"again", str(20 * number + i).encode()).result()
        walked = check_walk(folder)
        heights.add(walked.height)
        generations.add(walked.generation)
        assert walked.inline
        assert walked.reads > 2 or walked.height == 0
    assert walked.values == database | {b"again": b"99"}
    assert walked.inline == {key for key, value in walked.values.items() if len(value) <= 20}
    assert len(heights) >= 3 and max(heights) >= 3
    assert max(generations) > 100
    del kvstore[b""]
    assert b"" not in check_walk(folder).values
    kvstore.delete_range(ts.KvStore.KeyRange()).result()
    assert check_walk(folder).values == {}


def test_numbered_manifests(tmp_path):
    folder = tmp_path / "database"
    kvstore = open_kvstore(folder, manifest_kind="numbered", max_inline_value_bytes=3)
    for i in range(20):
        kvstore.write(str(i).encode(), bytes(i)).result()
        assert check_walk(folder).generation >= i + 1
    newest = sorted(folder.glob("manifest.0*"))[-1]
    # Older ones, other names and another generation's bytes under the newest name.
    (folder / "manifest.00000000000000FF").write_bytes(b"no number")
    assert len(check_walk(folder).values) == 20
    newest.rename(folder / "manifest.0000000000000fff")
    command = [helper(), "walk", str(folder)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 1 and "it is generation" in result.stderr
    for manifest in folder.glob("manifest.0*"):
        manifest.unlink()
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 1 and "numbered, but there is none" in result.stderr


def make_tree() -> dict:
    noise = np.random.default_rng(1)
    return {
        "layers": [
            {"kernel": noise.random((64, 32), np.float32), "bias": np.arange(32.0)}
            for _ in range(40)
        ],
        "step": 7,
        "scale": 0.5,
    }



@pytest.mark.parametrize("arrays", ["numpy", "jax"])
@pytest.mark.parametrize("version", ["v0", "v1"])
def test_we_read_what_orbax_wrote(tmp_path, version, arrays):
    tree = make_tree()
    if arrays == "jax":
        tree = jax.tree.map(jax.numpy.asarray, tree)
    path = tmp_path / "checkpoint"
    if version == "v0":
        with ocp_v0.StandardCheckpointer() as checkpointer:
            checkpointer.save(path, tree)
        item, metadata = path, b".zarray"
    else:
        ocp_v1.save(path, tree)
        item, metadata = path / "state", b"zarr.json"
    walked = check_walk(item)
    described = {key for key in walked.values if key.endswith(b"/" + metadata)}
    names = {key.rsplit(b"/", 1)[0].decode() for key in described}
    assert names == {"step", "scale"} | {
        f"layers.{i}.{leaf}" for i in range(40) for leaf in ("kernel", "bias")
    }
    # Metadata is inline; the kernels are in files of the process that wrote them.
    assert described <= walked.inline
    assert any(key.startswith(b"layers.0.kernel/") for key in walked.values.keys() - walked.inline)
    per_process = check_walk(item / "ocdbt.process_0")
    assert per_process.values == walked.values
