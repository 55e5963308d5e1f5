# SPDX-License-Identifier: Apache-2.0
"""Who is compared. Modules are imported only for the contender that is asked for."""

import importlib
from typing import Any

from contenders.base import Cannot, Contender, Saved

__all__ = ["ALL", "TORCH", "Cannot", "Contender", "Saved", "load_class"]

# The key on the command line: where the class is. In the order of the tables.
ALL: dict[str, tuple[str, str]] = {
    "stepwell": ("contenders.stepwell_store", "Stepwell"),
    "stepwell-v1": ("contenders.orbax_facade", "OrbaxFacade"),
    "orbax-v1": ("contenders.orbax_checkpoints", "OrbaxV1"),
    "orbax-v0": ("contenders.orbax_checkpoints", "OrbaxV0"),
    "safetensors": ("contenders.tensor_files", "Safetensors"),
    "equinox": ("contenders.tensor_files", "Equinox"),
    "torch-save": ("contenders.torch_files", "TorchSave"),
    "torch-dcp": ("contenders.torch_files", "TorchDcp"),
}
TORCH = ("torch-save", "torch-dcp")  # these run with the interpreter of an environment of their own


def load_class(key: str) -> type[Contender]:
    module, name = ALL[key]
    found: Any = getattr(importlib.import_module(module), name)
    return found  # type: ignore[no-any-return]
