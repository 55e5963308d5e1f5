# SPDX-License-Identifier: Apache-2.0
"""Pushed runs that lost objects, or that have what killed processes and others left there; notes of
pushes that are damaged; and messages, which have no secrets."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import obstore.store
import pytest
import stepwell
from stepwell._remote import object_store, transfer
from s3_server import serving
from transfers import other

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def state(step: int) -> dict[str, Any]:
    return {"base": np.random.default_rng(0).standard_normal(100_000),
            "adapter": np.random.default_rng(step).standard_normal(1000)}


@pytest.fixture
def place() -> Any:
    return object_store.open_object_store(obstore.store.MemoryStore(), "p", None)


@pytest.fixture
def saved(store: stepwell.Store) -> stepwell.Store:
    for step in (1, 2, 3):
        store.save(step, state(step)).result()
    return store


def keys(place: Any, below: str) -> list[str]:
    return sorted(key for key in place.list() if key.startswith(below))


def pulled(other: stepwell.Store, place: Any, step: int) -> None:
    other.pull(place, step)
    for name, array in state(step).items():
        assert other.load(step)[name].tobytes() == array.tobytes()


@pytest.mark.parametrize("damage", ["missing", "short", "flipped"])
def test_what_the_place_lost_is_sent_again(saved: stepwell.Store, other: stepwell.Store, place: Any,
                                           damage: str) -> None:
    for step in (1, 2):
        saved.push(step, place, layout="stepwell")
    (shared,) = (key for key, size in place.list().items() if size > 500_000)
    data = bytearray(place.read(shared, 0, place.list()[shared]))
    if damage == "missing":
        place.delete(shared)
    elif damage == "short":
        place.put(shared, bytes(data[:-1]))
    else:  # only one that reads it sees that
        data[1000] ^= 1
        place.put(shared, bytes(data))
    verify = damage == "flipped"
    assert saved.push(3, place, layout="stepwell", verify=verify).sent_bytes > 500_000
    for step in (2, 1):  # it has a neighbour that is whole
        sent = saved.push(step, place, layout="stepwell", if_exists="replace", verify=verify)
        assert sent.sent_bytes < 100_000
    assert shared not in place.list()
    for step in (1, 2, 3):
        pulled(other, place, step)


def test_a_damaged_note_is_no_obstacle(saved: stepwell.Store, tmp_path: Path) -> None:
    note = f"{saved.path}.pushrun-{transfer.digest_of(str(tmp_path / 'run'))}"
    for step, line in enumerate(("z" * 32, "../" + "x" * 29, "é" * 16), 1):
        os.mkdir(note, 0o700)
        Path(note, "markers").write_text(f"{line}\n")
        assert saved.push(step, tmp_path / "run", layout="stepwell").step == step
        assert not os.path.exists(note)


def test_a_push_that_gives_up_knows_its_markers(saved: stepwell.Store, tmp_path: Path, place: Any,
                                                monkeypatch: pytest.MonkeyPatch) -> None:
    step = "steps/00000000000000000001"
    with stepwell.open(tmp_path / "twin") as twin:
        twin.save(1, state(9)).result()
        lists = []
        for each in (twin, saved):
            each.push(1, place, layout="stepwell", if_exists="replace")
            lists.append(bytes(place.read(step, 0, place.list()[step])))
    put = place.put

    def replaced(key: str, data: bytes) -> None:
        put(key, data)
        if key.startswith("pushing/"):
            put(step, lists[0])
            lists.reverse()

    monkeypatch.setattr(place, "put", replaced)
    with pytest.raises(stepwell.StorageError, match="20 times"):
        saved.push(2, place, layout="stepwell")
    monkeypatch.undo()
    assert keys(place, "pushing/")
    saved.push(2, place, layout="stepwell")
    assert not keys(place, "pushing/")


def test_numbers_that_no_store_has(saved: stepwell.Store, other: stepwell.Store, place: Any
                                   ) -> None:
    for step in (1, 2):
        saved.push(step, place, layout="stepwell")
    place.put(f"steps/{2**63:020d}", b"not of a push")
    pulled(other, place, 1)
    assert other.pull(place).step == 2
    assert [each.step for each in stepwell.pushed_steps(place)] == [1, 2]
    stepwell.delete_pushed(place, 1)


def test_what_killed_processes_left_in_a_directory_goes(saved: stepwell.Store, tmp_path: Path
                                                        ) -> None:
    run = tmp_path / "run"

    def leave(folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        (folder / ".stepwell-0123456789abcdef.stepwell-tmp").write_bytes(b"half")
        (folder / ".stepwell-0123456789abcdef.removed.orbax-checkpoint-tmp").write_bytes(b"whole")

    def left() -> list[str]:
        return [name for _, _, names in os.walk(run) for name in names if ".stepwell" in name]

    leave(run)  # of the very first write
    saved.push(1, run, layout="stepwell")
    assert not left()
    work: list[Callable[[], object]] = [lambda: saved.push(2, run, layout="stepwell"),
                                        lambda: stepwell.delete_pushed(run, 1)]
    for each in work:
        for folder in ("", "data", "steps", "pushing"):
            leave(run / folder)
        each()
        assert not left()


def test_two_that_begin_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "work")
    mkdir, lstat = os.mkdir, os.lstat

    def late(*arguments: Any) -> None:
        mkdir(*arguments)
        mkdir(*arguments)

    monkeypatch.setattr(os, "mkdir", late)
    with transfer.claimed(path, False):
        with pytest.raises(stepwell.LockedError), transfer.claimed(path, False):
            pass
    monkeypatch.undo()

    def gone(name: str) -> os.stat_result:
        os.rmdir(name)
        return lstat(name)

    monkeypatch.setattr(os, "lstat", gone)
    with pytest.raises(stepwell.LockedError), transfer.claimed(path, False):
        pass


def test_a_push_that_is_swept_keeps_the_step_that_it_was_to_replace(
        saved: stepwell.Store, other: stepwell.Store, place: Any, tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch) -> None:
    saved.push(1, place, layout="stepwell")
    put = place.put

    def swept(key: str, data: bytes) -> None:
        put(key, data)
        if key.startswith("data/"):
            stepwell.delete_pushed(place, None, sweep=True)

    monkeypatch.setattr(place, "put", swept)
    with stepwell.open(tmp_path / "twin") as twin:
        twin.save(1, state(9)).result()
        with pytest.raises(stepwell.StorageError, match="was swept"):
            twin.push(1, place, layout="stepwell", if_exists="replace")
    pulled(other, place, 1)


@pytest.mark.parametrize("layout", ["v1", "stepwell"])
def test_options_of_the_client(saved: stepwell.Store, other: stepwell.Store, layout: Any) -> None:
    with serving() as served:
        options = {"endpoint": served.url, "region": "x", "access_key_id": "x",
                   "secret_access_key": "x", "allow_http": "true", "timeout": "60s",
                   "client_options": {"user_agent": "a test"}}
        saved.push(1, "s3://bucket/run", layout=layout, storage_options=options)
        other.pull("s3://bucket/run", storage_options=options)
    assert other.load(1)["base"].tobytes() == state(1)["base"].tobytes()


@pytest.mark.parametrize(("url", "shown"), [
    ("http://me:SEKRET@127.0.0.1:9/run", "http://me:***@127.0.0.1:9/run"),
    ("http://127.0.0.1:9/run?sv=1&sig=SEKRET%2B&se=2", "http://127.0.0.1:9/run?sv=1&sig=***&se=2"),
    ("http://SEKRET@127.0.0.1:9/run", "http://***@127.0.0.1:9/run"),
    ("http://127.0.0.1:9/run?code=SEKRET&n=1", "http://127.0.0.1:9/run?code=***&n=1"),
    ("http://127.0.0.1:9/run?X-Amz-Signature=SEKRET", "127.0.0.1:9/run?X-Amz-Signature=***"),
    ("nowhere://me:SEKRET@host/run", "nowhere://me:***@host/run")])
@pytest.mark.parametrize("layout", ["v1", "stepwell"])
def test_messages_have_no_secrets(saved: stepwell.Store, url: str, shown: str, layout: Any) -> None:
    options = {} if url.startswith("nowhere") else {
        "client_options": {"allow_http": True}, "retry_config": {"max_retries": 0}}
    with pytest.raises(stepwell.Error) as raised:
        saved.push(1, url, layout=layout, storage_options=options)
    assert shown in str(raised.value)
    assert "SEKRET" not in "".join(traceback.format_exception(raised.value))
