# SPDX-License-Identifier: Apache-2.0
"""Commands that the program hands to the Python package: files of others, pushes, branches."""

import pathlib
import sys

import equinox
import numpy as np
import pytest
import safetensors.numpy
from flax import serialization
from program import document, error, ok, run

import stepwell


@pytest.fixture(autouse=True)
def _python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPWELL_PYTHON", sys.executable)


@pytest.fixture
def store(tmp_path: pathlib.Path) -> pathlib.Path:
    with stepwell.open(tmp_path / "run") as opened:
        for step in (1, 2, 3):
            opened.save(step, {"w": np.full(5, float(step))}).result()
    return tmp_path / "run"


def failed(*arguments: object, status: int) -> str:
    result = run(*arguments)
    assert result.returncode == status, result
    assert result.stdout == ""
    return result.stderr


def test_files_of_other_libraries(tmp_path: pathlib.Path) -> None:
    store, tree = tmp_path / "run", {"p": {"k": np.arange(3.0)}}
    np.savez(tmp_path / "w-7.npz", a=np.arange(3))
    safetensors.numpy.save_file({"x/y": np.ones((2, 3), np.float32)}, tmp_path / "w_8.safetensors")
    (tmp_path / "m.msgpack").write_bytes(serialization.msgpack_serialize(tree))
    equinox.tree_serialise_leaves(tmp_path / "m.eqx", tree)
    assert ok("import", tmp_path / "w-7.npz", store).startswith("imported step 7, 24 B, from ")
    ok("import", tmp_path / "w_8.safetensors", store)
    assert "the name" in failed("import", tmp_path / "m.msgpack", store, status=2)
    ok("import", tmp_path / "m.msgpack", store, "--step", 9)
    assert "--like" in failed("import", tmp_path / "m.eqx", store, "--step", 10, status=2)
    ok("import", tmp_path / "m.eqx", store, "--step", 10, "--like", 9)
    (again,) = document("import", tmp_path / "w-7.npz", store, "--if-exists", "skip")["steps"]
    assert again["skipped"] is True and again["step"] == 7
    assert "already" in failed("import", tmp_path / "w-7.npz", store, status=1)
    assert "is a file" in failed("import", tmp_path / "w-7.npz", store, "--item", "a", status=2)
    assert "--like" in failed("import", tmp_path, store, "--like", 7, status=2)
    with stepwell.open(store, "r") as opened:
        assert opened.steps() == [7, 8, 9, 10]
        assert opened.load(7)["a"].tolist() == [0, 1, 2]
        assert opened.load(8)["x/y"].shape == (2, 3)
        for step in (9, 10):
            assert opened.load(step)["p"]["k"].tolist() == [0.0, 1.0, 2.0]


def test_what_was_pushed(store: pathlib.Path, tmp_path: pathlib.Path) -> None:
    bucket = f"file://{tmp_path}/bucket"
    for step in (1, 3, 2):
        ok("push", store, step, f"{bucket}/run/{step}")
    lines = ok("ls", bucket).splitlines()
    assert lines[0].split() == ["STEP", "OBJECTS", "SIZE", "URL"]
    assert [line.split()[0] for line in lines[1:]] == ["1", "2", "3"]
    assert [each["step"] for each in document("ls", bucket)["steps"]] == [1, 2, 3]
    assert [each["step"] for each in document("ls", bucket, "-n", 2)["steps"]] == [2, 3]
    assert ok("ls", tmp_path / "bucket/run").splitlines()[0] == lines[0]  # a directory
    assert [each["step"] for each in document("ls", tmp_path / "bucket/run/3")["steps"]] == [3]
    result = run("ls", "memory://nothing")
    assert result.returncode == 0 and "no step was pushed" in result.stderr
    assert ok("pull", f"{bucket}/run", tmp_path / "other").startswith("pulled step 3 ")
    with stepwell.open(tmp_path / "other", "r") as opened:
        assert opened.load(3)["w"].tolist() == [3.0] * 5
    ok("push", store, 3, f"{bucket}/of another run/x")
    assert "of another run/x and " in error("pull", bucket, tmp_path / "more", status=2)


def test_a_pushed_run(store: pathlib.Path, tmp_path: pathlib.Path) -> None:
    bucket = f"file://{tmp_path}/bucket"
    for step in (1, "latest", 2):
        assert "pushed step" in ok("push", "--layout", "stepwell", store, step, bucket)
    assert [each["step"] for each in document("ls", bucket)["steps"]] == [1, 2, 3]
    assert [each["step"] for each in document("ls", tmp_path / "bucket")["steps"]] == [1, 2, 3]
    assert "for Orbax checkpoints" in failed("push", "--layout", "stepwell", "--leaves", "jax",
                                             store, 1, bucket, status=2)
    assert ok("rm", bucket, 1, "latest").startswith(f"deleted step 1 of {tmp_path}/bucket: ")
    assert document("rm", "--sweep", bucket, 2)["steps"] == [2]
    assert "no step 2" in failed("rm", bucket, 2, status=3)
    assert "pushed runs" in failed("rm", "--sweep", store, 2, status=2)
    assert "this is a pushed run" in failed("rm", "--dry-run", bucket, 2, status=2)
    ok("push", "--layout", "stepwell", store, 2, bucket)
    ok("push", "--layout", "stepwell", store, 3, bucket)
    ok("pull", "--step", 2, bucket, tmp_path / "other")
    with stepwell.open(tmp_path / "other", "r") as opened:
        assert opened.load(2)["w"].tolist() == [2.0] * 5


def test_branches(store: pathlib.Path, tmp_path: pathlib.Path) -> None:
    assert ok("branches", store) == ""
    path = store / "branches/colder"
    assert ok("branch", store, "colder", "--step", 2) == f"{path}\n"
    assert document("branch", store, "all")["path"] == str(store / "branches/all")
    assert ok("branches", store) == "all\ncolder\n"
    assert document("branches", store)["branches"] == ["all", "colder"]
    assert [each["step"] for each in document("ls", path)["steps"]] == [1, 2]
    assert "already" in failed("branch", store, "colder", status=1)
    assert "no step 9" in failed("branch", store, "late", "--step", 9, status=3)
    assert "nowhere" in failed("branch", tmp_path / "nowhere", "x", status=3)
    assert not (tmp_path / "nowhere").exists()
    assert "name has letters" in failed("branch", store, "../x", status=2)
    with stepwell.open(store):
        assert "locked" in failed("branch", store, "x", status=5)
        assert ok("branches", store) == "all\ncolder\n"
