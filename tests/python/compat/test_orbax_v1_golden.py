# SPDX-License-Identifier: Apache-2.0
"""The checkpoints that Orbax ships for its own tests of compatibility: of v0 and v1, whole and with
files lacking. Both libraries give the same, or raise the same class."""

from __future__ import annotations

import os
import pathlib
import shutil
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from orbax.checkpoint import v1 as real

from stepwell.compat import orbax_v1 as ocp

pytestmark = [pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
              pytest.mark.filterwarnings("ignore:Sharding info not provided:UserWarning")]

GOLDEN = pathlib.Path(real.__path__[0], "_src/testing/compatibility/checkpoints")
CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "load": lambda library, path: library.load(path),
    "load state": lambda library, path: library.load(path, checkpointable_name="state"),
    "load unnamed": lambda library, path: library.load(path, checkpointable_name=None),
    "load items": lambda library, path: library.load_checkpointables(path),
    "load item": lambda library, path: library.load_checkpointables(path, {"state": None}),
    "metadata": lambda library, path: library.metadata(path),
    "metadata of state": lambda library, path: library.metadata(path, "state"),
    "metadata of unnamed": lambda library, path: library.metadata(path, None),
    "metadata of items": lambda library, path: library.checkpointables_metadata(path),
    "is": lambda library, path: library.is_orbax_checkpoint(path),
}


def checkpoints() -> list[str]:
    """The checkpoints, and the trees in them."""
    return sorted(str(folder.relative_to(GOLDEN)) for folder in GOLDEN.rglob("*")
                  if folder.is_dir() and any(
                      (folder / name).exists() for name in (
                          "_METADATA", "_CHECKPOINT_METADATA", "manifest.ocdbt",
                          "state/_METADATA")))


def plain(value: Any) -> Any:
    if isinstance(value, (jax.Array, np.ndarray)):
        return type(value).__name__, str(value.dtype), np.asarray(value).tolist()
    if isinstance(value, dict):
        return {key: plain(child) for key, child in value.items()}
    if isinstance(value, real.CheckpointMetadata):
        return (plain(value.metadata), value.init_timestamp_nsecs, value.commit_timestamp_nsecs,
                value.custom_metadata)
    return repr(value)


def outcome(call: Callable[[Any, Any], Any], library: Any, path: pathlib.Path) -> Any:
    try:
        return plain(call(library, path))
    except Exception as error:
        return [kind.__name__ for kind in type(error).__mro__]


@pytest.mark.skipif(not GOLDEN.is_dir(), reason="this version of Orbax ships none")
@pytest.mark.parametrize("name", checkpoints() if GOLDEN.is_dir() else [])
def test_both_libraries_read_it_alike(name: str, tmp_path: pathlib.Path) -> None:
    kind = name.split("/")[0]
    shutil.copytree(GOLDEN / kind, tmp_path / kind)
    for text, call in CALLS.items():
        theirs, ours = (outcome(call, library, tmp_path / name) for library in (real, ocp))
        if theirs == ours or isinstance(theirs, list) and isinstance(ours, list) and (
                theirs[0] in ours):
            continue
        # Orbax has no sharding then, and gives up; a store gives the default device.
        lacks_sharding = not any(pathlib.Path(folder, "_sharding").exists()
                                 for folder, _, _ in os.walk(tmp_path / name))
        # Orbax takes any directory for one; a message about the root or the item helps more.
        is_none = text == "is" or isinstance(ours, list) and ours[0] == "InvalidLayoutError"
        # Orbax tries to load JSON as a tree where nothing says what it is.
        lacks_handlers = "item_handlers" in name or "metadata_missing" in name
        assert lacks_sharding or is_none or lacks_handlers and text.startswith("load item"), (
            text, theirs, ours)
