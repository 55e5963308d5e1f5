# SPDX-License-Identifier: Apache-2.0
"""A trainer saves every step; an evaluator and a sampler follow it, each in a process of its own.

    python api/examples/follow_training.py run1 --steps 30

The evaluator loads each newest step. The sampler holds the parameters, and brings them to each
newest step: that reads only what changed. Steps that come while they work are left out. The guide
Followers has these loops for runs with retention, whose steps may go meanwhile.
"""

import argparse
import subprocess
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import stepwell

WORDS, CLASSES, BATCH = 20_000, 10, 64


class Model(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.embed = nnx.Embed(WORDS, 64, rngs=rngs)
        self.head = nnx.Linear(64, CLASSES, rngs=rngs)

    def __call__(self, words: jax.Array) -> jax.Array:
        return self.head(self.embed(words))


graph, init_params = nnx.split(Model(nnx.Rngs(0)), nnx.Param)


@jax.jit
def loss_of(params: Any, words: jax.Array) -> Any:
    logits = nnx.merge(graph, params)(words)
    return optax.softmax_cross_entropy_with_integer_labels(logits, words % CLASSES).mean()


def batch_of_step(step: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(step).zipf(1.2, BATCH) % WORDS)


UNSEEN = batch_of_step(1_000_000)


def train(path: str, steps: int) -> None:
    with stepwell.open(path, delta=True) as store:
        params, start = store.load_or(init_params)
        for step in range(start, steps):
            loss, gradients = jax.value_and_grad(loss_of)(params, batch_of_step(step))
            params = jax.tree.map(lambda leaf, slope: leaf - 3 * slope, params, gradients)
            store.save(step, params, metrics={"loss": float(loss)})
            time.sleep(0.05)  # the steps of most models take longer


def evaluate(path: str, steps: int) -> None:
    with stepwell.open(path, mode="r") as store:
        for step in store.follow():
            params = store.load(step, like=init_params)
            print(f"evaluator: step {step}, loss {loss_of(params, UNSEEN):.3f}", flush=True)
            if step >= steps - 1:
                return


def sample(path: str, steps: int) -> None:
    params, held = init_params, None
    with stepwell.open(path, mode="r") as store:
        for step in store.follow():
            params = (store.load(step, like=params) if held is None else
                      store.update(params, since=held, to=step))
            held = step
            read = store.stats()["last_load"]["bytes_read"]
            same = stepwell.digest(params) == store.digest(step)
            print(f"sampler: step {step}, read {read:,} bytes, digest is right: {same}", flush=True)
            if step >= steps - 1:
                return


if __name__ == "__main__":
    ROLES = {"train": train, "evaluate": evaluate, "sample": sample}
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument("store", help="the store's directory; made when there is none")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--role", choices=ROLES, help="of this process alone; default: all three")
    arguments = parser.parse_args()
    if arguments.role:
        ROLES[arguments.role](arguments.store, arguments.steps)
    else:
        stepwell.open(arguments.store).close()  # followers open what is there
        command = [sys.executable, *sys.argv, "--role"]
        children = [subprocess.Popen([*command, role]) for role in ROLES]
        sys.exit(max(abs(child.wait()) for child in children))
