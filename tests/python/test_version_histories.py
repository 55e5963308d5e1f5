# SPDX-License-Identifier: Apache-2.0
"""Random histories of steps that share chunks, or are differences: support/version_histories.py."""

from __future__ import annotations

import pathlib

import pytest
from version_histories import run


@pytest.mark.parametrize("seed", range(6))
def test_each_step_is_whole_and_orbax_reads_it(tmp_path: pathlib.Path, seed: int) -> None:
    steps, shared = run(tmp_path, seed)
    assert steps > 3
    assert shared > 0
