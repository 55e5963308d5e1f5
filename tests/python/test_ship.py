# SPDX-License-Identifier: Apache-2.0
"""push and pull, on obstore's local and in-memory stores and fsspec's file systems, with faults."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import obstore
import obstore.store
import pytest
import stepwell
import tensorstore as ts
from fsspec.implementations.memory import MemoryFileSystem
from orbax.checkpoint import v1 as ocp
from stepwell._remote import object_store, push

pytestmark = [pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
              pytest.mark.filterwarnings("ignore:Sharding info not provided:UserWarning")]


def state() -> dict[str, Any]:
    rng = np.random.default_rng(5)
    return {
        "params": {"w": rng.standard_normal((700, 1000)).astype(np.float32),
                   "b": np.arange(9).astype(ml_dtypes.bfloat16)},
        "opt": [jnp.zeros((300, 50)), {"count": 3, "name": "adam", "none": None}],
    }


def equal(one: Any, other: Any) -> None:
    """Trees as Orbax gives them back."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            equal(one[key], other[key])
    elif isinstance(one, list):
        assert len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            equal(left, right)
    elif isinstance(one, (np.ndarray, jax.Array)):
        left, right = np.asarray(one), np.asarray(other)
        assert (left.dtype, left.shape) == (right.dtype, right.shape)
        assert left.tobytes() == right.tobytes()
    else:
        assert one == other


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(push, "_DATA_FILE_BYTES", 1 << 20)


@pytest.fixture
def saved(store: stepwell.Store) -> stepwell.Store:
    store.save(7, state(), metadata={"note": "ä"}, metrics={"loss": 0.5}).result()
    return store


@pytest.fixture
def other(tmp_path: Path) -> Iterator[stepwell.Store]:
    with stepwell.open(tmp_path / "other") as opened:
        yield opened


Place = tuple[Any, dict[str, Any]]


def places(tmp_path: Path) -> dict[str, Place]:
    memory = MemoryFileSystem()
    root = f"/{tmp_path.name}"
    return {
        "obstore local": (obstore.store.LocalStore(tmp_path / "bucket", mkdir=True),
                          {"prefix": "run/7"}),
        "obstore memory": (obstore.store.MemoryStore(), {"prefix": "run/7"}),
        "path": (tmp_path / "bucket" / "run" / "7", {}),
        "URL": (f"file://{tmp_path}/bucket", {"prefix": "/run/7/"}),
        "fsspec local": (fsspec.filesystem("file"), {"prefix": f"{tmp_path}/bucket/run/7"}),
        "fsspec memory": (memory, {"prefix": f"{root}/run/7"}),
        "fsspec URL": (f"memory:/{root}/run/7", {}),
    }


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
    # The data is the same and stays; the database's names for it are new.
    assert 0 < again.sent_bytes < 200_000
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


# ---- faults ----------------------------------------------------------------------------------


class Cut(Exception):
    pass


class Faulty:
    """A bucket of which the k-th call of a kind does something else."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._lock = threading.Lock()
        self.url = inner.url
        self.puts = self.reads = 0
        self.put_keys: list[str] = []
        self.on_put: Callable[[int, str], None] = lambda number, key: None
        self.on_read: Callable[[int, str, bytes], bytes] = lambda number, key, data: data

    def _count(self, key: str) -> None:
        with self._lock:
            self.puts += 1
            self.put_keys.append(key)
            self.on_put(self.puts, key)

    def put(self, key: str, data: bytes) -> None:
        self._count(key)
        self._inner.put(key, data)

    def put_file(self, key: str, path: str) -> None:
        self._count(key)
        self._inner.put_file(key, path)

    def read(self, key: str, start: int, length: int) -> bytes:
        data = bytes(self._inner.read(key, start, length))
        with self._lock:
            self.reads += 1
            return self.on_read(self.reads, key, data)

    def size(self, key: str) -> int | None:
        return self._inner.size(key)

    def delete(self, key: str) -> None:
        self._inner.delete(key)

    def list(self) -> dict[str, int]:
        return self._inner.list()


@pytest.fixture(params=["obstore", "fsspec"])
def bucket(request: pytest.FixtureRequest, tmp_path: Path) -> Faulty:
    if request.param == "obstore":
        return Faulty(object_store.open_bucket(obstore.store.MemoryStore(), "p", None, True))
    return Faulty(object_store.open_bucket(fsspec.filesystem("file"), f"{tmp_path}/p", None, True))


def cut_at(put: int) -> Callable[[int, str], None]:
    def check(number: int, key: str) -> None:
        if number >= put:
            raise Cut("the wire was cut")

    return check


def test_a_push_cut_off_anywhere(saved: stepwell.Store, other: stepwell.Store, bucket: Faulty,
                                 tmp_path: Path) -> None:
    count, at = 0, 1
    while True:
        bucket.puts = 0
        bucket.on_put = cut_at(at)
        try:
            saved.push(7, bucket)
            break
        except stepwell.StorageError as error:
            assert "Cut: the wire was cut" in str(error) and bucket.url in str(error)
        count += 1
        there = bucket.list()
        assert "stepwell.json" not in there
        if there:
            with pytest.raises(stepwell.CheckpointNotFoundError, match="half pushed"):
                other.pull(bucket)
        else:
            with pytest.raises(stepwell.CheckpointNotFoundError, match="nothing"):
                other.pull(bucket)
        at += 1 + at // 2
    assert count >= 4
    assert not [name for name in os.listdir(tmp_path) if ".push-" in name]
    other.pull(bucket)
    equal(other.load(7), state())
    assert "stepwell.push.json" not in bucket.list()


def test_a_push_goes_on_where_it_was(saved: stepwell.Store, other: stepwell.Store, bucket: Faulty
                                     ) -> None:
    def at_the_end(number: int, key: str) -> None:
        if key == "stepwell.json":
            raise Cut("the wire was cut")

    bucket.on_put = at_the_end
    with pytest.raises(stepwell.StorageError):
        saved.push(7, bucket)
    whole = bucket.list()
    chunks = sorted(key for key in whole if "/d/chunks-" in key)
    assert len(chunks) >= 2
    # One of those that are there is shorter, one has another byte, one is not part of the step.
    bucket._inner.put(chunks[0], b"short")
    damaged = bytearray(bucket._inner.read(chunks[1], 0, whole[chunks[1]]))
    damaged[len(damaged) // 2] ^= 1
    bucket._inner.put(chunks[1], bytes(damaged))
    bucket._inner.put("foreign", b"somebody's")
    bucket.on_put = lambda number, key: None
    bucket.put_keys.clear()
    report = saved.push(7, bucket)
    assert {*chunks[:2]} <= {*bucket.put_keys} and not {*chunks[2:]} & {*bucket.put_keys}
    assert report.sent_objects == len(bucket.put_keys) - 2 < report.objects
    assert bucket._inner.read("foreign", 0, 10) == b"somebody's"
    other.pull(bucket)
    equal(other.load(7), state())


def test_replacing_is_never_half_visible(saved: stepwell.Store, other: stepwell.Store,
                                         bucket: Faulty) -> None:
    saved.push(7, bucket)
    saved.save(8, {"w": np.arange(5)}).result()
    bucket.on_put = cut_at(bucket.puts + 3)
    with pytest.raises(stepwell.StorageError):
        saved.push(8, bucket, if_exists="replace")
    assert "_CHECKPOINT_METADATA" not in bucket.list()
    with pytest.raises(stepwell.CheckpointNotFoundError, match="half pushed"):
        other.pull(bucket)
    bucket.on_put = lambda number, key: None
    saved.push(8, bucket)
    assert not [key for key in bucket.list() if "chunks-000001" in key]  # of step 7
    other.pull(bucket)
    equal(other.load(8), {"w": np.arange(5)})


def test_a_pull_cut_off_anywhere(saved: stepwell.Store, other: stepwell.Store, bucket: Faulty,
                                 tmp_path: Path) -> None:
    report = saved.push(7, bucket)

    def cut(number: int, key: str, data: bytes) -> bytes:
        if number >= limit:
            raise Cut("the wire was cut")
        return data

    bucket.on_read = cut
    cuts, received, limit = 0, 0, 1
    while True:
        bucket.reads = 0
        try:
            received = other.pull(bucket).received_bytes
            break
        except stepwell.StorageError as error:
            assert "Cut: the wire was cut" in str(error)
        assert other.steps() == []
        cuts += 1
        limit += 2
    assert 2 < cuts and received < report.size_bytes
    equal(other.load(7), state())
    assert not [name for name in os.listdir(tmp_path) if ".pull-" in name]


def test_what_a_pull_kept_is_verified(saved: stepwell.Store, other: stepwell.Store, bucket: Faulty,
                                      tmp_path: Path) -> None:
    saved.push(7, bucket)

    def cut(number: int, key: str, data: bytes) -> bytes:
        if "stepwell.json" not in key and number > 8:
            raise Cut("the wire was cut")
        return data

    bucket.on_read = cut
    with pytest.raises(stepwell.StorageError):
        other.pull(bucket)
    [kept] = tmp_path.glob("other.pull-*")
    files = [path for path in (kept / "checkpoint").rglob("*") if path.is_file()]
    assert files
    for path in files:
        path.write_bytes(b"x" * path.stat().st_size)
    (kept / "checkpoint" / "foreign").write_text("no part of it")
    bucket.on_read = lambda number, key, data: data
    other.pull(bucket)
    equal(other.load(7), state())


@pytest.mark.parametrize("what", ["a byte", "the end", "all"])
def test_damaged_objects(saved: stepwell.Store, other: stepwell.Store, bucket: Faulty,
                         tmp_path: Path, what: str) -> None:
    saved.push(7, bucket)
    for key in sorted(bucket.list()):
        if key in ("stepwell.json",):
            continue
        size = bucket.size(key) or 0
        data = bytearray(bucket._inner.read(key, 0, size) if size else b"")
        if not data and what != "all":
            continue
        if what == "all":
            bucket._inner.delete(key)
        elif what == "the end":
            bucket._inner.put(key, bytes(data[:-1]))
        else:
            damaged = bytearray(data)
            damaged[len(data) // 2] ^= 0x10
            bucket._inner.put(key, bytes(damaged))
        with pytest.raises(stepwell.CorruptionError) as error:
            other.pull(bucket, work_dir=tmp_path / key.replace("/", "-"))  # nothing kept is there
        assert f"{bucket.url}/{key}" in str(error.value)
        bucket._inner.put(key, bytes(data))
        if "chunks" in key:
            break
    assert other.steps() == []
    other.pull(bucket)
    equal(other.load(7), state())


def test_verify_finds_what_did_not_arrive(saved: stepwell.Store, other: stepwell.Store,
                                          bucket: Faulty) -> None:
    def flip(number: int, key: str, data: bytes) -> bytes:
        return bytes([data[0] ^ 1]) + data[1:] if "chunks-000000" in key else data

    bucket.on_read = flip
    with pytest.raises(stepwell.CorruptionError, match="chunks-000000 is not what was sent"):
        saved.push(7, bucket, verify=True)
    assert "stepwell.json" not in bucket.list()


@pytest.mark.parametrize("change", [
    b"", b"{", b"[]", b"{}", b'{"format": "other"}', b"\xff\xfe", b"[" * 100_000,
    {"step": -1}, {"step": "7"}, {"objects": []}, {"objects": {"../x": None}},
    {"objects": {"../x": {"size": 1, "sha256": "0" * 64}}},
    {"objects": {"/etc/x": {"size": 1, "sha256": "0" * 64}}},
    {"objects": {"a": {"size": 1, "sha256": "0" * 64}, "a/b": {"size": 1, "sha256": "0" * 64}}},
    {"objects": {"a": {"size": -1, "sha256": "0" * 64}}},
    {"objects": {"a": {"size": True, "sha256": "0" * 64}}},
    {"objects": {"a": {"size": 1, "sha256": "../" * 21 + "x"}}},
    {"objects": {"a\0": {"size": 1, "sha256": "0" * 64}}},
    {"objects": {"stepwell.json": {"size": 1, "sha256": "0" * 64}}}])
def test_damaged_manifests(saved: stepwell.Store, other: stepwell.Store, tmp_path: Path,
                           change: Any) -> None:
    place = tmp_path / "bucket"
    saved.push(7, place)
    manifest = place / "stepwell.json"
    if isinstance(change, bytes):
        manifest.write_bytes(change)
    else:
        manifest.write_text(json.dumps({**json.loads(manifest.read_text()), **change}))
    with pytest.raises(stepwell.CorruptionError, match="stepwell.json is damaged"):
        other.pull(place)
    assert sorted(os.listdir(tmp_path)) == ["bucket", "other", "store"]
    saved.push(7, place, if_exists="replace")
    other.pull(place)


# ---- refusals --------------------------------------------------------------------------------


def test_refusals(saved: stepwell.Store, other: stepwell.Store, tmp_path: Path) -> None:
    memory = obstore.store.MemoryStore()
    with pytest.raises(stepwell.CheckpointNotFoundError, match="nothing"):
        other.pull(memory)
    with pytest.raises(stepwell.CheckpointNotFoundError, match="no such directory"):
        other.pull(tmp_path / "nowhere")
    obstore.put(memory, "mine", b"1")
    with pytest.raises(stepwell.StepExistsError, match="1 objects that no push made.*'mine'"):
        saved.push(7, memory)
    with pytest.raises(stepwell.CheckpointNotFoundError, match="not a pushed step"):
        other.pull(memory)
    with pytest.raises(stepwell.StepNotFoundError):
        saved.push(8, memory, prefix="x")
    with pytest.raises(stepwell.InvalidArgumentError, match="no URL"):
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


def test_without_the_libraries(saved: stepwell.Store, tmp_path: Path,
                               monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    saved.push(7, tmp_path / "by fsspec")
    monkeypatch.setitem(sys.modules, "fsspec", None)
    for place in ("s3://bucket/x", tmp_path / "x"):
        with pytest.raises(stepwell.Error, match="pip install 'stepwell.remote"):
            saved.push(7, place)


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
    result = run("ls", path)  # it is the program's
    assert result.returncode == 2 and "invalid choice: 'ls'" in result.stderr
    assert run("--help").returncode == 0
