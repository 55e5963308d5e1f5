# SPDX-License-Identifier: Apache-2.0
"""Messages name what the caller can do, in the caller's words; counts and articles are English."""

from __future__ import annotations

import os
import tempfile
import tomllib
from pathlib import Path

import jax
import numpy as np
import obstore
import pytest
from group_runs import run

import stepwell
from stepwell._remote.transfer import with_context
from stepwell._text import counted, with_article

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("make", [
    lambda path: stepwell.Store(path), lambda path: stepwell.Store(path, mode="r"),
    lambda path: stepwell.Store(path=path), lambda path: stepwell.Store(),
    lambda path: stepwell.Store(path, "r", None, 1.0, "shared")])
def test_a_store_that_is_constructed_says_open(path, make):
    with pytest.raises(stepwell.InvalidArgumentError, match=r"stepwell\.open\(path\) returns"):
        make(path)  # and nothing is reported when what was made goes away
    assert not path.exists()


def test_create_false_makes_nothing(tmp_path):
    typo = tmp_path / "typo" / "deep" / "run"
    for options in ({"create": False}, {"mode": "r"}, {"mode": "r", "create": False}):
        with pytest.raises(stepwell.StoreNotFoundError) as info:
            stepwell.open(typo, **options)
        assert str(info.value) == f"{typo}: there is no such store; there is no {tmp_path}/typo"
    with pytest.raises(stepwell.StoreNotFoundError, match="run: there is no such store$"):
        stepwell.open(tmp_path / "run", create=False)
    assert os.listdir(tmp_path) == []
    with pytest.raises(stepwell.InvalidArgumentError, match="create must be True or False"):
        stepwell.open(typo, create=0)
    with stepwell.open(typo) as store:
        store.save(1, {"x": 1}).result()
    with stepwell.open(typo, create=False) as store:
        assert store.load() == {"x": 1}


def test_create_false_of_several_processes(tmp_path):
    for process in run(tmp_path / "made", [["open", {}], ["save", {"step": 1}], ["close", {}]]):
        assert process.gave(0) == [] and process.status == 0
    # More processes than before make the parts that they need.
    for process in run(tmp_path / "made", [["open", {"create": False}], ["save", {"step": 2}],
                                           ["steps", {}], ["close", {}]], processes=4):
        assert process.gave(2) == [1, 2]
    for disks in ("shared", "local"):
        for process in run(tmp_path / "typo", [["open", {"create": False, "disks": disks}]]):
            assert "there is no such store" in process.lines[0]["text"], process
    assert not (tmp_path / "typo").exists()


def test_a_store_for_reading_says_how_to_change_it(store, path):
    store.save(1, {"x": 1}).result()
    with stepwell.open(path, mode="r") as reader:
        for change in (lambda: reader.save(2, {"x": 1}), lambda: reader.delete([1]),
                       lambda: reader.pin(1), reader.reclaim):
            with pytest.raises(stepwell.PermissionDeniedError, match='mode="a" to change it'):
                change()


def test_counts_and_articles(store):
    assert [counted(n, "leaf") for n in (0, 1, 2000)] == ["0 leaves", "1 leaf", "2,000 leaves"]
    assert [counted(n, "axis") for n in (1, 2)] == ["1 axis", "2 axes"]
    assert [with_article(noun) for noun in ("int64", "uint8", "array", "dict", "UserDict")] == [
        "an int64", "a uint8", "an array", "a dict", "a UserDict"]
    store.save(1, {"x": np.ones(3)}).result()
    assert repr(store.tree(1)).startswith("step 1: 1 leaf, 24 B")
    with pytest.raises(IndexError, match="the array has 1 axis, not 2"):
        store[1]["x"][0, 0]
    with pytest.raises(stepwell.InvalidArgumentError, match="is an array float64"):
        store.save(2, {"x": 1}, metrics={"a": np.ones(2)})
    with pytest.raises(stepwell.MismatchError, match="spec.*is of 2 axes, and the array has 1|"
                                                     "is of 2 axes, and the array has 1"):
        store.load(1, mesh={"a": 1}, specs=jax.sharding.PartitionSpec("a", None))


def test_a_step_that_is_there(store):
    store.save(1, {"x": 1}).result()
    with pytest.raises(stepwell.StepExistsError, match='if_exists "replace" replaces it'):
        store.save(1, {"x": 2})


def test_what_to_install_is_what_the_package_asks_for():
    """Stepwell is on no index: `pip install stepwell` would fetch a stranger's package."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        extras = tomllib.load(file)["project"]["optional-dependencies"]
    sources = {path: path.read_text() for path in (ROOT / "api").rglob("*")
               if path.suffix in (".py", ".cc", ".h", ".md")}
    for path, text in sources.items():
        assert path.suffix == ".md" or "pip install stepwell" not in text.replace("\n", " "), path
        assert "'stepwell[" not in text, path
    for extra, place in (("remote", "_remote/object_store.py"), ("orbax", "compat/orbax.py"),
                         ("orbax", "compat/_orbax_v1/base.py"), ("serve", "_program/serve.py"),
                         ("top", "_program/top.py")):
        text = (ROOT / "api/python/stepwell" / place).read_text()
        assert f"pip install '{extras[extra][-1]}'" in text, place


def said(error: Exception) -> stepwell.Error:
    with pytest.raises(stepwell.Error) as info, with_context("push of step 7"):
        raise error
    assert "\n" not in str(info.value) and info.value.__cause__ is error
    return info.value


def test_errors_of_object_stores_are_one_line():
    # Nothing listens there. The keys are given, so that nobody else is asked for some.
    place = obstore.store.S3Store(
        "bucket", endpoint="http://127.0.0.1:9", access_key_id="x", secret_access_key="x",
        region="us-east-1", client_options={"allow_http": True}, retry_config={"max_retries": 0})
    with pytest.raises(obstore.exceptions.BaseError) as refused:
        obstore.head(place, "a")
    assert len(str(refused.value).splitlines()) > 10
    error = said(refused.value)
    assert isinstance(error, stepwell.StorageError)
    assert str(error).startswith("push of step 7: GenericError: Generic S3 error: ")
    assert "(Connection refused); are the address and the region right?" in str(error)
    with pytest.raises(obstore.exceptions.BaseError) as unknown:
        obstore.store.from_url("s3://bucket", nonsense="1")
    assert isinstance(said(unknown.value), stepwell.InvalidArgumentError)
    denied = said(obstore.exceptions.UnauthenticatedError("no\n\nDebug source:\nUnauthorized {\n}"))
    assert isinstance(denied, stepwell.PermissionDeniedError)
    assert "UnauthenticatedError: no; look at the credentials, in storage_options" in str(denied)
    lacking = said(obstore.exceptions.GenericError(
        "token request: GET http://169.254.169.254/latest failed\n\nDebug source:\nX {\n}"))
    assert "no credentials were given" in str(lacking)
    plain = said(ValueError("two\nlines"))
    assert "ValueError: two lines; are" in str(plain)


def test_another_users_store_says_whose_it_is(run_python):
    """It needs root, to become another user."""
    with tempfile.TemporaryDirectory() as place:  # others may look into it
        os.chmod(place, 0o755)
        stepwell.open(f"{place}/run").close()
        stepwell.open(f"{place}/shared", private=False).close()
        status, out, err = run_python("""
import os, sys, stepwell
os.chdir(sys.argv[1])
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
for name, mode in (("run", "r"), ("run", "a"), ("shared", "a"), ("shared", "r")):
    try:
        stepwell.open(name, mode=mode).close()
        print("opened")
    except stepwell.PermissionDeniedError as error:
        print(error)
""", place)
    assert status == 0, err
    lines = out.splitlines()
    for line in lines[:2]:
        assert f"the store is user {os.getuid()}'s, mode 0700" in line
        assert "`chmod -R g+rX " in line and "private=False" in line
    assert "others may read it at most (open it for reading)" in lines[2]
    assert lines[3] == "opened"
