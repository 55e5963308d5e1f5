# SPDX-License-Identifier: Apache-2.0
"""Multiplies the repetitions of tests: $STEPWELL_STORM times as often in tests/soak."""

from __future__ import annotations

import os


def in_a_storm(usual: int) -> int:
    return usual * int(os.environ.get("STEPWELL_STORM", "1"))
