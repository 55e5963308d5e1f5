# SPDX-License-Identifier: Apache-2.0
"""`path`: names of steps."""

from __future__ import annotations

from . import step

__all__ = ["step"]
