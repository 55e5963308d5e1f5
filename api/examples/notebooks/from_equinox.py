# %% [markdown]
# <!-- SPDX-License-Identifier: Apache-2.0 -->
# # Moving from Equinox
#
# `tree_serialise_leaves` and `tree_deserialise_leaves`, with one import changed.

# %%
import equinox as eqx
import jax
import jax.numpy as jnp
import optax

import stepwell
from stepwell.compat import equinox as eqx_io


def make(key: jax.Array, width: int = 8) -> eqx.nn.MLP:
    return eqx.nn.MLP(in_size=2, out_size=1, width_size=width, depth=2, key=key)


model = make(jax.random.key(0))
opt_state = optax.adam(1e-3).init(eqx.filter(model, eqx.is_array))

# %% [markdown]
# ## Save and load

# %%
eqx_io.tree_serialise_leaves("run.eqx", {"model": model, "opt_state": opt_state, "step": 100})
skeleton = eqx.filter_eval_shape(make, jax.random.key(0))
state = eqx_io.tree_deserialise_leaves(
    "run.eqx", {"model": skeleton, "opt_state": opt_state, "step": 0})
assert state["step"] == 100 and eqx.tree_equal(state["model"], model)
assert eqx.tree_equal(state["opt_state"], opt_state)

# %% [markdown]
# The model loads without the optimizer's state.

# %%
alone = eqx_io.tree_deserialise_leaves("run.eqx", skeleton, path="model")
assert eqx.tree_equal(alone, model)
alone

# %% [markdown]
# ## Change the model
#
# `eqx.tree_at` replaces a part of a loaded model. A model of another shape is refused.

# %%
biased = eqx.tree_at(lambda mlp: mlp.layers[-1].bias, alone, jnp.full(1, 5.0))
assert biased(jnp.zeros(2)) > alone(jnp.zeros(2))
refused: list[str] = []
try:
    eqx_io.tree_deserialise_leaves("run.eqx", make(jax.random.key(0), width=9), path="model")
except stepwell.MismatchError as error:
    refused = [mismatch.path for mismatch in error.shape]
assert refused[0] == "layers/0/weight"

# %% [markdown]
# ## A file that Equinox wrote

# %%
eqx.tree_serialise_leaves("old.eqx", model)
assert eqx.tree_equal(eqx_io.tree_deserialise_leaves("old.eqx", skeleton), model)
