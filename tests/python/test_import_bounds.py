# SPDX-License-Identifier: Apache-2.0
"""Files of other libraries that would take more than there is, or wait for ever."""

from __future__ import annotations

import io
import os
import resource
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import stepwell
from stepwell._interop import file_bounds

GiB = 1 << 30


def write_npz(path: Path, shape: tuple[int, ...], nbytes: int) -> None:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "|u1", "fortran_order": False, "shape": shape})
    with (zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive,
          archive.open("a.npy", "w", force_zip64=True) as file):
        file.write(header.getvalue())
        for at in range(0, nbytes, 1 << 24):
            file.write(bytes(min(1 << 24, nbytes - at)))


def test_an_archive_larger_than_memory_is_not_read(
        store: stepwell.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_npz(tmp_path / "bomb.npz", (GiB,), GiB)
    assert os.path.getsize(tmp_path / "bomb.npz") < 1_100_000
    monkeypatch.setattr(file_bounds, "memory_available", lambda: GiB // 2)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(stepwell.Error, match=r"takes 1,073,741,952 bytes .* 536,870,912 are") as at:
        store.import_checkpoint(tmp_path / "bomb.npz", 1)
    assert not isinstance(at.value, stepwell.CorruptionError)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10
    assert store.steps() == []


@pytest.mark.parametrize("suffix", [".safetensors", ".msgpack", ".eqx"])
def test_a_file_larger_than_memory_is_not_read(
        store: stepwell.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
        ) -> None:
    path = tmp_path / f"x{suffix}"
    if suffix == ".safetensors":
        safetensors.numpy.save_file({"a": np.zeros(1000)}, path)
    path.touch()
    os.truncate(path, GiB)
    monkeypatch.setattr(file_bounds, "memory_available", lambda: GiB // 2)
    like = None if suffix == ".safetensors" else {"a": np.zeros(3)}
    with pytest.raises(stepwell.Error, match="are available"):
        store.import_checkpoint(path, 1, like=like)


def test_a_header_that_says_more_than_there_is(store: stepwell.Store, tmp_path: Path) -> None:
    write_npz(tmp_path / "liar.npz", (1 << 50,), 100)
    with pytest.raises(stepwell.CorruptionError, match=r"a\.npy has 228 bytes"):
        store.import_checkpoint(tmp_path / "liar.npz", 1)


def test_memory_available_is_less_than_the_machine_has() -> None:
    with open("/proc/meminfo", encoding="ascii") as file:
        total = int(file.readline().split()[1]) << 10
    assert 0 < file_bounds.memory_available() < total


@pytest.mark.parametrize("name", ["x.npz", "x.safetensors", "x.msgpack", "x.eqx", "checkpoint_3",
                                  "link.npz"])
def test_a_fifo_is_refused_at_once(store: stepwell.Store, tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / name).symlink_to("fifo") if "link" in name else os.mkfifo(tmp_path / name)
    with pytest.raises(stepwell.InvalidArgumentError, match="nor a regular file"):
        store.import_checkpoint(tmp_path / name, 1, like={"a": np.zeros(1)})
    done = subprocess.run(
        [sys.executable, "-c", "import sys, stepwell; stepwell.open(sys.argv[1]).load_or({'a': 0}, "
         "source=sys.argv[2])", str(tmp_path / "new"), str(tmp_path / name)],
        capture_output=True, text=True, timeout=60, check=False)
    assert "nor a regular file" in done.stderr
