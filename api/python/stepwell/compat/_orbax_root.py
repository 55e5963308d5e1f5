# SPDX-License-Identifier: Apache-2.0
"""Metadata of the root of Orbax checkpoints: the file that Orbax has for it."""

from __future__ import annotations

import contextlib
import json
import os
from typing import Any

from .._runtime import durable
from .._runtime.files import read_json_object

_FOLDER, _FILE, _LEGACY_FILE = "metadata", "_ROOT_METADATA", "metadata"


def read_root_metadata(root: Any) -> dict[str, Any] | None:
    """The custom metadata of a root; None if it has none. CorruptionError."""
    for name in (_FILE, _LEGACY_FILE):
        path = os.path.join(root, _FOLDER, name)
        if os.path.isfile(path):
            found = read_json_object(path)
            if name == _LEGACY_FILE and "custom_metadata" not in found:
                return found
            return dict(found.get("custom_metadata") or {})
    return None


def write_root_metadata(root: Any, custom_metadata: dict[str, Any]) -> None:
    """Writes it, durably, unless there is one already. One process of a run calls it."""
    path = os.path.join(root, _FOLDER, _FILE)
    if os.path.lexists(path):
        return
    durable.make_directories(os.path.dirname(path))
    with contextlib.suppress(OSError):
        durable.sweep(os.path.dirname(path))
    durable.write(path, json.dumps({"custom_metadata": custom_metadata}).encode())
