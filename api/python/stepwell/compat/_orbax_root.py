# SPDX-License-Identifier: Apache-2.0
"""Metadata of the root of Orbax checkpoints: the file that Orbax has for it."""

from __future__ import annotations

import json
import os
from typing import Any

from .._runtime.files import sync_folder

_FOLDER, _FILE, _LEGACY_FILE = "metadata", "_ROOT_METADATA", "metadata"


def read_root_metadata(root: Any) -> dict[str, Any] | None:
    """The custom metadata of a root; None if it has none."""
    for name in (_FILE, _LEGACY_FILE):
        try:
            with open(os.path.join(root, _FOLDER, name), encoding="utf-8") as file:
                found = json.load(file)
        except (FileNotFoundError, NotADirectoryError):
            continue
        if name == _LEGACY_FILE and "custom_metadata" not in found:
            return dict(found)
        return dict(found.get("custom_metadata") or {})
    return None


def write_root_metadata(root: Any, custom_metadata: dict[str, Any]) -> None:
    """Writes it, durably, unless there is one already. One process of a run calls it."""
    path = os.path.join(root, _FOLDER, _FILE)
    if os.path.exists(path):
        return
    os.makedirs(os.path.dirname(path), exist_ok=True)
    temporary = f"{path}.tmp"
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump({"custom_metadata": custom_metadata}, file)
        file.flush()
        os.fsync(file.fileno())
    os.rename(temporary, path)
    for folder in (os.path.dirname(path), os.fspath(root)):
        sync_folder(folder)
