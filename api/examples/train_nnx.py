# SPDX-License-Identifier: Apache-2.0
"""Trains a small character-level transformer and commits a checkpoint every step.

    python api/examples/train_nnx.py run1 --steps 60

Kill it at any moment and start it again: it goes on after the last committed step. Stepwell's part
is marked (1) to (4); everything else is an ordinary Flax NNX and Optax program.
"""

import argparse
import pathlib
import time
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import stepwell

# ---- the model ----------------------------------------------------------------------------------

CONTEXT = 64
BATCH = 12


class Block(nnx.Module):
    def __init__(self, width: int, heads: int, rngs: nnx.Rngs):
        self.heads = heads
        self.norm_1 = nnx.LayerNorm(width, rngs=rngs)
        self.norm_2 = nnx.LayerNorm(width, rngs=rngs)
        self.qkv = nnx.Linear(width, 3 * width, rngs=rngs)
        self.out = nnx.Linear(width, width, rngs=rngs)
        self.up = nnx.Linear(width, 4 * width, rngs=rngs)
        self.down = nnx.Linear(4 * width, width, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        batch, length, width = x.shape
        split = (batch, length, self.heads, width // self.heads)
        q, k, v = (part.reshape(split) for part in jnp.split(self.qkv(self.norm_1(x)), 3, axis=-1))
        mixed = jax.nn.dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.reshape(batch, length, width))
        return x + self.down(jax.nn.gelu(self.up(self.norm_2(x))))


class Transformer(nnx.Module):
    def __init__(self, vocabulary: int, *, width: int, heads: int, layers: int, rngs: nnx.Rngs):
        self.embed = nnx.Embed(vocabulary, width, rngs=rngs)
        self.position = nnx.Embed(CONTEXT, width, rngs=rngs)
        self.layers = nnx.List([Block(width, heads, rngs) for _ in range(layers)])
        self.norm = nnx.LayerNorm(width, rngs=rngs)
        self.head = nnx.Linear(width, vocabulary, rngs=rngs)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        x = self.embed(tokens) + self.position(jnp.arange(tokens.shape[1]))
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


# ---- the text -----------------------------------------------------------------------------------


def load_text(folder: str) -> tuple[np.ndarray, int]:
    """The characters of all files in `folder` as small numbers, and how many different ones."""
    files = sorted(path for path in pathlib.Path(folder).iterdir() if path.is_file())
    text = "\n".join(path.read_text(encoding="utf-8", errors="replace") for path in files)
    alphabet, tokens = np.unique(np.frombuffer(text.encode("utf-8"), np.uint8), return_inverse=True)
    return tokens.astype(np.int32), len(alphabet)


def batch_of_step(tokens: np.ndarray, step: int) -> np.ndarray:
    """The step alone decides the batch, so a resumed run sees what it would have seen."""
    starts = np.random.default_rng(step).integers(0, len(tokens) - CONTEXT - 1, BATCH)
    return np.stack([tokens[start : start + CONTEXT + 1] for start in starts])


# ---- the training -------------------------------------------------------------------------------

optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))


def make_state(vocabulary: int) -> tuple[Any, dict[str, Any]]:
    model = Transformer(vocabulary, width=256, heads=8, layers=2, rngs=nnx.Rngs(0))
    graph, params = nnx.split(model, nnx.Param)
    return graph, {"params": params, "opt_state": optimizer.init(params)}


@partial(jax.jit, static_argnums=0, donate_argnums=1)
def train_step(graph: Any, state: dict[str, Any], batch: np.ndarray
               ) -> tuple[dict[str, Any], jax.Array]:
    def loss_of(params: Any) -> Any:
        logits = nnx.merge(graph, params)(batch[:, :-1])
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch[:, 1:])
        return losses.mean()

    loss, gradients = jax.value_and_grad(loss_of)(state["params"])
    updates, opt_state = optimizer.update(gradients, state["opt_state"], state["params"])
    return {"params": optax.apply_updates(state["params"], updates), "opt_state": opt_state}, loss


class Committed:
    """Counts what has become durable; `note` runs on the store's callback thread."""

    def __init__(self, bytes_per_step: int) -> None:
        self.bytes_per_step = bytes_per_step
        self.mb_per_s = 0.0

    def note(self, started: float, _: stepwell.SaveHandle) -> None:
        self.mb_per_s = self.bytes_per_step / (time.perf_counter() - started) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument("store", help="the store's directory; made when there is none")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--text", default="/usr/share/common-licenses", help="a folder of text")
    arguments = parser.parse_args()

    tokens, vocabulary = load_text(arguments.text)
    graph, init_state = make_state(vocabulary)
    leaves = jax.tree.leaves(init_state)
    committed = Committed(sum(leaf.nbytes for leaf in leaves))
    count = sum(leaf.size for leaf in jax.tree.leaves(init_state["params"]))
    print(
        f"model: {count:,} parameters; state: {len(leaves)} leaves, "
        f"{committed.bytes_per_step / 1e6:.1f} MB; text: {len(tokens):,} characters",
        flush=True,
    )

    # (1) Open the store; keep the 20 newest steps, and statistics of each array for the report.
    with stepwell.open(
        arguments.store, keep=stepwell.policy.LatestN(20), statistics=True
    ) as store:
        # (2) Go on after the newest committed step, or begin with init_state at step 0.
        state, start = store.load_or(init_state)
        if start > 0:
            print(f"resumed after step {start - 1}, the last one committed", flush=True)
        for step in range(start, arguments.steps):
            begin = time.perf_counter()
            state, loss = train_step(graph, state, batch_of_step(tokens, step))
            loss = float(loss)  # waits for the step

            # (3) Save it. This returns at once, and the next step may donate the state's buffers:
            # what is stored is the state as it is now.
            save = time.perf_counter()
            handle = store.save(step, state, metrics={"loss": loss})
            stall = time.perf_counter() - save

            handle.on_complete(partial(committed.note, save))
            print(
                f"step {step:3d}  loss {loss:.4f}  "
                f"{1 / (time.perf_counter() - begin):5.2f} steps/s  stall {stall * 1e3:6.2f} ms  "
                f"{committed.mb_per_s:6.0f} MB/s",
                flush=True,
            )
    # (4) Leaving the `with` block waits until everything is durable.


if __name__ == "__main__":
    main()
