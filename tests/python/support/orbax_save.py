# SPDX-License-Identifier: Apache-2.0
"""orbax_save.py FOLDER: what Orbax's APIs write, of trees with every kind of node, leaf and name.

A program, because the number of JAX's devices is set before JAX starts. Run by
test_orbax_files.py.
"""

import collections
import os
import sys

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ["JAX_PLATFORMS"] = "cpu"

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import optax  # noqa: E402
import orbax.checkpoint as ocp  # noqa: E402
from flax import nnx  # noqa: E402
from orbax.checkpoint._src.metadata.pytree_metadata_options import (  # noqa: E402
    PyTreeMetadataOptions,
)
from orbax.checkpoint import v1  # noqa: E402

Pair = collections.namedtuple("Pair", "w b")
Empty = collections.namedtuple("Empty", "")

# Keys of dicts, all of which Orbax saves.
NASTY = [
    "a.b", "x y", "é %", "q'", 'q"', "q'\"", "back\\slash", "nl\n\t\r", "\x00\x1f\x7f",
    "\x80\xa0\xad\u200b\u2028\ufeff\ue000", "\U0001f600\U0010ffff\u0378", "..", ".", ".hidden",
    "0", "c", "zarr.json", ".zarray", "~", "a/b", "日本語",
]  # fmt: skip


def shardings() -> dict:
    devices = np.array(jax.devices())
    square = jax.sharding.Mesh(devices.reshape(4, 2), ("x", "y"))
    reversed_line = jax.sharding.Mesh(devices[::-1], ("all",))
    spec = jax.sharding.PartitionSpec
    return {
        "both": jax.sharding.NamedSharding(square, spec("x", "y")),
        "one_axis_over_two": jax.sharding.NamedSharding(square, spec(None, ("y", "x"))),
        "replicated": jax.sharding.NamedSharding(square, spec()),
        "reversed": jax.sharding.NamedSharding(reversed_line, spec("all")),
        "second_device": jax.sharding.SingleDeviceSharding(devices[1]),
    }


def arrays() -> dict:
    x = jnp.arange(64.0).reshape(8, 8)
    return {
        "sharded": {name: jax.device_put(x, to) for name, to in shardings().items()},
        "numpy": np.arange(6, dtype=np.int16).reshape(2, 3),
        "big_endian": np.arange(3, dtype=">f8"),
        "rank0": jnp.float32(2),
        "bfloat16": jnp.ones((3, 5), jnp.bfloat16),
        "int4": jnp.zeros(4, jnp.int4),
        "complex": np.ones((2, 2), np.complex64),
        "bool": np.array([True, False]),
    }


def tree() -> dict:
    return {
        "arrays": arrays(),
        "names": {name: np.int32([number]) for number, name in enumerate(NASTY)},
        "list": [np.int32([1]), {"k": jnp.ones(2)}, [], [[np.int32([2])]]],
        "tuple": (jnp.ones(3), (), ({},)),
        "pair": Pair(jnp.ones(2), [1, 2.5]),
        "empty": [Empty(), {}, [], (), None],
        "scalars": {"int": 2**40, "float": -0.5, "bool": True},
        "texts": {"plain": "hi", "odd": 'é"\\\x01\n\U0001f600', "a": {"b/c": "1", "b/d/": "2"}},
        "adam": optax.adam(1e-3).init({"w": jnp.ones((2, 3))}),
    }


def model_state():
    return nnx.state(nnx.BatchNorm(4, rngs=nnx.Rngs(0)))


CUSTOM = {
    "é": [1, -2.5, float("nan"), float("inf"), float("-inf"), 1e16, 1e-5, 0.1, 1e300, 2**63, None],
    "nested": {"b": {"z": True, "a": False}, "": "x\u2028\x7f"},
}


def save_v1(folder: str) -> None:
    keys = {"typed": jax.random.key(0), "rbg": jax.random.split(jax.random.key(1, impl="rbg"), 3)}
    v1.save(f"{folder}/v1", tree() | {"keys": keys}, custom_metadata=CUSTOM)
    v1.save(f"{folder}/v1_bare", jnp.arange(3))
    v1.save(f"{folder}/v1_nnx", nnx.to_pure_dict(model_state()) | {"": jnp.ones(2)})
    root = f"{folder}/v1_training"
    with v1.training.Checkpointer(root, custom_metadata={"root": [1]}) as trainer:
        trainer.save(3, {"a": jnp.ones(2)}, metrics={"loss": float("nan")}, custom_metadata=CUSTOM)


def save_v0(folder: str) -> None:
    options = ocp.CheckpointManagerOptions(best_fn=lambda metrics: metrics["n"])
    with ocp.CheckpointManager(f"{folder}/v0", options=options, metadata={"m": 1}) as manager:
        manager.save(
            7, args=ocp.args.PyTreeSave(tree()), metrics={"loss": float("nan"), "n": 3},
            custom_metadata=CUSTOM)  # fmt: skip
    with ocp.CheckpointManager(f"{folder}/v0_items") as manager:
        manager.save(0, args=ocp.args.Composite(
            state=ocp.args.StandardSave(model_state()),
            custom=ocp.args.JsonSave(CUSTOM),
            arr=ocp.args.ArraySave(jnp.ones((4, 4)))))  # fmt: skip
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(f"{folder}/v0_flat", {"a": jnp.ones(2), "b": [3, 0.5]})
    with ocp.PyTreeCheckpointer(use_ocdbt=False) as checkpointer:
        checkpointer.save(f"{folder}/v0_files", {"a": jnp.ones((2, 2)), "b": [np.arange(3)]})
    rich = PyTreeMetadataOptions(support_rich_types=True)
    handler = ocp.PyTreeCheckpointHandler(pytree_metadata_options=rich)
    with ocp.Checkpointer(handler) as checkpointer:
        checkpointer.save(f"{folder}/v0_rich", {"p": Pair(jnp.ones(2), (1,)), "e": Empty()})


if __name__ == "__main__":
    save_v1(sys.argv[1])
    save_v0(sys.argv[1])
