# SPDX-License-Identifier: Apache-2.0
"""orbax.checkpoint (v0) over Stepwell: `from stepwell.compat import orbax as ocp`.

Names, arguments, results and exceptions are Orbax's. `ACCEPTED_WITHOUT_EFFECT` lists options that
do nothing here, with reasons; the guide "Moving from Orbax" lists what differs otherwise.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._orbax_v0.public import *  # noqa: F403


def __getattr__(name: str) -> Any:
    """The names of _orbax_v0/public.py, which the first use of one imports."""
    if name.startswith("_") and name != "__all__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    public = importlib.import_module("._orbax_v0.public", __package__)
    try:
        return getattr(public, name)
    except AttributeError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; the guide "
                             "'Moving from Orbax' lists what is missing") from None


def __dir__() -> list[str]:
    return sorted(__getattr__("__all__"))
