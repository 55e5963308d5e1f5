# SPDX-License-Identifier: Apache-2.0
"""Commands that the program hands to the Python package: files of others, pushes, branches."""

import os
import pathlib
import sys

import equinox
import numpy as np
import pytest
import safetensors.numpy
from flax import serialization
from program import document, error, ok, parsed_document, run

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
    assert "it is a pushed run, whose URL is file:///" in failed("verify", tmp_path / "bucket",
                                                                 status=1)
    assert "change the step in the store" in failed("rm", tmp_path / "bucket", 3, status=1)
    ok("push", "--layout", "stepwell", store, 2, bucket)
    ok("push", "--layout", "stepwell", store, 3, bucket)
    ok("pull", "--step", 2, bucket, tmp_path / "other")
    with stepwell.open(tmp_path / "other", "r") as opened:
        assert opened.load(2)["w"].tolist() == [2.0] * 5


def test_places_that_are_not_what_they_seem(store: pathlib.Path, tmp_path: pathlib.Path,
                                            monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    for words in (["push", store, 1, "s3:/bucket/1"], ["push", "--follow", store, "s3:/bucket"],
                  ["pull", "s3:/bucket/1", tmp_path / "run"], ["cat", "s3:/bucket", 1, "w"]):
        assert "'s3://bucket" in failed(*words, status=2)
    assert sorted(path for path in tmp_path.rglob("*") if "run/" not in str(path)) == [
        path for path in before if "run/" not in str(path)]


@pytest.mark.parametrize("url", ["s3://bucket/run", "file:///tmp/run"])
def test_a_url_is_no_store(url: str) -> None:
    for words in (["show", url, 1], ["verify", url], ["stats", url], ["retention", url],
                  ["export", url, 1, "there"]):
        message = error(*words, status=2)
        assert f"`stepwell {words[0]}` takes a store, which is a directory" in message
        assert "`stepwell ls URL` lists the steps" in message and "`stepwell pull URL" in message
    for words in (["taint", url, 1, "bad"], ["untaint", url, 1], ["pin", url, 1],
                  ["rollback", url, "--to", 1]):
        message = error(*words, status=2)
        assert "takes a store, which is a directory" in message
        assert "change the step in the store that it was pushed from, and push it again" in message


def test_an_export_goes_to_a_path(store: pathlib.Path, tmp_path: pathlib.Path,
                                  monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    message = error("export", store, 1, "s3://bucket/run", status=2)
    assert "`stepwell export` takes a path of this machine" in message
    assert "`stepwell push` sends a step to a URL" in message
    assert "has one slash" in error("export", store, 1, "s3:/bucket/run", status=2)
    assert not list(tmp_path.glob("s3:*"))


def test_a_url_with_one_slash(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for words in (["ls"], ["show"], ["verify"], ["rm", 1], ["taint", 1, "bad"]):
        command, *others = words
        message = error(command, "s3:/bucket/run", *others, status=2)
        assert '"s3:/" has one slash, a URL has two: s3://...' in message
    assert 'file:///...' in error("show", "file:/tmp/run", status=2)
    assert list(tmp_path.iterdir()) == []


def python_of(tmp_path: pathlib.Path, package: str, text: str) -> None:
    (tmp_path / "packages" / package).mkdir(parents=True)
    (tmp_path / "packages" / package / "__init__.py").write_text(text)


@pytest.mark.parametrize(("package", "text", "reason"), [
    ("numpy", "raise ImportError('libblas is\\nnot there')", "ImportError: libblas is not there"),
    ("numpy", "raise AttributeError('half an upgrade')", "AttributeError: half an upgrade"),
    ("stepwell", "import nothing_of_this_name",
     "ModuleNotFoundError: No module named 'nothing_of_this_name'"),
])
def test_why_the_package_cannot_be_imported(store: pathlib.Path, tmp_path: pathlib.Path,
                                            monkeypatch: pytest.MonkeyPatch, package: str,
                                            text: str, reason: str) -> None:
    python_of(tmp_path, package, text)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}/packages:{os.environ['PYTHONPATH']}")
    message = failed("digest", store, status=1)
    assert message.count("\n") == 1
    version = ".".join(map(str, sys.version_info[:3]))
    assert f"{sys.executable} (Python {version}) cannot import ({reason})" in message
    document_ = run("digest", store, "--json")
    assert document_.returncode == 1 and reason in document_.stdout and not document_.stderr


def test_ctrl_c_while_the_package_is_imported(store: pathlib.Path, tmp_path: pathlib.Path,
                                              monkeypatch: pytest.MonkeyPatch) -> None:
    # NumPy's C code makes an ImportError of it.
    python_of(tmp_path, "numpy", "try: raise KeyboardInterrupt\n"
                                 "except KeyboardInterrupt as error: raise ImportError from error")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}/packages:{os.environ['PYTHONPATH']}")
    message = failed("digest", store, status=130)
    assert message == "stepwell: interrupted; the same again goes on where it was\n"
    (tmp_path / "packages/numpy/__init__.py").write_text("raise KeyboardInterrupt")
    report = run("digest", store, "--json")
    assert report.returncode == 130 and not report.stderr
    assert parsed_document(report.stdout)["error"]["code"] == "cancelled"


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
