# SPDX-License-Identifier: Apache-2.0
"""Copies of steps in object stores: there and back, refusals, commands."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import obstore
import obstore.store
import pytest
import stepwell
import tensorstore as ts
from orbax.checkpoint import v1 as ocp
from transfers import Faulty, bucket, equal, other, places, saved, small_files, state

pytestmark = [pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
              pytest.mark.filterwarnings("ignore:Sharding info not provided:UserWarning")]


KINDS = list(places(Path("/x")))[1:2] + ["obstore local", "path", "URL", "fsspec local",
                                         "fsspec memory", "fsspec URL"]


@pytest.mark.parametrize("kind", KINDS)
def test_there_and_back(saved: stepwell.Store, other: stepwell.Store, tmp_path: Path, kind: str
                        ) -> None:
    place, keywords = places(tmp_path)[kind]
    seen: list[tuple[int, int]] = []
    report = saved.push(7, place, verify=True, progress=lambda *at: seen.append(at), **keywords)
    assert report.step == 7 and report.sent_objects == report.objects > 10
    assert report.sent_bytes == report.size_bytes > 2_000_000
    assert seen[-1] == (report.size_bytes, report.size_bytes)
    pulled = other.pull(place, **keywords)
    assert (pulled.step, pulled.objects) == (7, report.objects)
    assert pulled.received_bytes == pulled.size_bytes == report.size_bytes
    equal(other.load(7), state())
    assert other[7].metadata == {"note": "ä"} and other[7].metrics == {"loss": 0.5}
    assert not [name for name in os.listdir(tmp_path) if ".pull-" in name or ".push-" in name]
    with pytest.raises(stepwell.StepExistsError, match="pushed step already"):
        saved.push(7, place, **keywords)
    assert saved.push(7, place, if_exists="skip", **keywords).skipped
    again = saved.push(7, place, if_exists="replace", **keywords)
    # The data is the same and stays; the database's names for it are new. A directory is made anew.
    assert 0 < again.sent_bytes < 200_000 or kind in ("path", "URL")
    with pytest.raises(stepwell.StepExistsError):
        other.pull(place, **keywords)
    assert other.pull(place, if_exists="skip", **keywords).skipped
    assert other.pull(place, 8, **keywords).step == 8
    other.pull(place, 8, if_exists="replace", **keywords)
    equal(other.load(8), state())


def test_what_is_in_the_bucket(saved: stepwell.Store, tmp_path: Path) -> None:
    place = tmp_path / "bucket" / "7"
    saved.push(7, place)
    assert not {*os.listdir(place)} & {"stepwell.push.json", "lock"}
    manifest = json.loads((place / "stepwell.json").read_text())
    assert (manifest["format"], manifest["version"], manifest["step"]) == ("stepwell-push", 1, 7)
    files = {str(path.relative_to(place)) for path in place.rglob("*") if path.is_file()}
    assert files == {*manifest["objects"], "stepwell.json"}
    for key, fields in manifest["objects"].items():
        data = (place / key).read_bytes()
        assert fields == {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    assert len([key for key in files if key.startswith("state/d/chunks-")]) >= 2
    assert (place / "commit_success.txt").read_text().endswith(f"successful to {place}")
    # The readers' own way to it.
    equal(ocp.load(place), state())
    assert ocp.metadata(place).custom_metadata == {"note": "ä"}
    array = ts.open({"driver": "zarr3", "kvstore": {
        "driver": "ocdbt", "base": f"file://{place}/state", "path": "params.w/"}}).result()
    equal(np.asarray(array.read().result()), state()["params"]["w"])


def test_pushed_with_the_v0_layout(saved: stepwell.Store, other: stepwell.Store, tmp_path: Path
                                   ) -> None:
    import orbax.checkpoint as ocp_v0

    root = tmp_path / "root"
    saved.push(7, root / "7", layout="v0", unnamed_default=True)
    with ocp_v0.CheckpointManager(root) as manager:
        assert manager.all_steps() == [7]
        restored = manager.restore(7, args=ocp_v0.args.StandardRestore())
    equal(np.asarray(restored["params"]["w"]), state()["params"]["w"])
    other.pull(root / "7")
    equal(other.load(7), state())


def test_items_and_options(saved: stepwell.Store, other: stepwell.Store) -> None:
    place = obstore.store.MemoryStore()
    saved.save(8, items={"params": {"w": np.ones(3)}, "a b#%é": {"raw": b"x", "n": 1}}).result()
    with pytest.raises(stepwell.InvalidArgumentError, match="raw"):
        saved.push(8, place)
    assert list(obstore.list(place).collect()) == []
    report = saved.push(8, place, on_unsupported="skip")
    assert [leaf.path for leaf in report.left_out] == ["a b#%é/raw"]
    other.pull(place, items=["params"])
    assert other.load(8, "params/w").tolist() == [1, 1, 1]
    with pytest.raises(stepwell.PathNotFoundError):
        other.load(8, "a b#%é/n")
    other.pull(place, 9)
    assert other.load(9, "a b#%é/n") == 1


# ---- refusals --------------------------------------------------------------------------------


def test_refusals(saved: stepwell.Store, other: stepwell.Store, tmp_path: Path) -> None:
    memory = obstore.store.MemoryStore()
    with pytest.raises(stepwell.CheckpointNotFoundError, match="nothing"):
        other.pull(memory)
    with pytest.raises(stepwell.CheckpointNotFoundError, match="does not exist"):
        other.pull(tmp_path / "nowhere")
    obstore.put(memory, "mine", b"1")
    with pytest.raises(stepwell.StepExistsError, match="1 objects that no push made.*'mine'"):
        saved.push(7, memory)
    with pytest.raises(stepwell.CheckpointNotFoundError, match="not a pushed step"):
        other.pull(memory)
    with pytest.raises(stepwell.StepNotFoundError):
        saved.push(8, memory, prefix="x")
    with pytest.raises(stepwell.InvalidArgumentError, match="not a URL"):
        saved.push(7, 5)
    with pytest.raises(stepwell.InvalidArgumentError, match="inside the store"):
        saved.push(7, Path(saved.path) / "segments" / "x")
    assert not (Path(saved.path) / "segments" / "x").exists()
    with pytest.raises(stepwell.InvalidArgumentError, match="storage_options"):
        saved.push(7, memory, storage_options={"region": "x"})
    with pytest.raises(stepwell.InvalidArgumentError, match="if_exists"):
        saved.push(7, memory, prefix="x", if_exists="maybe")  # type: ignore[arg-type]
    with pytest.raises(stepwell.Error, match="nosuch"):
        saved.push(7, "nosuch://bucket/x")
    with stepwell.open(saved.path, mode="r") as reader:
        reader.push(7, memory, prefix="from a reader")
        with pytest.raises(stepwell.PermissionDeniedError):
            reader.pull(memory, prefix="from a reader")
    newer = json.loads(bytes(obstore.get(memory, "from a reader/stepwell.json").bytes()))
    obstore.put(memory, "newer/stepwell.json", json.dumps({**newer, "version": 2}).encode())
    with pytest.raises(stepwell.FormatError, match="version 2"):
        other.pull(memory, prefix="newer")
    with pytest.raises(stepwell.PathNotFoundError):
        other.pull(memory, prefix="from a reader", items=["nosuch"])


def test_a_bucket_that_says_no(saved: stepwell.Store, bucket: Faulty) -> None:
    def refuse(number: int, key: str) -> None:
        raise obstore.exceptions.UnauthenticatedError("no token")

    bucket.on_put = refuse
    with pytest.raises(stepwell.PermissionDeniedError, match="push of step 7.*no token"):
        saved.push(7, bucket)


def test_the_same_push_twice(saved: stepwell.Store, bucket: Faulty) -> None:
    inside = threading.Event()
    go_on = threading.Event()

    def hold(number: int, key: str) -> None:
        inside.set()
        assert go_on.wait(30)

    bucket.on_put = hold
    first = threading.Thread(target=lambda: saved.push(7, bucket))
    first.start()
    assert inside.wait(30)
    try:
        with pytest.raises(stepwell.LockedError, match="under way"):
            saved.push(7, bucket, if_exists="replace")
    finally:
        go_on.set()
        first.join()


def test_without_the_libraries(saved: stepwell.Store, other: stepwell.Store, tmp_path: Path,
                               monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    saved.push(7, "memory://by-fsspec")
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(stepwell.Error, match="pip install 'obstore>="):
        saved.push(7, "s3://bucket/x")
    # A directory needs neither.
    saved.push(7, tmp_path / "new/pushed")
    other.pull(tmp_path / "new/pushed")
    equal(other.load(7), state())
    with pytest.raises(stepwell.InvalidArgumentError, match="storage_options are for URLs"):
        saved.push(7, tmp_path / "x", storage_options={"region": "x"})


def test_nothing_can_be_put_beside_the_store(saved: stepwell.Store, tmp_path: Path) -> None:
    memory = obstore.store.MemoryStore()
    (tmp_path / "file").write_text("")
    with pytest.raises(stepwell.StorageError, match="work_dir"):
        saved.push(7, memory, work_dir=tmp_path / "file")
    saved.push(7, memory, work_dir=tmp_path / "work")
    assert os.listdir(tmp_path / "work") == []


# ---- the commands -----------------------------------------------------------------------------


def program(*arguments: Any, **environment: str) -> subprocess.CompletedProcess[str]:
    path = Path(os.environ["STEPWELL_BUILD_DIR"]) / "api/cli/stepwell"
    return subprocess.run([path, *map(str, arguments)], capture_output=True, text=True, timeout=60,
                          env={**os.environ, "STEPWELL_PYTHON": sys.executable, **environment})


def test_commands(path: Path, tmp_path: Path) -> None:
    with stepwell.open(path) as store:
        store.save(7, state()).result()
    place = tmp_path / "bucket"
    result = program("push", path, "latest", place, "--verify")
    assert result.returncode == 0 and result.stderr == "", result
    assert result.stdout.startswith(f"pushed step 7 to {place}: ")
    result = program("push", path, "7", place, "--json")
    assert result.returncode == 1, result
    assert json.loads(result.stdout)["error"]["code"] == "already_exists"
    result = program("push", path, "7", place, "--json", "--if-exists", "replace")
    assert result.returncode == 0 and json.loads(result.stdout)["step"] == 7, result
    new = tmp_path / "new"
    result = program("pull", place, new, "--step", "9")
    assert result.returncode == 0 and result.stdout.startswith("pulled step 9 from"), result
    with stepwell.open(new, mode="r") as store:
        equal(store.load(9), state())
    for arguments, status in ((("pull", tmp_path / "no", new), 3), (("push", path, "8", place), 3),
                              (("push", path, "x", place), 2), (("push", path), 2),
                              (("push", path, "7", place, "--option", "x"), 2),
                              (("push", tmp_path / "no", "7", place), 3)):
        result = program(*arguments)
        assert result.returncode == status and result.stderr.startswith("stepwell: "), result
        assert result.stdout == ""
    data = next((place / "state" / "d").iterdir())
    data.write_bytes(data.read_bytes()[:-1])
    result = program("pull", place, new)
    assert result.returncode == 4 and "is damaged" in result.stderr, result


def test_the_program_without_the_package(path: Path, tmp_path: Path) -> None:
    bare = tmp_path / "python"  # without site-packages, where api/quickstart leaves the package
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "$@"\n')
    bare.chmod(0o755)
    result = program("push", path, "7", tmp_path, STEPWELL_PYTHON=str(bare))
    assert result.returncode == 1 and result.stdout == "", result
    assert "needs the Python package stepwell" in result.stderr
    assert "STEPWELL_PYTHON" in result.stderr
    result = program("push", path, "7", tmp_path, STEPWELL_PYTHON=str(tmp_path / "no"))
    assert result.returncode == 1 and "STEPWELL_PYTHON says which" in result.stderr, result


def test_the_package_without_the_program(path: Path, tmp_path: Path) -> None:
    def run(*arguments: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-m", "stepwell", *map(str, arguments)],
                              capture_output=True, text=True, timeout=60)

    with stepwell.open(path) as store:
        store.save(7, {"w": np.ones(3)}).result()
    result = run("push", path, 7, tmp_path / "bucket")
    assert result.returncode == 0, result
    result = run("stats", path)  # it is the program's
    assert result.returncode == 2 and "invalid choice: 'stats'" in result.stderr
    assert run("--help").returncode == 0
