# SPDX-License-Identifier: Apache-2.0
"""`stepwell mirror`: follows a store of another process, for Orbax's own readers."""

import os
import pathlib
import signal
import subprocess

import ml_dtypes
import numpy as np
import orbax.checkpoint as ocp
import pytest
import stepwell
from program import PROGRAM, document, error, ok, run


@pytest.fixture
def store(tmp_path: pathlib.Path) -> stepwell.Store:
    with stepwell.open(tmp_path / "run") as opened:
        for step in (1, 2):
            opened.save(step, {"w": np.full(3, step)}).result()
        yield opened


def start(*arguments: object) -> subprocess.Popen[str]:
    command = [str(PROGRAM), "mirror", *map(str, arguments)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_it_follows_until_it_is_stopped(
    store: stepwell.Store, tmp_path: pathlib.Path, stop: signal.Signals
) -> None:
    view = tmp_path / "view"
    with start(tmp_path / "run", view, "--interval", "0.01", "--step-digits", "4") as mirror:
        try:
            first = mirror.stdout.readline()
            assert "shows 2 steps" in first and "Ctrl-C" in first
            assert sorted(os.listdir(view)) == ["0001", "0002", "STEPWELL_VIEW"]
            assert "serves this view" in error("mirror", tmp_path / "run", view, status=5)
            store.save(30, {"w": np.full(3, 30)}).result()
            store.delete(1)
            while sorted(os.listdir(view)) != ["0002", "0030", "STEPWELL_VIEW"]:
                assert mirror.poll() is None
            options = ocp.CheckpointManagerOptions(step_format_fixed_length=4)
            with ocp.CheckpointManager(view, options=options) as manager:
                assert manager.all_steps() == [2, 30]
                item = ocp.args.Composite(state=ocp.args.StandardRestore())
                assert manager.restore(30, args=item)["state"]["w"].tolist() == [30, 30, 30]
            mirror.send_signal(stop)
            out, err = mirror.communicate(timeout=60)
            assert (mirror.returncode, err) == (0, "")
            assert "2 steps taken away" in out
            assert not view.exists()
        finally:
            mirror.kill()


def test_once(store: stepwell.Store, tmp_path: pathlib.Path) -> None:
    view = tmp_path / "view"
    report = document("mirror", tmp_path / "run", view, "--once", "--layout", "v0",
                      "--unnamed-default", "--step-prefix", "ckpt")
    assert (report["shown"], report["made"], report["path"]) == (2, 2, str(view))
    assert sorted(os.listdir(view)) == ["STEPWELL_VIEW", "ckpt_1", "ckpt_2"]
    store.delete(1)
    text = ok("mirror", tmp_path / "run", view, "--once", "--layout", "v0", "--unnamed-default",
              "--step-prefix", "ckpt")
    assert "shows 1 step;" in text
    with ocp.CheckpointManager(
        view, options=ocp.CheckpointManagerOptions(step_prefix="ckpt")
    ) as manager:
        assert manager.all_steps() == [2]
        assert manager.restore(2)["w"].tolist() == [2, 2, 2]
    store.save(5, {"w": 2**64}).result()
    result = run("mirror", tmp_path / "run", view, "--once")
    assert result.returncode == 0
    assert "1 step not shown" in result.stdout and "step 5" in result.stdout
    assert "step 5 is not shown" in result.stderr


def test_steps_that_orbax_cannot_hold_do_not_keep_it(
    store: stepwell.Store, tmp_path: pathlib.Path
) -> None:
    view = tmp_path / "view"
    for step in (3, 4, 5):
        store.save(step, {"loader": b"state"}).result()
    text = run("mirror", tmp_path / "run", view, "--once").stdout
    assert "shows 2 steps;" in text and "3 steps not shown" in text
    with start(tmp_path / "run", view) as mirror:
        try:
            mirror.stdout.readline()
            mirror.send_signal(signal.SIGTERM)
            mirror.communicate(timeout=60)
            assert mirror.returncode == 0
            assert not view.exists()
        finally:
            mirror.kill()


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_while_a_step_is_made(
    store: stepwell.Store, tmp_path: pathlib.Path, stop: signal.Signals
) -> None:
    for step in (3, 4, 5):  # every array is written anew
        store.save(step, {"w": np.zeros((4000, 4000), ml_dtypes.float8_e4m3)}).result()
    view = tmp_path / "view"
    with start(tmp_path / "run", view, "--once", "--on-unsupported", "widen") as mirror:
        try:
            while not (view / "STEPWELL_VIEW").exists():
                assert mirror.poll() is None
            mirror.send_signal(stop)
            mirror.communicate(timeout=60)
            assert not [name for name in os.listdir(view) if "tmp" in name]
        finally:
            mirror.kill()


def test_what_it_refuses(store: stepwell.Store, tmp_path: pathlib.Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis/main.tex").write_text("")
    assert "main.tex" in error("mirror", tmp_path / "run", tmp_path / "thesis", status=1)
    assert "no such directory" in error("mirror", tmp_path / "run", tmp_path / "a/b", status=2)
    error("mirror", tmp_path / "none", tmp_path / "view", status=3)
    error("mirror", tmp_path / "run", tmp_path / "view", "--layout", "v3", status=2)
    error("mirror", tmp_path / "run", tmp_path / "view", "--interval", "0", status=2)
    assert not (tmp_path / "view").exists()


def test_a_directory_that_is_taken_away_ends_it(
    store: stepwell.Store, tmp_path: pathlib.Path
) -> None:
    view = tmp_path / "view"
    with start(tmp_path / "run", view) as mirror:
        try:
            mirror.stdout.readline()
            (view / "STEPWELL_VIEW").unlink()
            out, err = mirror.communicate(timeout=60)
            assert mirror.returncode == 3
            assert "was removed" in err
            assert (view / "2/commit_success.txt").exists()
        finally:
            mirror.kill()
