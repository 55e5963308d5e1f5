# SPDX-License-Identifier: Apache-2.0
"""orbax.checkpoint (v0) over Stepwell: `from stepwell.compat import orbax as ocp`.

What saves, restores, lists and follows checkpoints is Stepwell's. All other names are Orbax's own.
`ACCEPTED_WITHOUT_EFFECT` lists options that do nothing here, with reasons; the guide "Moving from
Orbax" lists what differs otherwise.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

try:
    import orbax.checkpoint as _orbax
except ImportError as error:
    if not (error.name or "").startswith("orbax"):
        raise
    raise ImportError("stepwell.compat.orbax stands on orbax-checkpoint: "
                      "pip install 'orbax-checkpoint>=0.12'", name=error.name) from None

from ._orbax_v0.names import public_names
from ._orbax_v0.without_effect import ACCEPTED_WITHOUT_EFFECT

if TYPE_CHECKING:
    from orbax.checkpoint import *  # noqa: F403

    from ._orbax_v0.checkpointers import AsyncCheckpointer as AsyncCheckpointer
    from ._orbax_v0.checkpointers import Checkpointer as Checkpointer
    from ._orbax_v0.checkpointers import PyTreeCheckpointer as PyTreeCheckpointer
    from ._orbax_v0.checkpointers import StandardCheckpointer as StandardCheckpointer
    from ._orbax_v0.manager import CheckpointManager as CheckpointManager

globals().update(public_names(__name__))
# These come from Orbax's modules, and are here from the beginning.
_MORE = {name: getattr(module, name) for module, names in (
    (_orbax.options, ("AtomicityMode", "AtomicityOptions", "FileOptions",
                      "MultiprocessingOptions")),
    (_orbax.checkpoint_manager, ("StepAlreadyExistsError",))) for name in names
    if hasattr(module, name)}
globals().update(_MORE)

__all__ = sorted([*(name for name in dir(_orbax) if not name.startswith("_")),
                  "ACCEPTED_WITHOUT_EFFECT", *_MORE])


def __getattr__(name: str) -> Any:
    """The facade of Orbax v1, and what Orbax has got since it was imported."""
    if name == "v1":
        return importlib.import_module(".orbax_v1", __package__)
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(_orbax, name)


def __dir__() -> list[str]:
    return [*__all__, "__all__", "__doc__", "__name__"]
