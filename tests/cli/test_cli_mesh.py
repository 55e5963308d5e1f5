# SPDX-License-Identifier: Apache-2.0
"""`stepwell explain` and `stepwell show --sharding`: which device gets what is JAX's decision."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest
import forks
import stepwell
from program import document, error, ok

HERE = pathlib.Path(__file__).parent

AGAINST_JAX = """
import itertools, json, math, random, sys
sys.path += sys.argv[2:]
import jax, numpy as np, stepwell
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from mesh_matrix import boxes_of, needed_chunks, some_spec
from program import document, ok

def text(spec):
    entries = [(e,) if isinstance(e, str) else e for e in spec]
    return "(" + ",".join("None" if not e else "(" + ",".join(e) + ")" for e in entries) + ")"

chance = random.Random(11)
count = partly = 0
for case in range(25):
    folder = f"{sys.argv[1]}/{case}"
    sizes = chance.choice([(8,), (2, 4), (4, 2), (2, 2, 2), (1, 8), (3, 2), (5,), (2, 1, 3), (7,)])
    devices = np.array(jax.devices()[:math.prod(sizes)]).reshape(sizes)
    mesh = Mesh(devices, tuple("abc"[:len(sizes)]))
    source = Mesh(np.array(jax.devices()).reshape(2, 4), ("x", "y"))
    arrays, targets = {}, {}
    for number in range(8):
        shape = tuple(chance.choice([1, 2, 6, 8, 12, 24, 30, 40, 120, 0])
                      for _ in range(chance.randrange(4)))
        values = np.zeros(shape, np.int16)
        split = NamedSharding(source, some_spec(chance, source, shape))
        arrays[f"p{number}"] = jax.device_put(values, split)
        targets[f"p{number}"] = some_spec(chance, mesh, shape)
    with stepwell.open(folder, codec="raw") as store:
        store.save(0, arrays).result()
        rules = list(itertools.chain(*(("--spec", f"{n}={text(s)}") for n, s in targets.items())))
        axes = ",".join(f"{n}={s}" for n, s in mesh.shape.items())
        plan = document("explain", folder, 0, "--mesh", axes, *rules, "--slices")
        assert [d["at"] for d in plan["devices"]] == [list(i) for i in np.ndindex(*sizes)]
        cost = [dict(chunks=0, bytes_needed=0, bytes_out=0) for _ in plan["devices"]]
        chunks = 0
        for array in plan["arrays"]:
            view, spec = store[0][array["path"]], targets[array["path"]]
            assert tuple(array["shape"]) == view.shape and array["dtype"] == "int16"
            wanted = [[list(axis) for axis in box]
                      for box in boxes_of(NamedSharding(mesh, spec), view.shape, ())]
            assert array["devices"] == wanted, (mesh, spec, array)
            chunk_bytes = math.prod(view.chunk_shape) * 2 + 4
            for device, box in zip(cost, wanted, strict=True):
                needed = len(needed_chunks(view, [box]))
                device["chunks"] += needed
                device["bytes_needed"] += needed * chunk_bytes
                device["bytes_out"] += math.prod(stop - start for start, stop in box) * 2
            every = len(needed_chunks(view, wanted))
            partly += len(needed_chunks(view, wanted[:1])) < every
            chunks += every
            count += 1
        for device, wanted in zip(plan["devices"], cost, strict=True):
            assert {k: device[k] for k in wanted} == wanted, (device, wanted)
        loaded = store.load(0, mesh=mesh, specs=targets)
        stats = store.stats()["last_load"]
        assert stats["chunks"] == plan["total"]["chunks"] == chunks
        assert stats["bytes_needed"] == plan["total"]["bytes_needed"]
        assert stats["bytes_out"] == plan["total"]["bytes_out"]
        assert stats["reads"] == plan["total"]["reads"]
        assert stats["bytes_read"] >= plan["total"]["bytes_read"]
assert count == 200 and partly > 20, (count, partly)
with stepwell.open(sys.argv[1] + "/drawn") as store:
    store.save(0, {"w": jax.device_put(np.zeros((8, 6), np.float32), NamedSharding(
        Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("x", "y")), P("y", "x")))}).result()
    drawn = store[0]["w"].sharding_text()
    assert drawn.splitlines()[0] == "over x=2, y=2 as (y, x): 4 slices of [4, 3]", drawn
    assert "  0:4    │ 0   │ 2   │" in drawn and "  4:8    │ 1   │ 3   │" in drawn, drawn
    assert ok("show", store.path, 0, "w", "--sharding") == "w  float32[8, 6]\\n  " + drawn
print("ok")
"""


def test_slices_and_chunks_are_what_jax_and_a_count_by_hand_say(tmp_path: pathlib.Path) -> None:
    status, out, err = forks.run(
        AGAINST_JAX, tmp_path, HERE, HERE.parent / "python" / "support",
        environment={"XLA_FLAGS": "--xla_force_host_platform_device_count=8"})
    assert (status, out) == (0, "ok\n"), err[-6000:]


@pytest.fixture
def store(tmp_path: pathlib.Path) -> pathlib.Path:
    with stepwell.open(tmp_path / "run") as writer:
        writer.save(7, {"params": {"w": np.zeros((6, 10), np.float32)}, "b": np.zeros(8), "s": 3})
    return tmp_path / "run"


def test_explain_prints_tables(store: pathlib.Path) -> None:
    text = ok("explain", store, "latest", "--mesh", "data=2,model=4", "--spec", "params/**=(data)",
              "--spec", "b=((data,model))")
    lines = text.splitlines()
    assert lines[0] == "step 7 onto the mesh data=2, model=4, 8 devices"
    assert lines[2].split() == ["ARRAY", "TYPE", "SPEC", "SLICES", "CHUNKS"]
    assert lines[4].split() == ["params/w", "float32[6,", "10]", "(data)", "2", "1"]
    assert lines[6].split()[:3] == ["DEVICE", "AT", "CHUNKS"]
    assert lines[-1].startswith("all") and len(lines) == 16
    many = ok("explain", store, 7, "--mesh", "x=1000")
    assert "and 968 more" in many and len(many.splitlines()) < 50
    assert ok("show", store, 7, "b", "--sharding") == "b  float64[8]\n  not sharded\n"
    assert "devices" not in document("explain", store, 7, "--mesh", "x=2")["arrays"][0]


def test_explain_says_what_cannot_be(store: pathlib.Path) -> None:
    def fails(*arguments: str, status: int = 2) -> str:
        return error("explain", store, 7, *arguments, status=status)

    assert "--mesh" in fails()
    assert 'like "data=2,model=4"' in fails("--mesh", "data")
    assert "over 65536 devices" in fails("--mesh", "x=1000,y=1000")
    mesh = ("--mesh", "data=2,model=4")
    assert "'params/**=(model,data)'" in fails(*mesh, "--spec", "params")
    assert 'for each array axis the mesh axes, not "(a"' in fails(*mesh, "--spec", "params=(a")
    assert 'spec (modle) names mesh axis "modle"; the mesh has data=2, model=4' in fails(
        *mesh, "--spec", "params=(modle)")
    assert "params/w: axis 0 of 6 cannot be split into 4" in fails(*mesh, "--spec",
                                                                  "params/w=model")
    assert "b: spec (data, None) is of 2 axes, and the array has 1" in fails(
        *mesh, "--spec", "b=(data,None)")
    assert 'nothing at "x/**"' in fails(*mesh, "--spec", "x/**=()", status=3)
    assert "[ is reserved" in fails(*mesh, "--spec", "[x]=()")
