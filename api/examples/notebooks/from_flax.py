# %% [markdown]
# <!-- SPDX-License-Identifier: Apache-2.0 -->
# # Moving from Flax
#
# First a `TrainState` of Flax Linen with the functions of `flax.training.checkpoints`, then a model
# of Flax NNX with a store.

# %%
from typing import Any

import flax.linen as nn
import flax.serialization
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from flax.training.train_state import TrainState

import stepwell
from stepwell.compat import flax as checkpoints  # was: from flax.training import checkpoints

# %% [markdown]
# ## A TrainState

# %%
linen_model = nn.Dense(3)
variables = linen_model.init(jax.random.key(0), jnp.ones((1, 4)))
state = TrainState.create(apply_fn=linen_model.apply, params=variables["params"],
                          tx=optax.adam(1e-3))
for step in range(1, 6):
    state = state.replace(step=step)
    checkpoints.save_checkpoint("ckpts", state, step=step, keep=2, overwrite=True)
assert checkpoints.available_steps("ckpts") == [4, 5]
restored = checkpoints.restore_checkpoint("ckpts", target=state)
assert restored.step == 5 and isinstance(restored.opt_state[0], optax.ScaleByAdamState)

# %% [markdown]
# Without a target it comes back as nested dicts. They can be edited before
# `flax.serialization.from_state_dict` makes a `TrainState` of them.

# %%
raw = checkpoints.restore_checkpoint("ckpts", target=None, step=4)
raw["params"]["bias"] = np.ones_like(raw["params"]["bias"])
edited: Any = flax.serialization.from_state_dict(state, raw)
assert isinstance(edited, TrainState) and edited.step == 4
expected = {**variables["params"], "bias": jnp.ones(3)}
assert jax.tree.all(jax.tree.map(np.array_equal, edited.params, expected))


# %% [markdown]
# ## A model of NNX

# %%
class Model(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.hidden = nnx.Linear(4, 16, rngs=rngs)
        self.out = nnx.Linear(16, 1, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.out(nnx.relu(self.hidden(x)))


optimizer = optax.adam(1e-2)
graph, params = nnx.split(Model(nnx.Rngs(0)))


@jax.jit
def train_step(params: Any, opt_state: Any) -> tuple[Any, Any]:
    def loss(params: Any) -> jax.Array:
        outputs: jax.Array = nnx.merge(graph, params)(jnp.ones((8, 4)))
        return jnp.mean((outputs - 1.0) ** 2)

    updates, opt_state = optimizer.update(jax.grad(loss)(params), opt_state, params)
    return optax.apply_updates(params, updates), opt_state


with stepwell.open("run_nnx", keep=stepwell.policy.LatestN(5)) as store:
    (params, opt_state), start = store.load_or((params, optimizer.init(params)))
    for step in range(start, 20):
        params, opt_state = train_step(params, opt_state)
        store.save(step, {"params": params, "opt_state": opt_state})

# %% [markdown]
# The parameters load without the optimizer's state, into a model that holds no memory before.

# %%
model = nnx.eval_shape(lambda: Model(nnx.Rngs(1)))
with stepwell.open("run_nnx", mode="r") as store:
    nnx.update(model, store.load(19, "params", like=nnx.state(model)))
trained = nnx.merge(graph, params)
assert (model(jnp.ones((2, 4))) == trained(jnp.ones((2, 4)))).all()
model
