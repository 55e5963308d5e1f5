# %% [markdown]
# <!-- SPDX-License-Identifier: Apache-2.0 -->
# # First steps
#
# A training loop that saves every step, is interrupted, and resumes at the step after the last one.
# The guide `api/docs/pages/first-steps.md` says more about each call.

# %%
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import treescope
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import stepwell

init_state: dict[str, Any] = {
    "params": {"layer": {"kernel": jnp.zeros((256, 256)), "bias": jnp.zeros(256)}},
    "opt_state": {"momentum": jnp.zeros((256, 256))},
}
train_step = jax.jit(lambda state: jax.tree.map(lambda leaf: leaf + 1, state), donate_argnums=0)


# %%
def train(stop: int) -> int:
    """Trains up to step `stop`; returns the step that it began with."""
    with stepwell.open("run1", keep=stepwell.policy.LatestN(20)) as store:
        state, start = store.load_or(jax.tree.map(jnp.copy, init_state))
        for step in range(start, stop):
            state = train_step(state)
            store.save(step, state, metrics={"loss": 1 / (step + 1)})
    return start


# %% [markdown]
# `save` returns at once, and the next step may donate the state. Leaving the `with` block waits
# until every step is durable. The second call resumes.

# %%
assert train(40) == 0
assert train(60) == 40

# %% [markdown]
# ## Look at the store
#
# A notebook shows a store, a step and a tree as tables.

# %%
reader = stepwell.open("run1", mode="r")
assert reader.steps() == list(range(40, 60)) and reader.best("loss") == 59
reader

# %%
reader[59]

# %% [markdown]
# Treescope shows a step as a tree that unfolds. It reads no array: a step is a lazy view.

# %%
treescope.show(reader[59])

# %% [markdown]
# ## Load a part
#
# A path or a slice reads only the chunks that it needs.

# %%
kernels = reader.load(59, "params/**/kernel", progress=True)
assert list(kernels) == ["params/layer/kernel"]
rows = reader[59]["params/layer/kernel"][0:16]
assert rows.shape == (16, 256) and np.all(rows == 60)
assert reader.stats()["last_load"]["bytes_read"] < reader[59].stored_bytes / 2

# %% [markdown]
# ## Load onto devices
#
# `like` gives the structure and the shardings; `mesh` and `specs` name the shardings by path.

# %%
like = reader.load(59, like=init_state)
assert jax.tree.all(jax.tree.map(lambda leaf: bool((leaf == 60).all()), like))
mesh = Mesh(np.array(jax.devices()), ("data",))
sharded = reader.load(59, mesh=mesh, specs={"params/**/kernel": P(None, "data")})
assert sharded["params"]["layer"]["kernel"].sharding.spec == P(None, "data")
reader.close()
