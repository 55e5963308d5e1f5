# %% [markdown]
# <!-- SPDX-License-Identifier: Apache-2.0 -->
# # Moving from Orbax v1
#
# One import changes. The guide `api/docs/pages/moving-from-orbax.md` lists the differences.

# %%
import os
from typing import Any

import jax
import jax.numpy as jnp
from orbax.checkpoint import v1 as of_orbax

import stepwell
from stepwell.compat import orbax_v1 as ocp  # was: from orbax.checkpoint import v1 as ocp

state: dict[str, Any] = {
    "params": {"kernel": jnp.ones((256, 256)), "bias": jnp.arange(256.0)}, "step": 0}
abstract = jax.tree.map(ocp.arrays.to_shape_dtype_struct, state)

# %% [markdown]
# ## One checkpoint

# %%
ocp.save("ckpt", state, overwrite=True)
loaded = ocp.load("ckpt", abstract)
assert (loaded["params"]["bias"] == state["params"]["bias"]).all() and loaded["step"] == 0
ocp.metadata("ckpt").metadata

# %% [markdown]
# Orbax loads it as well.

# %%
by_orbax = of_orbax.load(os.path.abspath("ckpt"), abstract)
assert (by_orbax["params"]["bias"] == state["params"]["bias"]).all()

# %% [markdown]
# ## A training loop

# %%
policies = ocp.training.save_decision_policies
with ocp.training.Checkpointer(
        "run_v1", save_decision_policy=policies.FixedIntervalPolicy(2),
        preservation_policy=ocp.training.preservation_policies.LatestN(3)) as checkpointer:
    for step in range(10):
        checkpointer.save_async(step, {**state, "step": step}, metrics={"loss": 1 / (step + 1)})
    checkpointer.wait()
    assert [each.step for each in checkpointer.checkpoints] == [4, 6, 8]
    assert checkpointer.latest is not None and checkpointer.latest.step == 8
    assert checkpointer.load(abstract_state=abstract)["step"] == 8

# %% [markdown]
# The run resumes, and Orbax reads its steps.

# %%
with ocp.training.Checkpointer("run_v1") as checkpointer:
    assert checkpointer.load(6, abstract_state=abstract)["step"] == 6
assert of_orbax.load(os.path.abspath("run_v1/8"), abstract)["step"] == 8

# %% [markdown]
# ## The store behind it
#
# The steps lie in a store. The store's own interface loads one leaf, or a slice of it.

# %%
with stepwell.open("run_v1/.stepwell", mode="r") as store:
    assert store.steps() == [4, 6, 8]
    assert store[8]["params/bias"][3:5].tolist() == [3.0, 4.0]
    tree = store.tree(8)
tree
