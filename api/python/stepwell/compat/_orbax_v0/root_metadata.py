# SPDX-License-Identifier: Apache-2.0
"""Metadata of a manager's root: the file that Orbax has for it."""

from __future__ import annotations

import json
import os
from typing import Any

from .multihost import is_primary_host

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
    """Writes it, durably, unless there is one already; process 0 does it for all."""
    path = os.path.join(root, _FOLDER, _FILE)
    if is_primary_host(0) and not os.path.exists(path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        temporary = f"{path}.tmp"
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump({"custom_metadata": custom_metadata}, file)
            file.flush()
            os.fsync(file.fileno())
        os.rename(temporary, path)
        for folder in (os.path.dirname(path), os.fspath(root)):
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            os.fsync(descriptor)
            os.close(descriptor)
