# SPDX-License-Identifier: Apache-2.0
"""Sharded arrays are saved shard by shard (sharded_saves.py), and chunk shapes as asked for."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
import sharded_parts as parts

import forks
import stepwell
from stepwell import ChunkShape

PROGRAM = Path(__file__).parent / "support" / "sharded_saves.py"


@pytest.mark.parametrize("check", ["random", "once", "donated", "memory", "kinds", "owned"])
def test_sharded_saves(start_jax, path, check):
    process = start_jax(PROGRAM, check, path,
                        XLA_FLAGS="--xla_force_host_platform_device_count=8")
    out, err = process.communicate(timeout=300)
    assert (process.returncode, out) == (0, "ok\n"), err


@pytest.mark.parametrize("processes", [2, 4])
def test_each_process_takes_its_share(tmp_path, processes):
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    children = [forks.start(Path(parts.__file__), number, processes, port, tmp_path)
                for number in range(processes)]
    outputs = [child.communicate(timeout=300) for child in children]
    assert [child.returncode for child in children] == [0] * processes, outputs
    taken = [dict(np.load(tmp_path / f"{number}.npz")) for number in range(processes)]
    for name in ("", "count", "plain", "local"):  # the leader's alone
        assert [f"{name}|row" in part for part in taken] == [True] + [False] * (processes - 1)
    written = [0] * processes
    for number, (shape, _) in enumerate(parts.SPECS):
        whole, seen = np.full(shape, -1, np.float32), np.zeros(shape, int)
        assert f"{number}|shape" in taken[0]  # the leader says that there is such an array
        for process, part in enumerate(taken):
            boxes = {key.split("|at ")[1]: values for key, values in part.items()
                     if key.startswith(f"{number}|at ")}
            if f"{number}|shape" not in part:
                assert not boxes
                continue
            assert tuple(part[f"{number}|shape"]) == shape
            assert bool(part[f"{number}|partial"]) == (whole.size > 0)
            assert boxes or process == 0
            for origin, values in boxes.items():
                starts = [int(start) for start in origin.split()]
                box = tuple(slice(start, start + extent)
                            for start, extent in zip(starts, values.shape, strict=True))
                whole[box] = values
                seen[box] += 1
                written[process] += values.size
        assert (seen == 1).all()
        np.testing.assert_array_equal(whole, parts.values(str(number), shape))
    assert max(written) - min(written) <= max(written) // 4, written


def test_chunk_shapes(store):
    tree = {"params": {"w": np.zeros((512, 1024), np.float32), "b": jnp.zeros(1024)},
            "opt": [np.zeros((512, 1024), np.float32), 3]}
    store.save(0, tree).result()
    assert store[0]["params/w"].chunk_shape == (256, 1024)
    store.save(1, tree, chunks=ChunkShape()).result()
    assert store[1]["params/w"].chunk_shape == (512, 1024)
    store.save(2, tree, chunks=ChunkShape(max_bytes=1 << 16, axes=(1,))).result()
    assert store[2]["params/w"].chunk_shape == (512, 32)
    assert store[2]["params/b"].chunk_shape == (1024,)  # small enough
    chunks = {"params/w": ChunkShape(1 << 17, (1, 0)), "opt/*": ChunkShape(1 << 18)}
    store.save(3, tree, chunks=chunks).result()
    assert store[3]["params/w"].chunk_shape == (512, 64)
    assert store[3]["opt/0"].chunk_shape == (64, 1024)
    # The first that matches counts; a node is all that is below it; an item's name may stand first.
    store.save(4, tree, chunks={"params": ChunkShape(4096), "**": ChunkShape(8192)}).result()
    assert store[4]["params/w"].chunk_shape == (1, 1024)
    assert store[4]["opt/0"].chunk_shape == (2, 1024)
    store.save(5, tree, chunks={"state/opt/0": ChunkShape(8192)}).result()
    assert store[5]["opt/0"].chunk_shape == (2, 1024)
    store.save(6, items={"a": tree, "b": tree}, chunks={"b/**/w": ChunkShape(4096)}).result()
    assert store[6]["b/params/w"].chunk_shape == (1, 1024)
    assert store[6]["a/params/w"].chunk_shape == (256, 1024)
    for step in range(6):
        assert (store.load(step, "params/w") == 0).all()


def test_chunk_shapes_that_cannot_be(store):
    tree = {"w": np.zeros((512, 1024), np.float32), "n": 3}
    for chunks, why in [
        (5, "chunks is a ChunkShape or a dict"),
        ({"w": 5}, "chunks\\['w'\\] is a ChunkShape, not 5"),
        ({"v": ChunkShape()}, "chunks: no array matches 'v'"),
        ({"n": ChunkShape(), "w": ChunkShape()}, "chunks: no array matches 'n'"),
        ({"w": ChunkShape(4096, (2,))}, "leaf 'w': .* axis 2 of an array of 2 axes"),
        ({"w": ChunkShape(4096, (0, 2))}, "leaf 'w': .* axis 2 of an array of 2 axes"),
    ]:
        with pytest.raises(stepwell.InvalidArgumentError, match=why):
            store.save(0, tree, chunks=chunks)
    big = {"w": np.zeros((2, 1 << 20), np.float32)}
    with pytest.raises(stepwell.InvalidArgumentError,
                       match="leaf 'w': cut along the given axes its chunks have at least 4194304 "
                             "bytes; at most 65536 were asked for"):
        store.save(0, big, chunks=ChunkShape(1 << 16, axes=(0,)))
    for arguments, why in [
        ({"max_bytes": 4095}, "max_bytes is 4096 to 4194304, not 4095"),
        ({"max_bytes": (4 << 20) + 1}, "max_bytes is 4096 to 4194304"),
        ({"max_bytes": "1MB"}, "max_bytes is an int"),
        ({"axes": ()}, "axes are different ints"),
        ({"axes": (1, 1)}, "axes are different ints"),
        ({"axes": (-1,)}, "axes are different ints"),
        ({"axes": 1}, "axes are different ints"),
    ]:
        with pytest.raises(stepwell.InvalidArgumentError, match=why):
            ChunkShape(**arguments)
    assert store.steps() == []


def test_show_says_how_an_array_was_sharded(store, path):
    program = Path(os.environ["STEPWELL_BUILD_DIR"]) / "api/cli/stepwell"
    store.save(0, {"w": jnp.zeros((4, 4))}).result()
    done = subprocess.run([program, "show", "--json", path, "0"], capture_output=True, text=True,
                          check=True)
    (leaf,) = [entry for entry in json.loads(done.stdout)["entries"] if entry["path"] == "w"]
    assert leaf["shard_shape"] == [4, 4]
    assert leaf["sharding"]["sharding_type"] == "SingleDeviceSharding"
