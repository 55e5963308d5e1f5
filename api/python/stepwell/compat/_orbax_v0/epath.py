# SPDX-License-Identifier: Apache-2.0
"""Paths as Orbax gives them: etils' epath.Path where etils is installed, else pathlib.Path."""

from __future__ import annotations

import os
from typing import Any


def as_path(path: Any) -> Any:
    try:
        from etils import epath
    except ImportError:
        import pathlib

        return pathlib.Path(os.fspath(path))
    return epath.Path(path)
