# SPDX-License-Identifier: Apache-2.0
"""Random histories of steps that share chunks, or are differences: support/version_histories.py."""

from __future__ import annotations

import pathlib

from version_histories import run

SEEDS = 6


def test_each_step_is_whole_and_orbax_reads_it(tmp_path: pathlib.Path) -> None:
    found = []
    for seed in range(SEEDS):
        (tmp_path / str(seed)).mkdir()
        found.append(run(tmp_path / str(seed), seed))
    assert all(steps > 3 for steps, _ in found), found
    # Of one alone it may be none: which step is there when the next begins is a matter of time.
    assert sum(shared for _, shared in found) > SEEDS, found
