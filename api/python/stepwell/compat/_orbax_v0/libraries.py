# SPDX-License-Identifier: Apache-2.0
"""Libraries that are imported when they are needed: importing the facade imports none of them."""

from __future__ import annotations

import importlib
from typing import Any


def jax_module() -> Any:
    return importlib.import_module("jax")


def multihost_utils() -> Any:
    return importlib.import_module("jax.experimental.multihost_utils")


def text_format() -> Any:
    """Of protocol buffers."""
    return importlib.import_module("google.protobuf.text_format")


def as_path(path: Any) -> Any:
    """A path as Orbax gives it: etils' epath.Path where etils is installed, else pathlib.Path."""
    try:
        return importlib.import_module("etils.epath").Path(path)
    except ImportError:
        return importlib.import_module("pathlib").Path(path)
