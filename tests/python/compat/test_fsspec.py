# SPDX-License-Identifier: Apache-2.0
"""Steps as files, through fsspec."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from orbax.checkpoint import v1 as ocp

import stepwell
from stepwell.compat.fsspec import StepwellFileSystem


@pytest.fixture
def filesystem(store: stepwell.Store, tmp_path: Path) -> Iterator[Any]:
    for step in (3, 20):
        store.save(step, {"w": np.full(4, step)}).result()
    (tmp_path / "exports").mkdir()
    opened = fsspec.filesystem("stepwell", directory=tmp_path / "exports", skip_instance_cache=True)
    yield opened
    opened.close()


def test_listing(filesystem: Any, path: Path, tmp_path: Path) -> None:
    assert filesystem.ls(path, detail=False) == [f"{path}/3", f"{path}/20"]
    assert filesystem.ls(f"stepwell://{path}")[0] == {"name": f"{path}/3", "size": 0,
                                                      "type": "directory"}
    assert filesystem.isdir(f"{path}/3")
    assert not filesystem.exists(f"{path}/4")
    assert os.listdir(tmp_path / "exports") == []  # nothing was asked for yet
    names = filesystem.find(f"{path}/3")
    assert f"{path}/3/state/_METADATA" in names
    assert filesystem.glob(f"{path}/*/_CHECKPOINT_METADATA") == [
        f"{path}/20/_CHECKPOINT_METADATA", f"{path}/3/_CHECKPOINT_METADATA"]
    size = filesystem.size(f"{path}/3/state/_METADATA")
    assert size == len(filesystem.cat(f"{path}/3/state/_METADATA")) > 0
    assert filesystem.ls(f"{path}/3/state/_METADATA", detail=False) == [
        f"{path}/3/state/_METADATA"]
    assert filesystem.modified(f"{path}/3") <= filesystem.modified(f"{path}/20")


def test_a_copy_is_a_checkpoint(filesystem: Any, path: Path, tmp_path: Path) -> None:
    filesystem.get(f"{path}/20", str(tmp_path / "copy"), recursive=True)
    loaded = ocp.load_checkpointables(tmp_path / "copy")["state"]
    assert np.array_equal(loaded["w"], np.full(4, 20))


def test_open_by_url(store: stepwell.Store, path: Path) -> None:
    store.save(7, {"w": np.arange(3)}).result()
    with fsspec.open(f"stepwell://{path}/7/_CHECKPOINT_METADATA", "rt") as file:
        assert "item_handlers" in file.read()
    fsspec.filesystem("stepwell").close()


def test_other_layouts(store: stepwell.Store, path: Path) -> None:
    store.save(7, {"w": np.arange(3)}).result()
    filesystem = StepwellFileSystem(export={"layout": "v0", "zarr": 2})
    assert filesystem.isfile(f"{path}/7/state/_METADATA")
    filesystem.close()


def test_a_step_that_is_replaced(filesystem: Any, store: stepwell.Store, path: Path,
                                 tmp_path: Path) -> None:
    assert not filesystem.exists(f"{path}/3/state/extra")
    before = filesystem.cat(f"{path}/3/state/_METADATA")
    store.save(3, {"v": np.ones((2, 2))}, if_exists="replace").result()
    assert filesystem.cat(f"{path}/3/state/_METADATA") != before
    assert len(os.listdir(tmp_path / "exports")) == 1
    filesystem.close()
    assert os.listdir(tmp_path / "exports") == []
    assert filesystem.isfile(f"{path}/3/state/_METADATA")  # it may be used again


def test_what_is_refused(filesystem: Any, path: Path, tmp_path: Path) -> None:
    with pytest.raises(stepwell.PermissionDeniedError, match="read only"):
        filesystem.open(f"{path}/3/new", "wb")
    with pytest.raises(FileNotFoundError, match="not in a store"):
        filesystem.ls(tmp_path)
    for name in ("4", "x", "3/nothing"):
        with pytest.raises(FileNotFoundError):
            filesystem.cat(f"{path}/{name}")
    for name in ("", "3"):
        with pytest.raises(IsADirectoryError):
            filesystem.open(f"{path}/{name}")


def test_the_package_says_that_it_is_there() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    name, value = next(iter(project["entry-points"]["fsspec.specs"].items()))
    assert EntryPoint(name, value, "fsspec.specs").load() is StepwellFileSystem
    assert name == "stepwell"


def test_pieces_of_a_file(filesystem: Any, path: Path) -> None:
    name = f"{path}/3/_CHECKPOINT_METADATA"
    data = filesystem.cat_file(name)
    assert len(data) > 20
    for start, end in ((-3, None), (2, -4), (-9, -1), (5, None), (None, 7), (0, 0), (3, 9)):
        assert filesystem.cat_file(name, start=start, end=end) == data[start:end]
    assert filesystem.read_block(name, 4, 10) == data[4:14]
    assert filesystem.read_block(name, 0, None) == data
    colon = data.index(b":")
    assert filesystem.read_block(name, 0, colon, delimiter=b":") == data[:colon + 1]
    assert filesystem.tail(name, 5) == data[-5:] and filesystem.head(name, 5) == data[:5]
    with filesystem.open(name) as file:
        assert file.size == len(data)


def test_nothing_is_changed_in_silence(filesystem: Any, path: Path, tmp_path: Path) -> None:
    name = f"{path}/3/_CHECKPOINT_METADATA"
    for change in (lambda: filesystem.mkdir(f"{path}/3/new"),
                   lambda: filesystem.makedirs(f"{path}/3/new/other", exist_ok=True),
                   lambda: filesystem.makedirs(f"{path}/3"),
                   lambda: filesystem.rmdir(f"{path}/3"),
                   lambda: filesystem.rm(f"{path}/3", recursive=True),
                   lambda: filesystem.rm_file(name),
                   lambda: filesystem.touch(f"{path}/3/x"),
                   lambda: filesystem.pipe_file(f"{path}/3/x", b"x"),
                   lambda: filesystem.put_file(__file__, f"{path}/3/x"),
                   lambda: filesystem.cp_file(name, f"{path}/3/x"),
                   lambda: filesystem.mv(name, f"{path}/3/x")):
        with pytest.raises(stepwell.PermissionDeniedError, match="read only here"):
            change()
    filesystem.makedirs(f"{path}/3", exist_ok=True)
    assert filesystem.exists(name)
