# SPDX-License-Identifier: Apache-2.0
"""Copies of steps in object stores that fail on the way, or are damaged there."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import stepwell
from s3_server import serving
from stepwell._remote import object_store, push
from transfers import Cut, Faulty, bucket, cut_at, equal, other, saved, small_files, state

pytestmark = [pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
              pytest.mark.filterwarnings("ignore:Sharding info not provided:UserWarning")]


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


def test_a_push_resumes_within_an_array(saved: stepwell.Store, other: stepwell.Store,
                                        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(push, "_DATA_FILE_BYTES", object_store.PART_BYTES)  # as it is
    array = np.random.default_rng(3).integers(0, 256, 50 << 20, np.uint8)
    saved.save(8, {"w": array}).result()
    with serving() as s3:
        s3.refuse = lambda key, part: sum("chunks-" in each for each in s3.objects) == 3
        with pytest.raises(stepwell.PermissionDeniedError):
            saved.push(8, s3.store(), prefix="p")
        kept = {key for key in s3.objects if "chunks-" in key}
        assert len(kept) == 3 and "p/stepwell.json" not in s3.objects
        s3.refuse = lambda key, part: False
        s3.received.clear()
        report = saved.push(8, s3.store(), prefix="p")
        assert not kept & {key for key, _, _ in s3.received}
        assert report.size_bytes > len(array) > report.sent_bytes
        assert all(part == 0 and size <= 8 << 20 for _, part, size in s3.received)
        other.pull(s3.store(), prefix="p")
    assert np.array_equal(other.load(8)["w"], array)


def test_a_large_file_starts_anew(saved: stepwell.Store, other: stepwell.Store, tmp_path: Path
                                  ) -> None:
    (tmp_path / "files").mkdir()
    large = np.random.default_rng(4).bytes(20 << 20)
    (tmp_path / "files" / "large").write_bytes(large)
    saved.save(8, {"a": 1}, items={"f": stepwell.Files(tmp_path / "files")}).result()
    with serving() as s3:
        s3.refuse = lambda key, part: part == 2
        with pytest.raises(stepwell.PermissionDeniedError, match="f/large"):
            saved.push(8, s3.store(), prefix="p")
        assert "p/f/large" not in s3.objects and not s3.uploads
        s3.refuse = lambda key, part: False
        saved.push(8, s3.store(), prefix="p")
        assert s3.objects["p/f/large"] == large
        other.pull(s3.store(), prefix="p")
    assert other.load(8, items=["f"])["f"]["large"] == large


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
