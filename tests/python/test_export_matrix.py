# SPDX-License-Identifier: Apache-2.0
"""Generated trees through exports and imports, read by everything that Orbax and TensorStore have.

The cases are those of orbax_matrix.py, which also runs longer by itself. Reflinks need an XFS image
that is mounted here: root, loop devices and mkfs.xfs.
"""

from __future__ import annotations

import json
import pathlib
import random
from typing import Any

import numpy as np
import orbax.checkpoint as ocp
import pytest
import tensorstore as ts
from orbax.checkpoint import v1

import forks
import stepwell

def run_matrix(*arguments: object) -> dict[str, int]:
    script = pathlib.Path(__file__).parent / "support" / "orbax_matrix.py"
    status, out, err = forks.run(script, *arguments, timeout=1500)
    assert status == 0, err[-8000:]
    counts: dict[str, int] = json.loads(out)
    return counts


def test_every_reader_takes_every_export(xfs: pathlib.Path) -> None:
    counts = run_matrix(xfs / "matrix", "--export", "0:12")
    for mode in ("link", "reflink", "copy"):
        assert counts[mode] == 4
    assert counts["zarr3"] == counts["zarr2"] == counts["jax"] == counts["numpy"] == 6
    assert counts["v1_load"] == counts["tensorstore_arrays"] == counts["cases"] == 12
    assert counts["digests"] == 3 * 12  # no reader minds them
    assert counts["manager_pytree_some"] == 11  # nothing of the tree that is not a dict


def test_every_checkpoint_of_orbax_is_kept(tmp_path: pathlib.Path) -> None:
    counts = run_matrix(tmp_path / "matrix", "--import", "0:12")
    assert counts["v1"] == counts["v0 manager"] == counts["v1 zarr3 files raw"] == 1
    assert counts["cases"] == 12


# Orbax v1's metadata fails below: it closes an event loop to which answers still come.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_orbax_refuses_its_own_too(tmp_path: pathlib.Path) -> None:
    """Asks of a checkpoint that Orbax itself wrote what the readers do not ask of an export."""
    tree = {"a": np.arange(3), "text": "x"}
    with ocp.PyTreeCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "v0", tree)
    with ocp.StandardCheckpointer() as standard:
        with pytest.raises(ValueError, match="Unsupported type: <class 'str'>"):
            standard.restore(tmp_path / "v0", tree)
    v1.save(tmp_path / "text", tree)
    assert v1.metadata(tmp_path / "text").metadata["text"] == "string"
    v1.save(tmp_path / "bool", {"a": np.arange(3), "yes": True})
    assert v1.load(tmp_path / "bool")["yes"] is True
    assert v1.metadata(tmp_path / "bool").metadata is None
    with v1.training.Checkpointer(tmp_path / "root") as checkpointer:
        checkpointer.save(1, tree, metrics={"loss": 1.0})
    assert list(v1.load_checkpointables(tmp_path / "root" / "1")) == ["state"]


# ---- flipped bytes ----------------------------------------------------------------------------


def arrays() -> dict[str, Any]:
    numbers = np.random.default_rng(3)
    return {
        "raw": numbers.standard_normal((300, 1100)).astype(np.float32),  # two chunks
        "blosc": numbers.integers(0, 3, (400, 500)),  # of 64 bits, most of them zero
        "small": numbers.integers(-9, 9, 5),
    }


def used_ranges(item: pathlib.Path) -> list[tuple[pathlib.Path, int, int, str]]:
    """(file, offset, length, array) of every chunk in an export's one file of chunks, and the
    whole of what describes them."""
    kvstore = ts.KvStore.open(f"file://{item}/|ocdbt:").result()
    content = (item / "d" / "chunks").read_bytes()
    ranges = []
    for key in kvstore.list().result():
        name, _, last = key.decode().partition("/")
        if last == "zarr.json":
            continue
        value = kvstore.read(key).result().value
        assert content.count(value) == 1
        ranges.append((item / "d" / "chunks", content.index(value), len(value), name))
    for path in (item / "d" / "nodes", item / "manifest.ocdbt"):
        ranges.append((path, 0, path.stat().st_size, "raw"))
    return ranges


def flip(path: pathlib.Path, place: int, bit: int) -> None:
    with open(path, "r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 1 << bit]))


def read_by_tensorstore(item: pathlib.Path, name: str) -> Any:
    spec = {"driver": "zarr3", "kvstore": f"file://{item}/|ocdbt:{name}/"}
    return ts.open(spec, open=True).result().read().result()


# When a load of Orbax's fails, it closes its event loop; reads that are still under way tell it so
# from TensorStore's threads ("Event loop is closed").
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_flipped_byte_is_refused_wherever_it_is(tmp_path: pathlib.Path) -> None:
    tree = arrays()
    with stepwell.open(tmp_path / "store") as store:
        store.save(1, tree).result()
        store.export(1, tmp_path / "x", mode="copy")
    item = tmp_path / "x" / "state"
    chance = random.Random(5)
    ranges = used_ranges(item)
    assert {name for _, _, _, name in ranges} == set(tree)
    for path, offset, length, name in ranges:
        places = [0, length - 1, *(chance.randrange(length) for _ in range(5))]
        for number, place in enumerate(places):
            bit = chance.randrange(8)
            flip(path, offset + place, bit)
            with pytest.raises(Exception, match="Error (reading|opening)"):
                read_by_tensorstore(item, name)
            if number == len(places) - 1:
                with pytest.raises(Exception, match="Error (reading|opening)"):
                    v1.load(tmp_path / "x")
            flip(path, offset + place, bit)
    assert np.array_equal(v1.load(tmp_path / "x")["raw"], tree["raw"])


def test_a_flipped_byte_of_orbaxs_own_is_not_noticed(tmp_path: pathlib.Path) -> None:
    """Orbax has no checksums over data, so it does not notice a flip that `verify` finds."""
    tree = arrays()
    v1.save(tmp_path / "x", tree)
    files = (tmp_path / "x" / "state" / "ocdbt.process_0" / "d").iterdir()
    largest = max(files, key=lambda path: path.stat().st_size)
    flip(largest, largest.stat().st_size // 2, 0)
    loaded = v1.load(tmp_path / "x")
    assert any(not np.array_equal(loaded[name], tree[name]) for name in tree)
