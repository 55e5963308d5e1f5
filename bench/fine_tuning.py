# SPDX-License-Identifier: Apache-2.0
"""A fine-tuning that keeps each of its steps: what the store takes on the disk as it grows.

    bench/fine-tuning [--dir DISK] [--steps 1000] [--json OUT.json] [--svg CHART.svg]
    bench/fine-tuning --from OUT.json --svg CHART.svg

The model is one block of the size of Llama 7B's (202 million frozen parameters in bfloat16) with
LoRA adapters of rank 4 for queries and values in float32, which optax.adamw trains. A step is the
block, the adapters and the optimizer's state. Orbax saves a few of the steps beside it.
"""

import argparse
import json
import pathlib
import random
import tempfile
from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import machine
import numpy as np
import optax
import states
import stepwell
from chart import growth
from contenders import load_class

WIDTH, RANK, TOKENS = 4096, 4, 16
POINTS = 40  # of the curve
PEER_STEPS = 4
LOADED = 5  # steps that are compared bit for bit, beside the first and the last

Tree = dict[str, Any]


def _frozen(key: jax.Array, width: int) -> Tree:
    hidden = width * 43 // 16
    shapes = {**dict.fromkeys(("query", "key", "value", "out"), (width, width)),
              **dict.fromkeys(("gate", "up"), (width, hidden)), "down": (hidden, width)}
    keys = jax.random.split(key, len(shapes))
    return {name: 0.02 * jax.random.normal(keys[i], shape)
            for i, (name, shape) in enumerate(shapes.items())}


def _adapters(key: jax.Array, width: int) -> Tree:
    return {name: {"a": 0.02 * jax.random.normal(each, (width, RANK)),
                   "b": jnp.zeros((RANK, width))}
            for name, each in zip(("query", "value"), jax.random.split(key), strict=True)}


def _loss(adapters: Tree, block: Tree, x: jax.Array, y: jax.Array) -> jax.Array:
    def adapted(name: str) -> jax.Array:
        return x @ block[name] + x @ adapters[name]["a"] @ adapters[name]["b"]

    weights = jax.nn.softmax(adapted("query") @ (x @ block["key"]).T / x.shape[1] ** 0.5)
    h = x + weights @ adapted("value") @ block["out"]
    h = h + (jax.nn.silu(h @ block["gate"]) * (h @ block["up"])) @ block["down"]
    return jnp.mean((h - y) ** 2)


OPTIMIZER = optax.adamw(1e-4, mu_dtype=jnp.bfloat16)


@partial(jax.jit, donate_argnums=(0, 1))
def _train_step(adapters: Tree, opt_state: Any, block: Tree, x: jax.Array, y: jax.Array
                ) -> tuple[Tree, Any]:
    grads = jax.grad(_loss)(adapters, block, x, y)
    updates, opt_state = OPTIMIZER.update(grads, opt_state, adapters)
    return optax.apply_updates(adapters, updates), opt_state


def train(steps: int, width: int) -> Iterator[Tree]:
    block_key, adapter_key, data = jax.random.split(jax.random.key(0), 3)
    block = _frozen(block_key, width)
    base = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), block)
    adapters = _adapters(adapter_key, width)
    opt_state = OPTIMIZER.init(adapters)
    for count in range(steps):
        x, y = jax.random.normal(jax.random.fold_in(data, count), (2, TOKENS, width))
        adapters, opt_state = _train_step(adapters, opt_state, block, x, y)
        yield {"base": base, "adapters": adapters, "opt_state": opt_state}


def _disk_bytes(folder: pathlib.Path) -> int:
    """As `du` counts: blocks, each file once."""
    found = {(status.st_dev, status.st_ino): status.st_blocks * 512
             for status in (path.lstat() for path in folder.rglob("*"))}
    return sum(found.values())


def measure(folder: pathlib.Path, steps: int, width: int) -> dict[str, Any]:
    path = folder / "stepwell"
    marks = sorted({1, *range(0, steps + 1, max(steps // POINTS, 1)), steps} - {0})
    look_at = {1, steps, *random.Random(0).sample(range(1, steps + 1), min(LOADED, steps))}
    kept: dict[int, Any] = {}
    points = []
    state: Tree = {}
    with stepwell.open(path) as store:
        for step, state in enumerate(train(steps, width), 1):
            jax.block_until_ready(state)
            store.save(step, state)
            if step in look_at:
                kept[step] = jax.tree.map(np.array, state)
            if step in marks:
                store.wait()
                machine.sync(path)
                points.append((step, _disk_bytes(path)))
    points.append((steps, _disk_bytes(path)))  # closed: without what is laid out for the next steps
    whole = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    for step, wanted in kept.items():
        with stepwell.open(path, mode="r") as store:
            loaded = store.load(step, like=wanted)
            jax.tree.map(states.expect_equal, loaded, wanted)
    peer = load_class("orbax-v1")(folder / "orbax", keep=PEER_STEPS)
    (folder / "orbax").mkdir()
    peer_points = []
    for step, state in enumerate(train(min(PEER_STEPS, steps), width), 1):
        opt_state = jax.tree.leaves(state["opt_state"])  # Orbax restores no namedtuples by itself
        peer.save(jax.tree.map(np.array, state | {"opt_state": opt_state}))
        peer_points.append((step, _disk_bytes(folder / "orbax")))
    peer.close()
    return {"machine": machine.describe(folder), "steps": steps,
            "state_bytes": whole, "stepwell": points, "orbax": peer_points}


def report(found: dict[str, Any]) -> str:
    steps, used = found["stepwell"][-1]
    peer_steps, peer_used = found["orbax"][-1]
    whole = found["state_bytes"]
    return (f"{steps:,} steps of {whole / 1e6:,.0f} MB: {used / 1e6:,.0f} MB on the disk, "
            f"{used / whole:.2f} states; the first took {found['stepwell'][0][1] / whole:.2f}\n"
            f"Orbax v1, {peer_steps} steps: {peer_used / 1e6:,.0f} MB, "
            f"{peer_used / whole:.2f} states")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", type=pathlib.Path, default=pathlib.Path.cwd())
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--width", type=int, default=WIDTH, help="of the model (%(default)s)")
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--svg", type=pathlib.Path)
    parser.add_argument("--from", dest="source", type=pathlib.Path)
    options = parser.parse_args()
    if options.source:
        found = json.loads(options.source.read_text())
    else:
        with tempfile.TemporaryDirectory(prefix="fine-tuning-", dir=options.dir) as folder:
            found = measure(pathlib.Path(folder), options.steps, options.width)
    print(report(found))
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    if options.svg:
        options.svg.write_text(growth(found), encoding="utf-8")


if __name__ == "__main__":
    main()
