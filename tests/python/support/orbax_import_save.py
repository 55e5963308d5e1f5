# SPDX-License-Identifier: Apache-2.0
"""orbax_import_save.py FOLDER: checkpoints of Orbax, and what Orbax itself restores of them.

What is restored without a target lies in FOLDER/expected.pickle by name, arrays as NumPy's. A
program, because the number of JAX's devices is set before JAX starts (by orbax_save). Run by
test_import.py.
"""

import pathlib
import pickle
import sys

import orbax_save  # first: it sets the number of devices  # isort: skip
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint import v1

DTYPES = [
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16",
    "float32", "float64", "complex64", "complex128", "bfloat16", "int4", "int2", "float8_e4m3fn",
    "float8_e5m2", "float8_e4m3b11fnuz", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e3m4",
    "float8_e8m0fnu", "float4_e2m1fn",
]  # fmt: skip


def array_of(name: str, shape: tuple[int, ...]) -> np.ndarray:
    dtype = np.dtype(getattr(ml_dtypes, name, name))
    values = np.arange(np.prod(shape)).reshape(shape) % 7 - 2
    return np.abs(values).astype(dtype) if name[0] in "ub" else values.astype(dtype)


def dtypes() -> dict:
    tree = {name: array_of(name, (5, 3)) for name in DTYPES}
    narrow = [name for name in DTYPES if name not in ("int64", "uint64", "float64", "complex128")]
    return {"numpy": tree, "jax": {name: jnp.asarray(tree[name]) for name in narrow}}


def large() -> dict:
    """Chunks that are read in pieces, in one piece, and many in one read."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(4, 2), ("x", "y"))
    spec = jax.sharding.PartitionSpec
    x = jnp.asarray(np.random.default_rng(1).standard_normal((1024, 768), np.float32))
    names = {"rows": spec(("x", "y")), "columns": spec(None, "x"), "both": spec("x", "y")}
    tree = {
        name: jax.device_put(x, jax.sharding.NamedSharding(mesh, to)) for name, to in names.items()
    }
    return tree | {
        "whole": x,
        "zeros": jnp.zeros((512, 512)),
        "odd": jax.device_put(x[:1021, :7], jax.devices()[3]),
        "small": [np.float32(i) * np.ones(i + 1, np.float32) for i in range(50)],
    }


def plain(leaf: object) -> object:
    if not isinstance(leaf, jax.Array):
        return leaf
    if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return ("key", str(jax.random.key_impl(leaf)), np.asarray(jax.random.key_data(leaf)))
    return np.asarray(leaf)


def v0_save(path: pathlib.Path, tree: object, chunk_bytes: int | None = None, **options) -> None:
    handler = ocp.PyTreeCheckpointHandler(**options)
    args = None
    if chunk_bytes:
        args = jax.tree.map(lambda _: ocp.SaveArgs(chunk_byte_size=chunk_bytes), tree)
    with ocp.Checkpointer(handler) as checkpointer:
        checkpointer.save(path, args=ocp.args.PyTreeSave(tree, save_args=args))


def v0_restore(path: pathlib.Path) -> object:
    with ocp.PyTreeCheckpointer() as checkpointer:
        return checkpointer.restore(path)


def save(folder: pathlib.Path) -> dict[str, object]:
    orbax_save.save_v1(str(folder))
    orbax_save.save_v0(str(folder))
    expected = {name: v1.load(folder / name) for name in ("v1", "v1_bare", "v1_nnx")}
    expected["v1_training/3"] = v1.load(folder / "v1_training" / "3")
    expected["v0/7"] = v0_restore(folder / "v0" / "7" / "default")
    expected["v0_items/0/state"] = v0_restore(folder / "v0_items" / "0" / "state")
    for name in ("v0_flat", "v0_files", "v0_rich"):
        expected[name] = v0_restore(folder / name)

    v1.save(folder / "dtypes_v1", dtypes())
    v1.save(folder / "large_v1", large())
    expected |= {name: v1.load(folder / name) for name in ("dtypes_v1", "large_v1")}
    for zarr3 in (False, True):
        for ocdbt in (False, True):
            kind = f"{'zarr3' if zarr3 else 'zarr2'}_{'ocdbt' if ocdbt else 'files'}"
            v0_save(folder / f"dtypes_{kind}", dtypes(), use_zarr3=zarr3, use_ocdbt=ocdbt)
            v0_save(folder / f"chunks_{kind}", large(), 65536, use_zarr3=zarr3, use_ocdbt=ocdbt)
            v0_save(folder / f"raw_{kind}", large(), use_zarr3=zarr3, use_ocdbt=ocdbt,
                    use_compression=False)  # fmt: skip
            for what in ("dtypes", "chunks", "raw"):
                expected[f"{what}_{kind}"] = v0_restore(folder / f"{what}_{kind}")

    options = ocp.CheckpointManagerOptions(
        step_prefix="ckpt", step_format_fixed_length=8, best_fn=lambda metrics: metrics["loss"])
    with ocp.CheckpointManager(folder / "manager", options=options) as manager:
        for step in (1, 20, 300):
            tree = {"step": step, "w": jnp.full((4, 4), step, jnp.float32)}
            manager.save(step, args=ocp.args.StandardSave(tree), metrics={"loss": 1 / step})
            manager.wait_until_finished()
            name = f"manager/ckpt_{step:08}"
            expected[name] = v0_restore(folder / name / "default")
    expected["custom"] = orbax_save.CUSTOM
    return expected


if __name__ == "__main__":
    target = pathlib.Path(sys.argv[1])
    restored = {name: jax.tree.map(plain, tree) for name, tree in save(target).items()}
    (target / "expected.pickle").write_bytes(pickle.dumps(restored))
