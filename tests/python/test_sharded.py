# SPDX-License-Identifier: Apache-2.0
"""Loading onto meshes, on 8 CPU devices. The random cases are those of mesh_matrix.py, which also
runs longer by itself."""

from __future__ import annotations

import json
import pathlib

import forks

START = """
import sys, jax, jax.numpy as jnp, numpy as np, stepwell
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec as P
devices = jax.devices()
assert len(devices) == 8
mesh = Mesh(np.array(devices).reshape(2, 4), ("data", "model"))
path = sys.argv[1]

def fails(kind, function, *parts):
    try:
        function()
    except kind as error:
        for part in parts:
            assert part in str(error), (part, str(error))
        return error
    raise AssertionError(f"no {kind.__name__}")
"""
EIGHT = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8"}


def test_any_mesh_to_any_mesh(tmp_path: pathlib.Path) -> None:
    script = pathlib.Path(__file__).parent / "support" / "mesh_matrix.py"
    status, out, err = forks.run(script, tmp_path / "m", "--cases", "0:112", timeout=600)
    assert status == 0, err[-8000:]
    counts = json.loads(out)
    for what in ("like", "specs", "saved", "cast", "box", "empty", "0-d", "keys", "replicated",
                 "less than all"):
        assert counts[what] > 0, what


def test_specs_by_path_by_tree_and_for_all(run_jax, path):
    status, out, err = run_jax(START + """
kernel, bias = np.arange(64 * 24, dtype=np.float32).reshape(64, 24), np.ones(24, np.float32)
tree = {"params": {"dense": {"kernel": kernel, "bias": bias}, "out": [kernel, bias]},
        "step": 3, "name": "x", "count": np.int32(5)}
with stepwell.open(path) as store:
    store.save(0, tree).result()

    def specs_of(**how):
        loaded = store.load(0, **how)
        assert loaded["step"] == 3 and type(loaded["step"]) is int and loaded["name"] == "x"
        arrays = jax.tree.map(lambda x: x if isinstance(x, jax.Array) else None, loaded)
        np.testing.assert_array_equal(loaded["params"]["dense"]["kernel"], kernel)
        np.testing.assert_array_equal(loaded["params"]["out"][1], bias)
        assert all(x.sharding.mesh.devices.size == 8 for x in jax.tree.leaves(arrays))
        return [x.sharding.spec for x in (
            loaded["params"]["dense"]["kernel"], loaded["params"]["dense"]["bias"],
            loaded["params"]["out"][0], loaded["params"]["out"][1], loaded["count"])]

    assert specs_of(mesh=mesh) == [P()] * 5
    # The first that takes a leaf counts.
    assert specs_of(mesh=mesh, specs={
        "**/kernel": P(None, "model"), "params/out": P("data"), "params/**": P("model")}) == [
        P(None, "model"), P("model"), P("data"), P("data"), P()]
    assert specs_of(mesh=mesh, specs={"params/**": P(("data", "model")), "count": None}) == [
        P(("data", "model"))] * 4 + [P()]
    # A tree, down to where one spec holds.
    assert specs_of(mesh=mesh, specs={
        "params": {"dense": {"kernel": P("model", "data")}, "out": [P("data"), None]}}) == [
        P("model", "data"), P(), P("data"), P(), P()]
    assert specs_of(mesh={"a": 4, "b": 2}, specs={"params": P("a")})[0] == P("a")
    assert specs_of(mesh=AbstractMesh((8,), ("z",)), specs={"params": P("z")})[3] == P("z")

    # Loads a part of the step: paths are those of the step, a tree starts at the part.
    part = store.load(0, "params/dense", mesh=mesh, specs={"params/*/kernel": P("model")})
    assert part["kernel"].sharding.spec == P("model") and part["bias"].sharding.spec == P()
    part = store.load(0, "params/out", mesh=mesh, specs=[P("model"), P("data")])
    assert [x.sharding.spec for x in part] == [P("model"), P("data")]
    flat = store.load(0, "params/*/kernel", mesh=mesh, specs=P("data"))
    assert flat["params/dense/kernel"].sharding.spec == P("data")
    leaf = store.load(0, "params/dense/bias", mesh=mesh, specs=P("data"))
    assert leaf.sharding == NamedSharding(mesh, P("data"))

    # `like` gives structure and types, mesh and specs the places.
    like = {"params": {"dense": {"kernel": jax.ShapeDtypeStruct((64, 24), jnp.bfloat16),
                                 "bias": np.zeros(24, np.float32)},
                       "out": [jnp.zeros((64, 24)), bias]},
            "step": 0, "name": "", "count": jnp.int32(0)}
    loaded = store.load(0, like=like, mesh=mesh, specs={"**/kernel": P("model")}, cast=True)
    dense = loaded["params"]["dense"]
    assert dense["kernel"].sharding.spec == P("model") and dense["kernel"].dtype == jnp.bfloat16
    assert type(dense["bias"]) is np.ndarray
    assert loaded["params"]["out"][0].sharding == NamedSharding(mesh, P())
print("ok")
""", path, **EIGHT)
    assert (status, out) == (0, "ok\n"), err


def test_what_cannot_be_is_one_clear_error(run_jax, path):
    status, out, err = run_jax(START + """
Invalid, NotFound = stepwell.InvalidArgumentError, stepwell.PathNotFoundError
with stepwell.open(path) as store:
    store.save(0, {"w": np.zeros((6, 10), np.float32), "b": np.zeros(10, np.float32),
                   "n": np.arange(4), "s": 3}).result()

    def load(specs, mesh=mesh, **how):
        return lambda: store.load(0, mesh=mesh, specs=specs, cast=True, **how)

    fails(Invalid, load({"w": P("modle")}), "w (from 'w' of specs)", "'modle'", "data=2, model=4")
    fails(Invalid, load({"w": P("data", ("model", "data"))}), "w", "'data' twice")
    fails(Invalid, load({"w": P(P.UNCONSTRAINED)}), "w", "UNCONSTRAINED")
    fails(Invalid, load(P(), {"data": 4, "model": 4}), "data=4, model=4", "16 devices", "only 8")
    fails(Invalid, load(P(), AbstractMesh((9,), ("x",))), "x=9 has 9 devices", "only 8")
    fails(Invalid, load(P(), {"x": 0}), "mesh is")
    fails(Invalid, load(P(), "x"), "mesh is")
    fails(Invalid, load({"w": "model"}), "specs: at w there is 'model'",
          "values are PartitionSpecs, as jax.sharding.PartitionSpec('model')")
    for specs in ({"**": "model"}, {"w": P(), "*/w": "model"}, {"*": ("model", None)}, ["model"],
                  "model", {"w": NamedSharding(mesh, P())}, {"nothing": 3}):
        fails(Invalid, load(specs), "specs: at ", "values are PartitionSpecs")
    fails(Invalid, load({"w": {"x": P()}}), "specs: at w", "float32[6, 10]")
    fails(Invalid, lambda: store.load(0, specs=P()), "specs need a mesh")
    fails(NotFound, load({"params/**": P()}), 'specs: step 0 has nothing at "params/**"',
          "there are: b")
    fails(NotFound, load({"params": {"x": P()}}), "specs: step 0 has nothing at 'params'")
    split = "axis 0 of 6 cannot be split into 4 equal parts"
    error = fails(stepwell.MismatchError, load({"w": P("model"), "b": P("data", "model")}),
                  "2 leaves do not fit", "w: stored float32[6, 10]: " + split, "model=4",
                  "b: stored float32[10]: P('data', 'model') is of 2 axes, and the array has 1")
    assert [m.path for m in error.mismatches] == ["b", "w"]
    fails(stepwell.MismatchError, load(P(("data", "model")), path="w"),
          "axis 0 of 6 cannot be split into 8", "data=2 and model=4")
    fails(stepwell.MismatchError, lambda: store.load(0, mesh=mesh), "n: stored int64[4]", "cast")
    # The same of `like`, whose mesh JAX has looked at already.
    like = lambda *spec: jax.ShapeDtypeStruct((6, 10), jnp.float32,
                                              sharding=NamedSharding(mesh, P(*spec)))
    fails(stepwell.MismatchError, lambda: store.load(0, "w", like=like("model")), split)
    fails(stepwell.MismatchError, lambda: store.load(0, "w", like=like(None, "model")),
          "axis 1 of 10 cannot be split into 4")
    other = jax.ShapeDtypeStruct((6, 10), jnp.bfloat16, sharding=NamedSharding(mesh, P("data")))
    fails(stepwell.MismatchError, lambda: store.load(0, "w", like=other), "wanted bfloat16[6, 10]")
    assert store.load(0, "w", like=other, cast=True).dtype == jnp.bfloat16
    fails(stepwell.MismatchError, lambda: store.load(0, "w", like=jax.ShapeDtypeStruct(
        (6, 5), jnp.float32), cast=True), "wanted float32[6, 5]")
print("ok")
""", path, **EIGHT)
    assert (status, out) == (0, "ok\n"), err


def test_what_was_saved_over_a_mesh_comes_back_on_it(run_jax, run_python, path):
    save = START + """
explicit = jax.make_mesh((4, 2), ("x", "y"))
tree = {"w": jax.device_put(np.arange(32.0).reshape(8, 4), NamedSharding(mesh, P("data", "model"))),
        "r": jax.device_put(np.arange(8.0), NamedSharding(Mesh(np.array(devices[:2]), "i"), P())),
        "e": jax.device_put(np.arange(8.0), NamedSharding(explicit, P(("x", "y")))),
        "keys": jax.device_put(jax.random.split(jax.random.key(1), (4, 2)),
                               NamedSharding(mesh, P("model"))),
        "alone": jax.device_put(np.arange(8.0), devices[3]), "numpy": np.arange(3), "i": 1}
"""
    status, out, err = run_jax(save + """
with stepwell.open(path) as store:
    store.save(0, tree).result()
    loaded = store.load(0, as_="jax")
    for name in ("w", "r", "e", "keys"):
        assert loaded[name].sharding == tree[name].sharding and loaded[name].committed, name
        assert loaded[name].dtype == tree[name].dtype and (loaded[name] == tree[name]).all(), name
        assert store.load(0, name, as_="jax").sharding == tree[name].sharding
    assert loaded["alone"].devices() == {devices[3]} and (loaded["alone"] == tree["alone"]).all()
    assert type(loaded["numpy"]) is np.ndarray and (loaded["numpy"] == tree["numpy"]).all()
    assert loaded["i"] == 1
    assert store.load(0, "*", as_="jax")["w"].sharding == tree["w"].sharding
    # NumPy's arrays are the same on every machine; keys are keys.
    plain = store.load(0)
    assert all(type(plain[name]) is np.ndarray for name in ("w", "r", "e", "alone", "numpy"))
    assert (plain["w"] == np.asarray(tree["w"])).all() and (plain["keys"] == tree["keys"]).all()
    assert type(store[0]["w"][:]) is np.ndarray
print("ok")
""", path, **EIGHT)
    assert (status, out) == (0, "ok\n"), err
    # With fewer devices those get theirs that can; without JAX imported all are NumPy's.
    status, out, err = run_jax("""
import sys, jax, numpy as np, stepwell
with stepwell.open(sys.argv[1], "r") as store:
    loaded = store.load(0, as_="jax")
    assert len(jax.devices()) == 2 and len(loaded["r"].sharding.device_set) == 2
    assert all(loaded[n].devices() == {jax.devices()[0]} for n in ("w", "e", "keys", "alone"))
    assert type(loaded["numpy"]) is np.ndarray
print("ok")
""", path, XLA_FLAGS="--xla_force_host_platform_device_count=2")
    assert (status, out) == (0, "ok\n"), err
    status, out, err = run_python("""
import sys, numpy as np, stepwell
with stepwell.open(sys.argv[1], "r") as store:
    assert all(type(x) is np.ndarray for n, x in store.load(0).items() if n != "i")
    for how in ({"mesh": {"x": 8}}, {"as_": "jax"}):
        try:
            store.load(0, **how)
        except stepwell.InvalidArgumentError as error:
            assert "import jax" in str(error)
        else:
            raise AssertionError
assert "jax" not in sys.modules
print("ok")
""", path, **EIGHT)
    assert (status, out) == (0, "ok\n"), err


def test_memory_that_is_shared_and_memory_that_is_not(run_jax, path):
    status, out, err = run_jax(START + """
from stepwell._load import device_placement
from stepwell._load.source import Source
x = np.random.default_rng(0).standard_normal((1024, 512)).astype(np.float32)
with stepwell.open(path, codec="raw") as store:
    store.save(0, {"x": x, "y": x + 1, "z": x + 2, "s": 1}).result()
    # One buffer for all that hold the same, without a copy, and each box has its own.
    whole = store.load(0, "x", mesh=mesh)
    assert len({shard.data.unsafe_buffer_pointer() for shard in whole.addressable_shards}) == 1
    halves = store.load(0, "x", mesh=mesh, specs=P("data"))
    assert len({shard.data.unsafe_buffer_pointer() for shard in halves.addressable_shards}) == 2
    # Donating an array does not write into what another shares.
    double = jax.jit(lambda a: a * 2, donate_argnums=0)
    np.testing.assert_array_equal(double(whole), x * 2)
    np.testing.assert_array_equal(double(halves), x * 2)
    one = store.load(0, "x", mesh=mesh)
    other = jax.device_put(np.asarray(one.addressable_shards[5].data), devices[5])
    double(one)
    np.testing.assert_array_equal(other, x)

    # In batches, the next one read while one is put on its devices: each chunk once all the same.
    like = {n: jax.ShapeDtypeStruct(x.shape, jnp.bfloat16, sharding=NamedSharding(mesh, s))
            for n, s in (("x", P("model")), ("y", P(None, "data")), ("z", P()))} | {"s": 0}
    at_once = store.load(0, like=like, cast=True)
    stats = store.stats()["last_load"]
    reads = []
    read = Source.read_boxes
    Source.read_boxes = lambda source, boxes: (
        reads.append(len({box.leaf for box in boxes})) or read(source, boxes))
    device_placement.BATCH_BYTES = 3 << 20
    in_batches = store.load(0, like=like, cast=True)
    assert reads == [1, 1, 2], reads
    again = store.stats()["last_load"]
    assert {k: again[k] for k in ("chunks", "bytes_needed", "bytes_out")} == {
        k: stats[k] for k in ("chunks", "bytes_needed", "bytes_out")}
    for name, sharding in like.items():
        assert name == "s" or in_batches[name].sharding == sharding.sharding
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()) if hasattr(a, "all")
                                     else a == b, at_once, in_batches))
    expected = (x + 1).astype(jnp.bfloat16)
    np.testing.assert_array_equal(in_batches["y"], expected)
    # An error in a batch that was read ahead is raised.
    def broken(source, boxes):
        if reads.append(0) or len(reads) > 5:
            raise stepwell.CorruptionError("damaged")
        return read(source, boxes)
    Source.read_boxes = broken
    fails(stepwell.CorruptionError, lambda: store.load(0, like=like, cast=True), "damaged")
print("ok")
""", path, **EIGHT)
    assert (status, out) == (0, "ok\n"), err


def test_shardings_of_other_kinds_and_weak_types(run_jax, path):
    status, out, err = run_jax(START + """
from jax._src.sharding_impls import GSPMDSharding
x = np.arange(64.0, dtype=np.float32).reshape(16, 4)
weak = jnp.asarray(2.5)
assert weak.weak_type
with stepwell.open(path) as store:
    store.save(0, {"x": x, "weak": weak}).result()
    named = NamedSharding(mesh, P("model"))
    kinds = [GSPMDSharding(tuple(devices), named._to_xla_hlo_sharding(2)),
             named.with_memory_kind("pinned_host"), jax.sharding.SingleDeviceSharding(devices[6])]
    for sharding in kinds:
        got = store.load(0, "x", like=jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding))
        assert got.sharding == sharding and got.sharding.memory_kind == sharding.memory_kind
        np.testing.assert_array_equal(got, x)
    placed = jax.ShapeDtypeStruct((), jnp.float32, sharding=NamedSharding(mesh, P()),
                                  weak_type=True)
    got = store.load(0, "weak", like=placed)
    assert got.weak_type and got.sharding == placed.sharding and got == 2.5
    assert store.load(0, "weak", mesh=mesh).weak_type
    step = jax.jit(lambda a: a + 1)
    step(got)
    step(store.load(0, "weak", like=got))
    assert step._cache_size() == 1
print("ok")
""", path, **EIGHT)
    assert (status, out) == (0, "ok\n"), err


def test_memory_comes_from_the_numa_node_of_the_device(run_jax, path):
    # No machine with GPUs on several nodes is asked for: the devices are said to be on node 0.
    status, out, err = run_jax(START + """
import os, types
from stepwell import _stepwell
from stepwell._load import device_placement
node_of = device_placement.node_of

def maps():  # read in pieces, between which other threads may map and unmap: until it stays
    read = lambda: open("/proc/self/numa_maps").readlines()
    while (lines := read()) != read():
        pass
    return lines

def policies(array):
    found = set()
    for shard in array.addressable_shards:
        address = shard.data.unsafe_buffer_pointer()
        below = [line.split() for line in maps() if int(line.split()[0], 16) <= address]
        found.add(below[-1][1])
    return found

x = np.arange(1 << 18, dtype=np.float32).reshape(512, 512)
state = {"large": x, "small": x[:8, :8] + 1, "none": x[:0], "keys": jax.random.key(3), "s": 1}
sharded = NamedSharding(mesh, P("model", "data"))
one = jax.sharding.SingleDeviceSharding(devices[5])
with stepwell.open(path) as store:
    store.save(0, state).result()
    loads = [{"mesh": mesh, "specs": {"keys": P(), "*": P("model")}}, {"mesh": mesh},
             *[{"like": {**{n: jax.ShapeDtypeStruct(a.shape, dtype, sharding=to)
                            for n, a in state.items() if n not in ("keys", "s")}, "s": 0,
                         "keys": jax.ShapeDtypeStruct((), state["keys"].dtype, sharding=whole)},
                "cast": True}
               for dtype in (x.dtype, jnp.bfloat16) for to, whole in (
                   (sharded, NamedSharding(mesh, P())), (one, one), (None, None))]]
    for load in loads:
        device_placement.node_of = node_of
        away = store.load(0, **load)
        device_placement.node_of = lambda device: 0
        near = store.load(0, **load)
        for name in ("large", "small", "none"):
            assert near[name].sharding == away[name].sharding
            np.testing.assert_array_equal(near[name], away[name])
        assert jax.random.key_data(near["keys"]).tolist() == jax.random.key_data(
            state["keys"]).tolist()
        if os.path.exists("/proc/self/numa_maps"):  # else the kernel has no nodes
            probe = jax.device_put(_stepwell.memory_near(1 << 20, 0), devices[0])
            for name in ("large", "small"):
                assert policies(near[name]) == policies(probe), (load, name)
                assert policies(away[name]) == {"default"}, (load, name)

assert node_of(devices[0]) == device_placement.ANY
gpu = types.SimpleNamespace(platform="gpu", local_hardware_id=1 << 20)
assert node_of(gpu) == device_placement.ANY
for name in os.listdir("/sys/bus/pci/devices") if os.path.isdir("/sys/bus/pci/devices") else ():
    with open(f"/sys/bus/pci/devices/{name}/numa_node") as file:
        assert _stepwell.numa_node_of_pci_device(name.upper()) == int(file.read()), name
assert _stepwell.numa_node_of_pci_device("ffff:ff:1f.7") == -1
assert _stepwell.memory_near(0, 0).shape == (0,)
print("ok")
""", path, **EIGHT)
    assert (status, out) == (0, "ok\n"), err


def test_arrays_without_elements_that_jit_makes(run_jax, path):
    # XLA does not split them, whatever their sharding says.
    status, out, err = run_jax(START + """
split = NamedSharding(mesh, P("data", "model"))
key = NamedSharding(mesh, P("model"))
state = {"rows": jax.jit(lambda x: x * 2, out_shardings=split)(jnp.zeros((0, 8))),
         "columns": jax.jit(lambda: jnp.zeros((4, 0), jnp.bfloat16), out_shardings=split)(),
         "w": jax.device_put(np.ones((4, 8), np.float32), split),
         "keys": jax.jit(lambda: jax.random.split(jax.random.key(0), 4)[:0], out_shardings=key)()}
assert state["columns"].addressable_data(0).shape != split.shard_shape((4, 0))
with stepwell.open(path) as store:
    store.save(0, state).result()
    for loaded in (store.load(0, like=state), store.load(0, as_="jax")):
        for name, array in state.items():
            got = loaded[name]
            assert (got.shape, got.dtype, got.sharding) == (
                array.shape, array.dtype, array.sharding), name
    np.testing.assert_array_equal(loaded["w"], np.ones((4, 8)))
print("ok")
""", path, **EIGHT)
    assert (status, out) == (0, "ok\n"), err


def test_reduced_and_unreduced_arrays(run_jax, path):
    status, out, err = run_jax(START + """
from jax.sharding import AxisType
mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Explicit,))
with jax.set_mesh(mesh), stepwell.open(path) as store:
    w = np.arange(32, dtype=np.float32).reshape(8, 4)
    reduced = jax.reshard(w, P(None, None, reduced={"x"}))
    rows = jax.reshard(w, P("x"))
    unreduced = jax.jit(lambda a: jax.lax.dot_general(
        a, a, (((0,), (0,)), ((), ())), out_sharding=P(unreduced={"x"})))(rows)
    store.save(0, {"w": reduced}).result()
    loaded = store.load(0, like={"w": reduced})["w"]
    assert loaded.sharding == reduced.sharding
    for got in (loaded, store.load(0, as_="jax")["w"]):
        for shard in got.addressable_shards:
            np.testing.assert_array_equal(shard.data, w)
    fails(stepwell.UnsupportedLeafError, lambda: store.save(1, {"a": {"sum": unreduced}}),
          "a/sum: is unreduced over 'x'", "jax.reshard")
    store.save(1, {"sum": w.T @ w}).result()
    fails(stepwell.MismatchError, lambda: store.load(1, like={"sum": unreduced}),
          "sum: stored float32[4, 4]", "unreduced over 'x'")
    fails(stepwell.MismatchError,
          lambda: store.load(1, mesh=mesh, specs=P(unreduced={"x"})), "unreduced over 'x'")
print("ok")
""", path, **EIGHT)
    assert (status, out) == (0, "ok\n"), err


def test_an_array_on_one_device_comes_back_on_it(run_jax, run_python, path):
    """On the default one it stays uncommitted: it goes with arrays on any mesh."""
    status, out, err = run_jax(START + """
from orbax.checkpoint import v1 as orbax
from stepwell.compat import orbax_v1 as facade
tree = {"a": jax.device_put(jnp.ones(2), devices[2]), "default": jnp.ones(3),
        "key": jax.device_put(jax.random.split(jax.random.key(1), 3), devices[1])}
facade.save(path + "1", tree)
with stepwell.open(path) as store:
    store.save(1, tree).result()
    for loaded in (store.load(1, as_="jax"), facade.load(path + "1"), orbax.load(path + "1")):
        assert all(loaded[name].devices() == tree[name].devices() for name in tree), loaded
    loaded = store.load(1, as_="jax")
    assert not loaded["default"].committed and loaded["a"].committed
    added = jax.jit(lambda x, y: x + y.sum())(loaded["a"], loaded["default"])
    assert added.devices() == {devices[2]}
print("ok")
""", path, **EIGHT)
    assert (status, out) == (0, "ok\n"), err


def test_sharded_keys_are_loaded_where_jax_traces(run_jax, path):
    status, out, err = run_jax(START + """
keys = jax.random.split(jax.random.key(1), 8)
tree = {"split": jax.device_put(keys, NamedSharding(Mesh(np.array(devices), ("x",)), P("x"))),
        "everywhere": jax.device_put(keys[0], NamedSharding(Mesh(np.array(devices), ("x",)), P())),
        "w": jax.device_put(jnp.arange(8.), NamedSharding(Mesh(np.array(devices), ("x",)), P("x")))}
with stepwell.open(path) as store:
    store.save(0, tree).result()
    load = lambda: store.load(0, like=tree)
    shapes = jax.eval_shape(load)
    loaded = jax.jit(load)()
for name, array in tree.items():
    assert (shapes[name].shape, shapes[name].dtype) == (array.shape, array.dtype)
    assert (loaded[name] == array).all(), name
print("ok")
""", path, **EIGHT)
    assert (status, out) == (0, "ok\n"), err
