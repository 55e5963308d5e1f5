# SPDX-License-Identifier: Apache-2.0
"""Training with saves beside it: seconds a step with a save every 1, 10 and 100 steps, beside those
of the same training without. A save is under way when the clock starts, and one when it stops: as
in a long training, each period of steps bears one save."""

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from contenders import Contender
from flax import nnx
from themes import Job

EVERY = {1: 8, 10: 40, 100: 100}  # a save every so many steps: steps that are measured
LENGTH = 128  # tokens
State = dict[str, Any]


class Block(nnx.Module):
    def __init__(self, width: int, rngs: nnx.Rngs) -> None:
        self.norms = nnx.List([nnx.LayerNorm(width, rngs=rngs) for _ in range(2)])
        self.attention = nnx.MultiHeadAttention(width // 64, width, decode=False, rngs=rngs)
        self.up = nnx.Linear(width, 4 * width, rngs=rngs)
        self.down = nnx.Linear(4 * width, width, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = x + self.attention(self.norms[0](x), mask=nnx.make_causal_mask(x[..., 0]))
        return x + self.down(jax.nn.gelu(self.up(self.norms[1](x))))


class Transformer(nnx.Module):
    """About 30 million parameters for a width of 512 and 8 layers."""

    def __init__(self, vocabulary: int, width: int, layers: int, rngs: nnx.Rngs) -> None:
        self.embed = nnx.Embed(vocabulary, width, rngs=rngs)
        self.layers = nnx.List([Block(width, rngs) for _ in range(layers)])
        self.head = nnx.Linear(width, vocabulary, rngs=rngs)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def _training(width: int, layers: int, seed: int) -> tuple[Callable[[State, Any], State], State]:
    """A step, which takes its state's memory for the next one, and the first state."""
    graph, params = nnx.split(Transformer(4096, width, layers, nnx.Rngs(seed)), nnx.Param)
    params = nnx.to_pure_dict(params)
    optimizer = optax.adam(1e-4)

    def loss_of(params: Any, tokens: jax.Array) -> jax.Array:
        model = nnx.merge(graph, nnx.State(params))
        logits = model(tokens[:, :-1])
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:])
        return losses.mean()

    def step(state: State, tokens: jax.Array) -> State:
        gradients = jax.grad(loss_of)(state["params"], tokens)
        updates, moments = optimizer.update(gradients, state["opt_state"])
        return {"params": optax.apply_updates(state["params"], updates), "opt_state": moments}

    return jax.jit(step, donate_argnums=0), {"params": params, "opt_state": optimizer.init(params)}


def run(job: Job) -> None:
    small = job.size_bytes < 1 << 28
    step, state = _training(128 if small else 512, 2 if small else 8, job.seed)
    random = np.random.default_rng(job.seed)
    user = job.contender("beside")

    def train(state: State, steps: int, every: int) -> tuple[State, float]:
        """Seconds a step; a save waits for the one before."""
        pending: list[Any] = []
        if every:
            _save(user, state, pending)
        start = time.perf_counter()
        for number in range(1, steps + 1):
            state = step(state, random.integers(0, 4096, (1, LENGTH + 1)))
            if every and number % every == 0:
                _save(user, state, pending)
        jax.block_until_ready(state)
        seconds = (time.perf_counter() - start) / steps
        _finish(user, pending)
        return state, seconds

    state, _ = train(state, 2, 1)  # compiled, and the first save
    for every, steps in EVERY.items():
        if small:
            steps = every
        state, before = train(state, max(steps // 2, 1), 0)
        state, saving = train(state, steps, every)
        state, after = train(state, max(steps // 2, 1), 0)
        job.emit(f"beside/{every}", saving, (before + after) / 2)


def _save(user: Contender, state: State, pending: list[Any]) -> None:
    _finish(user, pending)
    user.step += 1
    jax.block_until_ready(state)
    moments = state["opt_state"][0]
    pending.append(user.begin({"params": _by_name(state["params"]), "mu": _by_name(moments.mu),
                               "nu": _by_name(moments.nu)}))


def _by_name(tree: Any) -> dict[str, jax.Array]:
    """What every contender takes: names and arrays."""
    return {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree.leaves_with_path(tree)}


def _finish(user: Contender, pending: list[Any]) -> None:
    if pending:
        user.finish(pending.pop())
        user.tidy()
