# SPDX-License-Identifier: Apache-2.0
"""The order of the files: those of few tests that take long come first, so that in the end no
worker has one left while the others have nothing."""

from __future__ import annotations

import pytest

FIRST = ("crash/test_crashes.py", "docs/test_guides.py", "python/test_group.py",
         "test_checkpoint_imports.py", "test_package.py", "test_notebooks.py", "test_bench.py",
         "test_install.py", "test_group_outcomes.py", "test_local_disks.py",
         "test_local_exports.py", "test_group_export.py", "test_group_import.py",
         "test_export_matrix.py", "test_sharded.py", "test_sharded_save.py", "test_loops.py",
         "test_races.py", "test_root_copies.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not str(item.path).endswith(FIRST))
