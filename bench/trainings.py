# SPDX-License-Identifier: Apache-2.0
"""Real training steps of a small network, for themes that look at what changes between steps."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

WIDTH = 1024
BATCH = 32
WARM_STEPS = 4  # at WARM_RATE: Adam's moments are not those of the first steps
WARM_RATE = 1e-3


def _loss(params: dict[str, jax.Array], x: jax.Array, y: jax.Array) -> jax.Array:
    for name in sorted(params):
        x = x + jnp.tanh(x @ params[name].astype(jnp.float32))
    return jnp.mean((x - y) ** 2)


def _adam(params: Any, moments: Any, grads: Any, count: int, rate: float) -> tuple[Any, Any]:
    mu = jax.tree.map(lambda m, g: (0.9 * m + 0.1 * g).astype(m.dtype), moments["mu"], grads)
    nu = jax.tree.map(lambda v, g: (0.999 * v + 0.001 * g * g).astype(v.dtype), moments["nu"],
                      grads)

    def update(p: jax.Array, m: jax.Array, v: jax.Array) -> jax.Array:
        m_hat = m.astype(jnp.float32) / (1 - 0.9 ** count)
        v_hat = v.astype(jnp.float32) / (1 - 0.999 ** count)
        return (p - rate * m_hat / (jnp.sqrt(v_hat) + 1e-8)).astype(p.dtype)

    return jax.tree.map(update, params, mu, nu), {"mu": mu, "nu": nu}


_gradient = jax.jit(jax.grad(_loss))
_update = jax.jit(_adam)


def train(kind: str, size_bytes: int, seed: int, steps: int) -> Iterator[dict[str, Any]]:
    """The states that a training of `kind` saves after each of `steps` steps, about `size_bytes`
    each, as NumPy arrays: weights of an RL run, cast to bfloat16; weights and moments of Adam, all
    in bfloat16 or all in float32; or a frozen base with a small part that is trained."""
    item_bytes = {"adam-bf16": 6, "adam-fp32": 12, "lora": 4}.get(kind, 2)
    layers = max(2, size_bytes // (WIDTH * WIDTH * item_bytes))
    keys = jax.random.split(jax.random.key(seed), layers + 2)
    dtype = jnp.bfloat16 if kind == "adam-bf16" else jnp.float32
    params = {f"layer_{i:04}": (0.02 * jax.random.normal(keys[i], (WIDTH, WIDTH))).astype(dtype)
              for i in range(layers)}
    frozen: dict[str, jax.Array] = {}
    if kind == "lora":
        frozen, params = params, {"adapter": 0.02 * jax.random.normal(keys[0], (WIDTH, WIDTH))}
    zeros = jax.tree.map(jnp.zeros_like, params)
    moments = {"mu": zeros, "nu": zeros}
    rate = float(kind[3:]) if kind.startswith("rl-") else 1e-4
    for count in range(1, WARM_STEPS + steps + 1):
        x, y = jax.random.normal(jax.random.fold_in(keys[-1], count), (2, BATCH, WIDTH))
        params, moments = _update(params, moments, _gradient(params, x, y), count,
                                  WARM_RATE if count <= WARM_STEPS else rate)
        if count <= WARM_STEPS:
            continue
        if kind.startswith("rl-"):
            saved: Any = {"params": jax.tree.map(lambda p: p.astype(jnp.bfloat16), params)}
        elif kind == "lora":
            saved = {"base": frozen, "params": params}
        else:
            saved = {"params": params, **moments}
        yield jax.tree.map(np.array, saved)
