# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C and SIGTERM during `stepwell export` and `stepwell import`: nothing half done stays."""

import os
import pathlib
import signal
import subprocess

import numpy as np
import pytest
import stepwell
from program import PROGRAM

ARRAYS = 24  # of 8 MiB: several looks at the signals


def start(*arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen([str(PROGRAM), *map(str, arguments)], stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("signals") / "run"
    data = np.random.default_rng(1).random((1024, 1024))
    with stepwell.open(path) as store:
        store.save(1, {f"w{i}": data for i in range(ARRAYS)}).result()
        store.export(1, path.parent / "orbax_1")
    return path


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("to", [["--mode", "copy"], ["--to", "npz"]])
def test_export(run: pathlib.Path, tmp_path: pathlib.Path, stop: signal.Signals,
                to: list[str]) -> None:
    cancelled = 0
    for attempt in range(20):
        place = tmp_path / f"x{attempt}"
        with start("export", run, 1, place, *to) as program:
            while program.poll() is None and not os.listdir(tmp_path):
                pass
            program.send_signal(stop)
            _, error = program.communicate(timeout=60)
        if program.returncode in (0, -stop):  # it was done before, or just about to end
            assert os.listdir(tmp_path) == [place.name]
            subprocess.run(["rm", "-r", place], check=True)
            continue
        assert program.returncode == 1 and "cancelled" in error
        assert os.listdir(tmp_path) == []
        cancelled += 1
        if cancelled == 2:
            return
    assert cancelled > 0


def test_import(run: pathlib.Path, tmp_path: pathlib.Path) -> None:
    cancelled = 0
    for attempt in range(20):
        place = tmp_path / f"run{attempt}"
        with start("import", run.parent / "orbax_1", place) as program:
            while program.poll() is None and not (place / "LOCK").exists():
                pass
            program.send_signal(signal.SIGTERM)
            _, error = program.communicate(timeout=60)
        with stepwell.open(place, mode="r") as store:
            if program.returncode == 0:
                assert store.steps() == [1]
                continue
            assert store.steps() == []
        assert program.returncode == 1 and "cancelled" in error
        cancelled += 1
        if cancelled == 2:
            return
    assert cancelled > 0
