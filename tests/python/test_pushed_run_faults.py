# SPDX-License-Identifier: Apache-2.0
"""Pushed runs whose calls fail, and runs that are damaged or forged."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import obstore.store
import pytest
import stepwell
from stepwell import _stepwell
from stepwell._remote import object_store
from transfers import other

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


class Cut(Exception):
    pass


class Wire:
    """A bucket whose k-th call fails before it has done anything, or after, and those after it if
    it is cut."""

    def __init__(self) -> None:
        self._inner = object_store.open_object_store(obstore.store.MemoryStore(), "p", None)
        self.url = "a bucket"
        self.calls = 0
        self.fails: Callable[[int], bool] = lambda call: False
        self.fails_after = False
        self.sent: list[str] = []

    def _call(self, name: str, *arguments: Any) -> Any:
        self.calls += 1
        fails = self.fails(self.calls)
        if fails and not self.fails_after:
            raise Cut("the wire was cut")
        result = getattr(self._inner, name)(*arguments)
        if name == "put":
            self.sent.append(arguments[0])
        if fails:
            raise Cut("the wire was cut")
        return result

    def put(self, key: str, data: bytes) -> None:
        self._call("put", key, data)

    def put_file(self, key: str, path: str) -> None:
        self._call("put_file", key, path)

    def delete(self, key: str) -> None:
        self._call("delete", key)

    def read(self, key: str, start: int, length: int) -> bytes:
        return bytes(self._call("read", key, start, length))

    def size(self, key: str) -> int | None:
        return self._call("size", key)

    def list(self) -> dict[str, int]:
        return self._call("list")

    def damage(self, key: str, change: Callable[[bytearray], object]) -> None:
        data = bytearray(self._inner.read(key, 0, self._inner.size(key) or 0))
        change(data)
        self._inner.put(key, bytes(data))

    def objects(self) -> dict[str, bytes]:
        return {key: bytes(self._inner.read(key, 0, size))
                for key, size in self._inner.list().items()}

    def reset(self, objects: dict[str, bytes]) -> None:
        for key in self._inner.list().keys() - objects.keys():
            self._inner.delete(key)
        for key, data in objects.items():
            self._inner.put(key, data)
        self.calls = 0

    def whole(self) -> None:
        """Every list has what it names."""
        there = self._inner.list()
        for key in there:
            if key.startswith("steps/"):
                head = _stepwell.pushed_head(bytes(self._inner.read(key, 0, there[key])))
                for each in head.objects:
                    assert there[f"data/{each.name}"] == each.size_bytes


@pytest.fixture
def wire() -> Wire:
    return Wire()


def state(step: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    w = rng.standard_normal(3 << 20).astype(ml_dtypes.bfloat16)
    w[step::997] = step
    return {"w": w, "fresh": np.random.default_rng(step).standard_normal(1000), "n": step}


def equal(one: Any, two: Any) -> None:
    assert one.keys() == two.keys()
    for key in one:
        assert np.asarray(one[key]).tobytes() == np.asarray(two[key]).tobytes()


@pytest.fixture(params=[False, True])
def saved(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    with stepwell.open(tmp_path / "saved", delta=request.param) as store:
        for step in range(1, 5):
            store.save(step, state(step)).result()
        yield store


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("stays_cut", [False, True])
def test_every_call_of_a_push_fails(saved: stepwell.Store, tmp_path: Path, wire: Wire, after: bool,
                                    stays_cut: bool) -> None:
    saved.push(1, wire, layout="stepwell")
    before = wire.objects()
    wire.fails_after = after
    at, failed = 1, True
    while failed:
        wire.reset(before)
        wire.fails = (lambda call: call >= at) if stays_cut else (lambda call: call == at)
        failed = False
        try:
            saved.push(2, wire, layout="stepwell")
        except stepwell.StorageError as error:
            assert "the wire was cut" in str(error)
            failed = True
        wire.fails = lambda call: False
        wire.whole()
        if failed:  # again
            saved.push(2, wire, layout="stepwell", if_exists="replace")
            wire.whole()
        there = wire.objects()
        assert not [key for key in there if key.startswith("pushing/")]
        assert not stepwell.delete_pushed(wire, None).objects
        assert not [name for name in os.listdir(tmp_path) if "pushrun" in name]
        at += 1
    assert at > 8
    with stepwell.open(tmp_path / "other") as other:
        for step in (2, 1):
            other.pull(wire, step)
            equal(other.load(step), state(step))


def test_a_push_goes_on_where_it_was(tmp_path: Path, wire: Wire, other: stepwell.Store) -> None:
    with stepwell.open(tmp_path / "store", codec="raw") as store:
        array = np.random.default_rng(1).standard_normal((6, 1 << 20))  # 48 MiB: 6 objects
        store.save(1, {"w": array}).result()
        at_list = "steps/00000000000000000001"

        def put(key: str, data: bytes, put: Any = wire.put) -> None:
            if key == at_list:
                raise Cut("the wire was cut")
            put(key, data)

        wire.put = put  # type: ignore[method-assign]
        with pytest.raises(stepwell.StorageError, match="cut"):
            store.push(1, wire, layout="stepwell")
        del wire.put  # type: ignore[method-assign]
        data = [key for key in wire.sent if key.startswith("data/")]
        assert len(data) >= 6
        # One of those that are there was lost meanwhile, and one is shorter.
        wire._inner.delete(data[0])
        wire._inner.put(data[1], b"short")
        wire.sent.clear()
        report = store.push(1, wire, layout="stepwell")
        assert sorted(key for key in wire.sent if key.startswith("data/")) == sorted(data[:2])
        assert report.sent_bytes < array.nbytes // 2
        # What another cut push left goes with it, too; a damaged object is found by verify.
        wire.sent.clear()
        wire._inner.delete(at_list)
        stepwell.delete_pushed(wire, None)
        assert not [key for key in wire._inner.list() if key.startswith("data/")]
        assert store.push(1, wire, layout="stepwell", verify=True).sent_bytes > array.nbytes
    other.pull(wire)
    assert np.array_equal(other.load(1)["w"], array)


def test_a_cut_push_that_nobody_calls_again(saved: stepwell.Store, wire: Wire,
                                            other: stepwell.Store, tmp_path: Path) -> None:
    saved.push(1, wire, layout="stepwell")
    puts = 0

    def put(key: str, data: bytes, put: Any = wire.put) -> None:
        nonlocal puts
        puts += 1
        if puts > 2:
            raise Cut("the wire was cut")
        put(key, data)

    wire.put = put  # type: ignore[method-assign]
    with pytest.raises(stepwell.StorageError):
        saved.push(2, wire, layout="stepwell", work_dir=tmp_path / "gone")
    del wire.put  # type: ignore[method-assign]
    left = [key for key in wire._inner.list() if key.startswith(("pushing/", "data/"))]
    assert len(left) == 3
    stepwell.delete_pushed(wire, 1)  # its data is held
    assert {key for key in wire._inner.list() if key.startswith("data/")} < {*left}
    gone = stepwell.delete_pushed(wire, None, sweep=True)
    assert gone.step is None and gone.objects >= 1
    assert wire._inner.list().keys() == {"stepwell-run.json"}
    saved.push(3, wire, layout="stepwell")
    other.pull(wire)
    equal(other.load(3), state(3))


@pytest.mark.parametrize("stays_cut", [False, True])
def test_every_call_of_a_pull_fails(saved: stepwell.Store, wire: Wire, tmp_path: Path,
                                    stays_cut: bool) -> None:
    for step in (1, 3):
        saved.push(step, wire, layout="stepwell")
    with stepwell.open(tmp_path / "other") as other:
        other.pull(wire, 1)
        at = 1
        while True:
            wire.calls = 0
            wire.fails = (lambda call: call >= at) if stays_cut else (lambda call: call == at)
            try:
                other.pull(wire, 3)
                break
            except stepwell.StorageError as error:
                assert "the wire was cut" in str(error)
                assert other.latest == 1
            at += 1
        assert at > 4
        equal(other.load(3), state(3))
    assert not [name for name in os.listdir(tmp_path) if "pullrun" in name]


def test_a_pull_that_got_nothing_leaves_nothing(saved: stepwell.Store, wire: Wire, tmp_path: Path
                                                ) -> None:
    saved.push(1, wire, layout="stepwell")
    before = os.listdir(tmp_path)
    with stepwell.open(tmp_path / "other") as other:
        with pytest.raises(stepwell.StepNotFoundError):
            other.pull(wire, 7)
        for key in data_keys(wire):
            wire._inner.delete(key)
        with pytest.raises(stepwell.CorruptionError, match="missing"):
            other.pull(wire, 1)
    assert sorted(os.listdir(tmp_path)) == sorted([*before, "other"])


def test_a_pull_goes_on_where_it_was(tmp_path: Path, wire: Wire, other: stepwell.Store) -> None:
    array = np.random.default_rng(1).standard_normal((6, 1 << 20))
    with stepwell.open(tmp_path / "store", codec="raw") as store:
        store.save(1, {"w": array}).result()
        store.push(1, wire, layout="stepwell")
    reads = 0
    last = max(key for key in wire._inner.list() if key.startswith("data/"))
    wire_read = wire.read

    def read(key: str, start: int, length: int) -> bytes:
        if key == last:
            raise Cut("the wire was cut")
        return wire_read(key, start, length)

    wire.read = read  # type: ignore[method-assign]
    with pytest.raises(stepwell.StorageError, match="cut"):
        other.pull(wire)
    del wire.read  # type: ignore[method-assign]
    (kept,) = [name for name in os.listdir(tmp_path) if "pullrun" in name]
    files = sorted(name for name in os.listdir(tmp_path / kept) if "." in name)
    with open(tmp_path / kept / files[0], "r+b") as file:  # rot of what was kept
        file.seek(100)
        file.write(b"\0\1\2\3")
    report = other.pull(wire)
    assert report.received_bytes < array.nbytes - (len(files) - 2) * (7 << 20)
    assert np.array_equal(other.load(1)["w"], array) and not reads


def test_delete_fails_anywhere(saved: stepwell.Store, wire: Wire, other: stepwell.Store) -> None:
    for step in range(1, 5):
        saved.push(step, wire, layout="stepwell")
    at = 1
    while True:
        wire.calls = 0
        wire.fails = lambda call: call == at
        try:
            stepwell.delete_pushed(wire, 2)
            break
        except stepwell.StepNotFoundError:  # an earlier try got so far
            wire.fails = lambda call: call == at
            try:
                wire.calls = 0
                stepwell.delete_pushed(wire, None)
                if wire.calls < at:
                    break
            except stepwell.StorageError:
                pass
        except stepwell.StorageError as error:
            assert "the wire was cut" in str(error)
        wire.fails = lambda call: False
        wire.whole()
        at += 1
    wire.fails = lambda call: False
    stepwell.delete_pushed(wire, None)
    for step in (1, 3, 4):
        other.pull(wire, step)
        equal(other.load(step), state(step))


# ---- damage -------------------------------------------------------------------------------------


def data_keys(wire: Wire) -> list[str]:
    return sorted(key for key in wire._inner.list() if key.startswith("data/"))


def test_damaged_data(saved: stepwell.Store, wire: Wire, other: stepwell.Store) -> None:
    saved.push(2, wire, layout="stepwell")
    (key,) = data_keys(wire)
    original = bytes(wire._inner.read(key, 0, wire._inner.size(key) or 0))
    for change in (lambda data: data.__setitem__(len(data) // 2, data[len(data) // 2] ^ 1),
                   lambda data: data.__delitem__(slice(len(data) // 2, None)),
                   lambda data: data.clear()):
        wire.damage(key, change)
        with pytest.raises(stepwell.CorruptionError, match=re.escape(key)):
            other.pull(wire)
        wire._inner.put(key, original)
    wire._inner.delete(key)
    with pytest.raises(stepwell.CorruptionError, match="is missing"):
        other.pull(wire)
    assert other.latest is None
    wire._inner.put(key, original)
    other.pull(wire)
    equal(other.load(2), state(2))


def test_a_damaged_list(saved: stepwell.Store, wire: Wire, other: stepwell.Store) -> None:
    for step in (1, 2):
        saved.push(step, wire, layout="stepwell")
    key = "steps/00000000000000000002"
    size = wire._inner.size(key) or 0
    original = bytes(wire._inner.read(key, 0, size))
    for place in [*range(0, 80, 3), size // 3, size // 2, size - 1]:
        if 68 <= place < 72:  # reserved
            continue
        wire.damage(key, lambda data, place=place: data.__setitem__(place, data[place] ^ 0x40))
        with pytest.raises((stepwell.CorruptionError, stepwell.FormatError),
                           match="0000000002"):
            other.pull(wire, 2)
        wire._inner.put(key, original)
    wire.damage(key, lambda data: data.__delitem__(slice(100, None)))
    with pytest.raises(stepwell.CorruptionError):
        other.pull(wire, 2)
    # It names nobody knows what, so nothing but it can go.
    data = data_keys(wire)
    with pytest.raises(stepwell.CorruptionError, match="no data was deleted"):
        stepwell.delete_pushed(wire, 1)
    assert data_keys(wire) == data
    assert saved.push(3, wire, layout="stepwell").step == 3  # is no obstacle to others
    stepwell.delete_pushed(wire, 2)
    other.pull(wire)
    equal(other.load(3), state(3))
    # Of another step, under this name.
    wire._inner.put("steps/00000000000000000009", original)
    with pytest.raises(stepwell.CorruptionError, match="the list of step 2"):
        other.pull(wire, 9)


def test_newer_versions(saved: stepwell.Store, wire: Wire, other: stepwell.Store) -> None:
    saved.push(1, wire, layout="stepwell")
    key = "steps/00000000000000000001"

    def newer(data: bytearray) -> None:
        data[8] = 2
        data[64:68] = crc32c(bytes(data[:64])).to_bytes(4, "little")

    wire.damage(key, newer)
    with pytest.raises(stepwell.FormatError, match="version 2"):
        other.pull(wire)
    wire._inner.put("stepwell-run.json", b'{"format": "stepwell-run", "version": 2}')
    for work in (lambda: other.pull(wire), lambda: saved.push(1, wire, layout="stepwell"),
                 lambda: stepwell.delete_pushed(wire, 1), lambda: stepwell.pushed_steps(wire)):
        with pytest.raises(stepwell.FormatError, match="version 2"):
            work()
    for bad in (b"{", b"[]", b"{}", b'{"format": "stepwell-run", "version": "1"}', b"x" * 100_000):
        wire._inner.put("stepwell-run.json", bad)
        with pytest.raises(stepwell.CorruptionError, match=r"stepwell-run\.json is damaged"):
            other.pull(wire)


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def holder(store: Path, content: bytes) -> tuple[Path, bytearray, int]:
    """The segment that has these bytes, and where."""
    for segment in (store / "segments").iterdir():
        data = bytearray(segment.read_bytes())
        if (at := data.find(content)) >= 0:
            return segment, data, at
    raise AssertionError


def test_a_damaged_step_of_the_consumer_is_fetched(saved: stepwell.Store, wire: Wire,
                                                   tmp_path: Path) -> None:
    for step in (1, 2):
        saved.push(step, wire, layout="stepwell")
    with stepwell.open(tmp_path / "other") as other:
        other.pull(wire, 1)
    segment, data, at = holder(tmp_path / "other", state(1)["w"].tobytes()[4096:4200])
    data[at + 5] ^= 1
    segment.write_bytes(bytes(data))
    with stepwell.open(tmp_path / "other") as other:
        other.pull(wire, 2)
        equal(other.load(2), state(2))


def test_a_damaged_step_is_not_pushed(saved: stepwell.Store, wire: Wire, tmp_path: Path) -> None:
    saved.close()
    segment, data, at = holder(tmp_path / "saved", state(4)["fresh"].tobytes()[:64])
    data[at + 5] ^= 1
    segment.write_bytes(bytes(data))
    with stepwell.open(tmp_path / "saved", mode="r") as store:
        with pytest.raises(stepwell.CorruptionError, match=r"segments/.*: offset \d+"):
            store.push(4, wire, layout="stepwell")
        store.push(1, wire, layout="stepwell")
    wire.whole()


