# %% [markdown]
# <!-- SPDX-License-Identifier: Apache-2.0 -->
# # Moving from Orbax v0
#
# `CheckpointManager` and the checkpointers, with one import changed. The run below was begun by
# Orbax itself.

# %%
import os
from typing import Any

import jax
import jax.numpy as jnp
import orbax.checkpoint

from stepwell.compat import orbax as ocp  # was: import orbax.checkpoint as ocp

state = {"params": {"kernel": jnp.ones((256, 256))}, "step": 0}
abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, state)
root = os.path.abspath("run")
wanted: dict[str, Any] = {"max_to_keep": 2, "best_mode": "min",
                          "best_fn": lambda metrics: metrics["loss"]}

# %% [markdown]
# ## A run that Orbax began

# %%
with orbax.checkpoint.CheckpointManager(
        root, options=orbax.checkpoint.CheckpointManagerOptions(**wanted)) as of_orbax:
    of_orbax.save(0, args=orbax.checkpoint.args.Composite(
        state=orbax.checkpoint.args.StandardSave(state),
        data=orbax.checkpoint.args.JsonSave({"position": 0})), metrics={"loss": 2.0})

# %% [markdown]
# ## Stepwell goes on

# %%
with ocp.CheckpointManager(root, options=ocp.CheckpointManagerOptions(**wanted)) as manager:
    start = manager.latest_step()
    assert start == 0
    for step in range(start + 1, 4):
        manager.save(step, args=ocp.args.Composite(
            state=ocp.args.StandardSave({**state, "step": step}),
            data=ocp.args.JsonSave({"position": step * 32})), metrics={"loss": 1 / (step + 1)})
    manager.wait_until_finished()
    assert list(manager.all_steps()) == [2, 3] and manager.best_step() == 3
    restored = manager.restore(manager.best_step(), args=ocp.args.Composite(
        state=ocp.args.StandardRestore(abstract), data=ocp.args.JsonRestore()))
assert restored.state["step"] == 3 and restored.data == {"position": 96}

# %% [markdown]
# Orbax reads what Stepwell saved.

# %%
read_only = orbax.checkpoint.CheckpointManagerOptions(read_only=True)
with orbax.checkpoint.CheckpointManager(root, options=read_only) as of_orbax:
    assert list(of_orbax.all_steps()) == [2, 3]
    read = of_orbax.restore(2, args=orbax.checkpoint.args.Composite(
        state=orbax.checkpoint.args.StandardRestore(abstract)))
assert read.state["step"] == 2 and bool((read.state["params"]["kernel"] == 1).all())

# %% [markdown]
# ## One checkpoint

# %%
with ocp.StandardCheckpointer() as checkpointer:
    checkpointer.save(os.path.abspath("single"), state, force=True)
    checkpointer.wait_until_finished()
    single = checkpointer.restore(os.path.abspath("single"), abstract)
assert jax.tree.all(jax.tree.map(lambda one, other: bool((one == other).all()),
                                 single["params"], state["params"]))
