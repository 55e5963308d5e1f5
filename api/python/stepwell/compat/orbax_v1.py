# SPDX-License-Identifier: Apache-2.0
"""The interface of orbax.checkpoint.v1 over Stepwell.

    from stepwell.compat import orbax_v1 as ocp    # was: from orbax.checkpoint import v1 as ocp

    ocp.save("ckpt", state)
    with ocp.training.Checkpointer("run") as ckptr:
        ckptr.save(step, state)

It stands on Orbax: what acts on storage is ours, every other name is Orbax's own. What real Orbax
wrote is loaded, too, and real Orbax loads what this writes. The guide "Moving from Orbax" lists
every difference.
"""

from __future__ import annotations

from typing import Any

from ._orbax_v1 import base as _base
from ._orbax_v1 import partial as partial
from ._orbax_v1 import training as training
from ._orbax_v1.accepted import ACCEPTED_WITHOUT_EFFECT as ACCEPTED_WITHOUT_EFFECT
from ._orbax_v1.free import (checkpointables_metadata as checkpointables_metadata,
                             delete as delete, delete_async as delete_async, load as load,
                             load_async as load_async,
                             load_checkpointables as load_checkpointables,
                             load_checkpointables_async as load_checkpointables_async,
                             load_pytree as load_pytree, load_pytree_async as load_pytree_async,
                             metadata as metadata, pytree_metadata as pytree_metadata,
                             save as save, save_async as save_async,
                             save_checkpointables as save_checkpointables,
                             save_checkpointables_async as save_checkpointables_async,
                             save_pytree as save_pytree, save_pytree_async as save_pytree_async)
from ._orbax_v1.places import is_orbax_checkpoint as is_orbax_checkpoint

__all__ = sorted({*_base.public(_base.v1), *(name for name in globals() if name[0] != "_")}
                 - {"annotations", "Any"})


def __getattr__(name: str) -> Any:
    return _base.inherited(_base.v1, __name__, name)


def __dir__() -> list[str]:
    return __all__
