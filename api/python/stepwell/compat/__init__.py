# SPDX-License-Identifier: Apache-2.0
"""Other libraries' interfaces over Stepwell: change the import, keep the program.

    from stepwell.compat import orbax_v1 as ocp    # orbax.checkpoint.v1
    from stepwell.compat import orbax as ocp       # orbax.checkpoint
    from stepwell.compat import flax as checkpoints     # flax.training.checkpoints
    from stepwell.compat import equinox as eqx_io       # equinox.tree_(de)serialise_leaves

The modules translate; what they do is done by `stepwell.Store`.
"""
