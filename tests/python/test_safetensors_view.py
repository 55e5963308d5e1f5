# SPDX-License-Identifier: Apache-2.0
"""Store.safetensors_view: the file of the newest step, as servers read it."""

from __future__ import annotations

import gc
import logging
import os
import subprocess
import sys
import time
import threading
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy

import stepwell
from stepwell.rename import Transpose


def shown(path: Path) -> tuple[int, dict[str, np.ndarray]]:
    with safetensors.safe_open(path, framework="np") as opened:
        return int(opened.metadata()["stepwell.step"]), {
            name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118


def state(step: int) -> dict[str, Any]:
    return {"w": np.full((40, 50), step, np.float32), "n": np.arange(step)}


def test_the_file_shows_the_newest_step(store, tmp_path):
    file = tmp_path / "served.safetensors"
    view = store.safetensors_view(file)
    view.wait()
    assert view.step is None and not file.exists() and view.path == str(file)
    for step in (3, 7):
        store.save(step, state(step)).result()
        view.wait()
        number, arrays = shown(file)
        assert number == view.step == step and (arrays["w"] == step).all()
    store.save(7, state(8), if_exists="replace").result()
    view.wait()
    assert shown(file)[0] == 7 and (shown(file)[1]["w"] == 8).all()
    store.delete(7)
    view.wait()
    assert shown(file)[0] == view.step == 3
    assert file.stat().st_mode & 0o777 == 0o600 and os.listdir(tmp_path) != []
    view.close()
    view.close()
    assert shown(file)[0] == 3 and "closed" in repr(view)
    with pytest.raises(stepwell.Error, match="is closed"):
        view.wait()
    store.save(9, state(9)).result()
    assert shown(file)[0] == 3 and set(os.listdir(tmp_path)) == {"store", file.name}


def test_only_multiples_under_other_names_in_a_directory(store, tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    with store.safetensors_view(folder, every=10, item="params", dtype="bfloat16",
                                rename=[Transpose("w"), lambda name: f"model.{name}"]) as view:
        for step in (10, 11, 20, 25):
            store.save(step, items={"params": state(step), "opt": {"x": np.ones(3)}}).result()
        view.wait()
        file = folder / "model.safetensors"
        assert view.path == str(file)
        number, arrays = shown(file)
        assert number == 20 and set(arrays) == {"model.w", "model.n"}
        assert arrays["model.w"].shape == (50, 40)
        assert arrays["model.w"].dtype == ml_dtypes.bfloat16
        store.delete(20)
        view.wait()
        assert shown(file)[0] == 10
    assert set(os.listdir(folder)) == {"config.json", "model.safetensors"}


def test_a_reader_never_meets_anything_but_one_whole_step(store, tmp_path):
    file = tmp_path / "served.safetensors"
    view = store.safetensors_view(file)
    store.save(1, state(1)).result()
    view.wait()
    done = threading.Event()
    seen: list[int] = []
    wrong: list[Any] = []

    def read() -> None:
        while not done.is_set():
            try:
                number, arrays = shown(file)
                assert (arrays["w"] == number).all() and arrays["n"].shape == (number,)
                seen.append(number)
            except Exception as error:
                wrong.append(error)
                return

    reader = threading.Thread(target=read)
    reader.start()
    for step in range(2, 40):
        store.save(step, state(step)).result()
        if step % 5 == 0:
            view.wait()
    view.wait()
    done.set()
    reader.join()
    assert not wrong and seen == sorted(seen) and shown(file)[0] == 39


def test_it_ends_with_its_store_after_a_last_look(path, tmp_path):
    file = tmp_path / "served.safetensors"
    with stepwell.open(path) as store:
        view = store.safetensors_view(file)
        store.save(1, state(1))
    assert shown(file)[0] == 1 and "closed" in repr(view)
    store = stepwell.open(path)
    store.safetensors_view(file)
    store.save(2, state(2)).result()
    del store  # the view does not keep it open
    gc.collect()
    with stepwell.open(path):
        assert shown(file)[0] == 2


def test_a_view_in_another_process_than_the_one_that_saves(path, tmp_path):
    file = tmp_path / "served.safetensors"
    program = """if True:
        import sys, numpy, stepwell
        with stepwell.open(sys.argv[1]) as store:
            for step in (1, 2):
                store.save(step, {"w": numpy.full(9, step)}).result()
                print(step, flush=True)
                sys.stdin.readline()
    """
    with subprocess.Popen([sys.executable, "-c", program, path], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdin is not None and writer.stdout is not None
        assert writer.stdout.readline() == "1\n"
        with stepwell.open(path, mode="r") as store, store.safetensors_view(file) as view:
            for step in (1, 2):
                view.wait()
                assert shown(file)[0] == step
                writer.stdin.write("\n")
                writer.stdin.flush()
                if step == 1:
                    assert writer.stdout.readline() == "2\n"
        assert writer.wait() == 0


def test_what_cannot_be_shown_is_said_and_the_next_step_is(store, tmp_path, caplog):
    file = tmp_path / "served.safetensors"
    view = store.safetensors_view(file)
    store.save(1, state(1)).result()
    view.wait()
    with caplog.at_level(logging.ERROR, "stepwell"):
        store.save(2, {**state(2), "s": "text"}).result()
        with pytest.raises(stepwell.Error, match="step 2 is not in .*is a str"):
            view.wait()
    assert "step 2 is not shown" in caplog.text
    assert shown(file)[0] == view.step == 1
    store.save(3, state(3)).result()
    view.wait()
    assert shown(file)[0] == view.step == 3


def test_what_failed_is_tried_again(store, tmp_path, caplog):
    folder = tmp_path / "served"
    folder.mkdir()
    view = store.safetensors_view(folder / "model.safetensors")
    folder.rename(tmp_path / "elsewhere")  # as a file system that is not there for a while
    store.save(1, state(1)).result()
    with caplog.at_level(logging.ERROR, "stepwell"), pytest.raises(stepwell.Error, match="step 1"):
        view.wait()
    (tmp_path / "elsewhere").rename(folder)
    while view.step is None:
        time.sleep(0.01)
    view.wait()
    assert shown(view.path)[0] == 1
    assert caplog.text.count("is not shown") == 1


def test_what_is_refused(store, path, tmp_path):
    with pytest.raises(stepwell.InvalidArgumentError, match="inside the store"):
        store.safetensors_view(path / "x")
    with pytest.raises(stepwell.InvalidArgumentError, match="every must be at least 1"):
        store.safetensors_view(tmp_path / "x", every=0)
    with pytest.raises(stepwell.InvalidArgumentError, match="rename must be"):
        store.safetensors_view(tmp_path / "x", rename=3)
    with pytest.raises(stepwell.InvalidArgumentError, match="floating-point type"):
        store.safetensors_view(tmp_path / "x", dtype="int8")
    view = store.safetensors_view(tmp_path / "x")
    with pytest.raises(TypeError, match="cannot be copied or pickled"):
        __import__("copy").copy(view)
    store.close()
    with pytest.raises(stepwell.Error, match="is closed"):
        store.safetensors_view(tmp_path / "x")
