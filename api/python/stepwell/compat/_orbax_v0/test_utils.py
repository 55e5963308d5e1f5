# SPDX-License-Identifier: Apache-2.0
"""`test_utils`: what guides and notebooks use of it."""

from __future__ import annotations

import os
import shutil
from typing import Any

import numpy as np

from .libraries import as_path, jax_module



def erase_and_create_empty(directory: Any) -> Any:
    """Deletes a directory with everything in it, and makes an empty one."""
    path = os.fspath(directory)
    if os.path.lexists(path):
        shutil.rmtree(path)
    os.mkdir(path)
    return as_path(path)


def empty_directory(directory: Any) -> bool:
    """Whether a directory has nothing in it."""
    return not os.listdir(os.fspath(directory))


def print_directory(directory: Any, level: int = 0) -> None:
    """Prints the files below a directory."""
    for entry in sorted(os.scandir(os.fspath(directory)), key=lambda each: each.name):
        print("----" * level + entry.name)
        if entry.is_dir():
            print_directory(entry.path, level + 1)


def assert_array_equal(testclass: Any, v_expected: Any, v_actual: Any) -> None:
    """Two leaves are of one type, with equal values."""
    testclass.assertIsInstance(v_actual, type(v_expected))
    if hasattr(v_expected, "shape"):
        testclass.assertEqual(v_expected.shape, v_actual.shape)
        testclass.assertEqual(v_expected.dtype, v_actual.dtype)
        if hasattr(v_expected, "sharding"):
            testclass.assertEqual(v_expected.sharding, v_actual.sharding)
    np.testing.assert_array_equal(np.asarray(v_actual), np.asarray(v_expected))


def assert_tree_equal(testclass: Any, expected: Any, actual: Any) -> None:
    """Two trees have one structure and equal leaves."""
    jax = jax_module()

    testclass.assertEqual(jax.tree.structure(expected), jax.tree.structure(actual))
    jax.tree.map(lambda x, y: assert_array_equal(testclass, x, y), expected, actual)
