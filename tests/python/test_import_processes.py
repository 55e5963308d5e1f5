# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that several processes wrote together: one database made of theirs, or one directory
of files, each with the chunks of all."""

import pathlib
import socket

import numpy as np
import orbax_processes_save as written
import pytest

import forks
import stepwell

PROCESSES = 2
SCRIPT = pathlib.Path(written.__file__)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("processes")
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    children = [forks.start(SCRIPT, number, PROCESSES, port, folder) for number in range(PROCESSES)]
    outputs = [child.communicate(timeout=400) for child in children]
    assert [child.returncode for child in children] == [0] * PROCESSES, outputs
    return folder


@pytest.mark.parametrize("name, step", [("v1_1", 1), ("manager/2", 2), ("files_3", 3)])
def test_all_of_it_is_there(store: stepwell.Store, saved: pathlib.Path, name: str, step: int
                            ) -> None:
    source = saved / name
    if name != "files_3":  # what this is about: each process wrote chunks of its own
        assert len(list(source.rglob("ocdbt.process_*"))) == PROCESSES
    store.import_checkpoint(source).result()
    tree = store.load(step)
    assert tree["nested"] == {"count": 3}
    assert tree.keys() == {"nested", *written.SHAPES}
    for leaf in written.SHAPES:
        np.testing.assert_array_equal(tree[leaf], written.values(leaf))
        assert tree[leaf].dtype == np.float32
        sharding = store[step][leaf].sharding
        assert sharding["sharding_type"] == "NamedSharding"
        assert sharding["shape"] == [2, 2]
