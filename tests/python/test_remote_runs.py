# SPDX-License-Identifier: Apache-2.0
"""Pushed runs, open where they lie."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import stepwell
from equality import same
from s3_server import FAULTS, Bucket, serving
from stepwell._remote import run_objects, run_open
from stepwell._remote.run_objects import RangeCache
from stepwell.errors import (CorruptionError, Error, InvalidArgumentError, PermissionDeniedError,
                             StepNotFoundError, StorageError, StoreNotFoundError)


class Place(NamedTuple):
    url: str
    options: dict[str, Any] | None

    def push(self, store: stepwell.Store, step: int, **options: Any) -> None:
        store.push(step, self.url, layout="stepwell", storage_options=self.options, **options)

    def open(self) -> stepwell.Store:
        return stepwell.open(self.url, mode="r", storage_options=self.options)


@pytest.fixture
def bucket() -> Iterator[Bucket]:
    with serving() as made:
        yield made


@pytest.fixture
def moto(tmp_path: Path) -> Iterator[Place]:
    """A server of S3 that others wrote. What it has outlives it."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    try:
        host, port = server.get_host_and_port()
        import urllib.request

        url = f"http://{host}:{port}"
        with urllib.request.urlopen(urllib.request.Request(f"{url}/bucket", method="PUT")):
            pass
        yield Place(f"s3://bucket/runs/{tmp_path.name}", {
            "endpoint": url, "region": "us-east-1", "access_key_id": "x", "secret_access_key": "x",
            "virtual_hosted_style_request": False, "allow_http": True})
    finally:
        server.stop()


@pytest.fixture(params=["directory", "file URL", "bucket", "moto"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "moto":
        made: Place = request.getfixturevalue("moto")
        return made
    if request.param == "bucket":
        return Place("s3://bucket/run", request.getfixturevalue("bucket").options)
    return Place(f"{'file://' if request.param == 'file URL' else ''}{tmp_path}/place", None)


@pytest.fixture
def s3(bucket: Bucket) -> Place:
    return Place("s3://bucket/run", bucket.options)


@pytest.fixture
def trainer(path: Path) -> Iterator[stepwell.Store]:
    with stepwell.open(path, delta=True) as opened:
        yield opened


def tree(step: int) -> dict[str, Any]:
    """Of each step a few elements are others."""
    rng = np.random.default_rng(0)
    big = rng.standard_normal((1200, 1000)).astype(ml_dtypes.bfloat16)
    for each in range(step + 1):
        rows = np.random.default_rng(each + 1).integers(0, 1200, 200)
        big[rows, rows % 1000] += ml_dtypes.bfloat16(1)
    return {"params": {"w": big, "same": rng.standard_normal(50_000)},
            "opt": [jnp.arange(6.0) * step, {"count": step, "name": "x" * 3000}]}


def is_tree(loaded: Any, step: int) -> bool:
    return stepwell.digest(loaded) == stepwell.digest(tree(step))


def save(store: stepwell.Store, step: int, **options: Any) -> None:
    store.save(step, tree(step), metrics={"loss": 1.0 / (step + 1)}, **options).result()


def test_a_run_is_read_as_the_store_that_it_was_pushed_from(trainer: stepwell.Store, place: Place
                                                            ) -> None:
    for step in range(4):
        save(trainer, step)
        place.push(trainer, step)
    with place.open() as run:
        assert run.read_only and run.steps() == [0, 1, 2, 3] and run.latest == 3 and 2 in run
        assert run.steps(metrics=True) == trainer.steps(metrics=True) and run.best("loss") == 3
        for step in range(4):
            assert same(run.load(step), trainer.load(step)) and is_tree(run.load(step), step)
            assert run.digest(step) == trainer.digest(step)
        assert same(run.load(2, "opt/1"), tree(2)["opt"][1])
        np.testing.assert_array_equal(run[-1]["params/w"][5:9, ::7],
                                      tree(3)["params"]["w"][5:9, ::7])
        assert [run.tree(3)[leaf].shape for leaf in ("params/w", "opt/0")] == [(1200, 1000), (6,)]
        held = run.load(1)
        updated = run.update(held, since=1, to=3)
        assert is_tree(updated, 3) and updated["params"]["w"] is held["params"]["w"]
        history = run.history("opt/0")
        assert list(history.steps) == [0, 1, 2, 3] and history.values.shape == (4, 6)
        assert run.verify().problems == [] and run.verify(2).steps == 1
        assert run.changed(1, 2) == trainer.changed(1, 2)
    with pytest.raises(Error, match="is closed"):
        run.steps()


def test_a_load_fetches_the_ranges_that_it_needs(trainer: stepwell.Store, s3: Place, bucket: Bucket
                                                 ) -> None:
    rng = np.random.default_rng(3)
    state = {"a": rng.standard_normal((4096, 1024)).astype(np.float32), "b": np.zeros(9)}
    trainer.save(0, state).result()
    state["a"][7, 7] += 1
    trainer.save(1, state).result()
    for step in (0, 1):
        s3.push(trainer, step)

    def fetched() -> int:
        return sum(size for key, size in bucket.asked if key.startswith("run/data/"))

    with s3.open() as run:
        bucket.asked.clear()
        np.testing.assert_array_equal(run[0]["a"][4000:4010], state["a"][4000:4010])
        assert 0 < fetched() < 3 << 20  # a chunk of 16 MiB
        bucket.asked.clear()
        np.testing.assert_array_equal(run[0]["a"][4000:4010], state["a"][4000:4010])
        assert fetched() == 0  # it is kept
        held = run.load(0)
        bucket.asked.clear()
        assert same(run.update(held, since=0), state)
        assert fetched() < 10_000
        bucket.asked.clear()
        assert same(run.load(1, "b"), state["b"])
        assert fetched() < 1000


def test_arrays_come_with_the_shardings_that_are_asked_for(run_jax: Any, path: Path,
                                                          tmp_path: Path) -> None:
    status, out, err = run_jax("""
import sys, jax, jax.numpy as jnp, numpy as np, stepwell
from jax.sharding import NamedSharding, PartitionSpec as P
mesh = jax.make_mesh((4, 2), ("x", "y"))
saved = jnp.arange(64.0).reshape(8, 8)
with stepwell.open(sys.argv[1], delta=True) as store:
    for step in range(2):
        array = jax.device_put(saved + step, NamedSharding(mesh, P("x", "y")))
        store.save(step, {"w": array}).result()
        store.push(step, sys.argv[2], layout="stepwell")
other = NamedSharding(mesh, P(None, "x"))
with stepwell.open(sys.argv[2], mode="r") as run:
    held = run.load(0, like={"w": jax.ShapeDtypeStruct((8, 8), jnp.float32, sharding=other)})
    assert held["w"].sharding == other
    held = run.update(held, since=0)
    assert held["w"].sharding == other
    np.testing.assert_array_equal(held["w"], saved + 1)
print("ok")
""", path, tmp_path / "place", XLA_FLAGS="--xla_force_host_platform_device_count=8")
    assert (status, out) == (0, "ok\n"), err


def test_a_follower_sees_every_change_of_the_newest_step(
        trainer: stepwell.Store, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_open, "_LOOK_SECONDS", 0.02)
    save(trainer, 1)
    place.push(trainer, 1)
    with place.open() as run:
        follower = run.follow(timeout=20)
        assert next(follower) == 1
        held = run.load(1)
        for step in (2, 3, 6):  # 6 lies behind steps that the place never had
            for number in range(trainer.latest + 1, step + 1):
                save(trainer, number)
            threading.Timer(0.05, place.push, (trainer, step)).start()
            since = follower.step
            assert next(follower) == step
            held = run.update(held, since=since, to=step)
            assert stepwell.digest(held) == trainer.digest(step)
        trainer.save(6, tree(7), if_exists="replace").result()
        place.push(trainer, 6, if_exists="replace")
        assert follower.deleted and next(follower) == 6
        assert is_tree(run.load(6), 7)
        trainer.taint(6, "diverged")
        place.push(trainer, 6, if_exists="replace")
        assert next(follower) == 3 and run.latest == 3
        assert run.tainted_steps() == {6: "diverged"} and is_tree(run.load(6), 7)
        stepwell.delete_pushed(place.url, 3, storage_options=place.options)
        assert follower.deleted and next(follower) == 2
        follower.close()
        assert list(follower) == []


def test_what_writes_or_copies_files_is_refused(trainer: stepwell.Store, place: Place,
                                                tmp_path: Path) -> None:
    save(trainer, 1)
    place.push(trainer, 1)
    with place.open() as run:
        for change in (lambda: run.save(2, tree(2)), lambda: run.delete(1), lambda: run.pin(1),
                       lambda: run.taint(1, "x"), run.reclaim, run.repair,
                       lambda: run.pull(place.url, storage_options=place.options)):
            with pytest.raises(PermissionDeniedError, match="open for reading only"):
                change()
        for copy in (lambda: run.export(1, tmp_path / "x"), lambda: run.push(1, tmp_path / "p"),
                     lambda: run.push_following(tmp_path / "p"),
                     lambda: run.orbax_view(tmp_path / "v")):
            with pytest.raises(Error, match="pull the step"):
                copy()
        with pytest.raises(StepNotFoundError, match="no step 7; the nearest step is the newest, 1"):
            run.load(7)
        run.export(1, tmp_path / "x.safetensors", to="safetensors", path="params")
        run.export_patch(1, 1, tmp_path / "p.safetensors", item="params")
        assert run.metadata is None and "every step is kept" in str(run.retention())
    assert not (tmp_path / "x").exists() and not (tmp_path / "p").exists()
    with pytest.raises(InvalidArgumentError, match="is a URL|storage_options|not a Stepwell"):
        stepwell.open("s3://bucket/run")
    with pytest.raises(InvalidArgumentError, match="keep and branch"):
        stepwell.open(place.url, mode="r", branch="b", storage_options=place.options)


def test_a_place_without_a_run_says_what_it_is(trainer: stepwell.Store, s3: Place, tmp_path: Path
                                               ) -> None:
    with pytest.raises(StoreNotFoundError, match="is not a pushed run"):
        s3.open()
    save(trainer, 1)
    trainer.push(1, "s3://bucket/one", storage_options=s3.options)
    with pytest.raises(InvalidArgumentError, match="is one step, pushed as an Orbax checkpoint"):
        stepwell.open("s3://bucket/one", mode="r", storage_options=s3.options)
    with pytest.raises(InvalidArgumentError, match="storage_options are for a pushed run"):
        stepwell.open(tmp_path / "x", mode="r", storage_options=s3.options)


def test_damage_is_named_and_a_deleted_step_is_not_damaged(trainer: stepwell.Store, s3: Place,
                                                          bucket: Bucket) -> None:
    for step in (1, 2):
        save(trainer, step)
        s3.push(trainer, step)
    with s3.open() as run:
        source = run[1]
        data = {key: value for key, value in bucket.objects.items() if "/data/" in key}
        bucket.objects.update({key: value[:-300] + b"x" * 300 for key, value in data.items()})
        with pytest.raises(CorruptionError, match=r"run/data/[0-9a-f-]{81}: offset \d+: leaf "):
            run.load(2)
        assert {problem.step for problem in run.verify().problems} == {1, 2}
        for key in data:
            del bucket.objects[key]
        with pytest.raises(CorruptionError, match=r"run/data/[0-9a-f-]{81} is not there"):
            run.load(2)
        bucket.objects.update(data)
        stepwell.delete_pushed(s3.url, 1, storage_options=s3.options)
        for key in data:
            bucket.objects.pop(key, None)
        with pytest.raises(StepNotFoundError, match="was deleted while it was being read"):
            source["params/w"][:]
    bucket.objects[f"run/steps/{2:020d}"] = bucket.objects[f"run/steps/{2:020d}"][:-9]
    with s3.open() as run, pytest.raises(CorruptionError, match="the list of step 2"):
        run.load(2)


def test_a_damaged_list_stops_nothing_of_the_other_steps(trainer: stepwell.Store, s3: Place,
                                                         bucket: Bucket) -> None:
    for step in (1, 2, 3):
        save(trainer, step)
        s3.push(trainer, step)
    lists = [key for key in bucket.objects if "/steps/" in key]
    whole = bucket.objects[lists[1]]
    # Cut, longer than it says, of another step, and damaged in its head and its header.
    for bad in (whole[:-9], whole + bytes(1 << 20), bucket.objects[lists[0]],
                whole[:100] + b"?" + whole[101:], whole[:20] + b"?" + whole[21:], whole[:10]):
        bucket.objects[lists[1]] = bad
        with s3.open() as run:
            assert run.steps() == [1, 2, 3] and run.latest == 3
            assert is_tree(run.load(1), 1) and is_tree(run.load(), 3)
            with pytest.raises(CorruptionError, match="the list of step 2|run/steps/0*2: "):
                run.load(2)
            assert {problem.step for problem in run.verify().problems} == {2}
            assert run.verify().steps == 2


def test_a_place_is_a_run_whatever_its_name(path: Path, trainer: stepwell.Store, tmp_path: Path
                                            ) -> None:
    save(trainer, 1)
    for name in (b"bytes-\xff", "spaces and #"):
        directory = os.fsdecode(os.path.join(os.fsencode(tmp_path), os.fsencode(name)))
        trainer.push(1, directory, layout="stepwell")
        with stepwell.open(os.fsencode(directory), mode="r") as run:
            assert run.steps() == [1] and is_tree(run.load(), 1)
    with stepwell.open(f"file://localhost{tmp_path}/spaces and #", mode="r") as run:
        assert run.steps() == [1]
    # A store that has a file of that name stays a store.
    (path / "stepwell-run.json").write_bytes(
        (tmp_path / "spaces and #/stepwell-run.json").read_bytes())
    with stepwell.open(path, mode="r") as store:
        assert store.steps() == [1] and store.latest == 1


def test_a_forked_child_is_told_that_obstore_is_not_there(trainer: stepwell.Store, s3: Place
                                                          ) -> None:
    save(trainer, 1)
    s3.push(trainer, 1)
    with s3.open() as run:
        child = os.fork()
        if child == 0:
            code = 9
            try:
                for call in (s3.open, run.steps):
                    with pytest.raises(Error, match="was forked|before fork"):
                        call()
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        assert run.steps() == [1]


def test_what_only_looks_like_the_newest_step_is_passed_over(trainer: stepwell.Store,
                                                             tmp_path: Path) -> None:
    place = Place(str(tmp_path / "place"), None)
    save(trainer, 1)
    place.push(trainer, 1)
    (tmp_path / f"place/steps/{9:020d}").symlink_to("nowhere")
    with place.open() as run:
        assert run.latest == 1 and is_tree(run.load(), 1)
        assert [each.step for each in run.verify().problems] == []


def small(step: int, version: int) -> dict[str, Any]:
    values = np.arange(30_000, dtype=np.float32).reshape(100, 300)
    values[step % 100, version % 300] += step + 7 * version + 1
    return {"w": values, "n": np.full(3, step), "v": version}


def test_a_follower_has_a_right_version_or_an_error_whatever_the_place_answers(
        path: Path, s3: Place, bucket: Bucket) -> None:
    rng = np.random.default_rng(35)
    versions: dict[int, dict[str, int]] = {}  # digests of what was ever pushed, by step

    def publish(store: stepwell.Store, step: int, version: int) -> None:
        state = small(step, version)
        store.save(step, state, if_exists="replace").result()
        s3.push(store, step, if_exists="replace")
        versions.setdefault(step, {})[stepwell.digest(state)] = version

    def faults() -> Callable[[str], str]:
        first = int(rng.integers(0, 8))
        last = first + int(rng.integers(1, 4))
        kind = str(rng.choice(FAULTS, p=[0.02 if each == "late" else 0.98 / (len(FAULTS) - 1)
                                         for each in FAULTS]))
        calls = 0

        def fault(key: str) -> str:
            nonlocal calls, injected
            calls += 1
            if not first < calls <= last:
                return ""
            injected += 1
            return kind

        return fault

    injected = right = errors = 0
    with stepwell.open(path, delta=True) as trainer:
        publish(trainer, 0, 0)
        with s3.open() as run:
            held, since = run.load(0), 0
            while injected < 200:
                newest = max(versions)
                version = len(versions[newest])
                match int(rng.integers(0, 6)):
                    case 0:
                        publish(trainer, newest, version)
                    case 1 if newest > since + 1:  # the follower's own stays
                        stepwell.delete_pushed(s3.url, newest - 1, storage_options=s3.options)
                    case _:
                        publish(trainer, newest + 1, 0)
                before = stepwell.digest(held)
                bucket.fault = faults()
                try:
                    to = run.latest
                    assert to is not None
                    if rng.integers(0, 2) and to > since:
                        held = run.update(held, since=since, to=to)
                    else:
                        held = run.load(to)
                    since = to
                    assert stepwell.digest(held) in versions[to]
                    right += 1
                except Error:
                    assert stepwell.digest(held) == before
                    errors += 1
                bucket.fault = lambda key: ""
                newest = max(versions)
                held, since = run.load(newest), newest
                assert held["v"] == max(versions[newest].values())
    assert right > 20 and errors > 20


def test_a_consumer_that_missed_steps_fetches_the_differences_since_its_own(
        path: Path, s3: Place, bucket: Bucket) -> None:
    with stepwell.open(path, delta=True) as trainer:
        for step in range(6):
            trainer.save(step, {"w": small(step, 0)["w"]}).result()
            s3.push(trainer, step)
    with s3.open() as run:
        held = run.load(1)
        bucket.asked.clear()
        held = run.update(held, since=1, to=5)
        fetched = sum(size for key, size in bucket.asked if key.startswith("run/data/"))
        assert 0 < fetched < held["w"].nbytes // 20
        assert stepwell.digest(held) == run.digest(5)


def test_a_place_that_is_not_there_any_more_is_no_empty_run(
        trainer: stepwell.Store, s3: Place, bucket: Bucket) -> None:
    save(trainer, 1)
    s3.push(trainer, 1)
    with s3.open() as run:
        bucket.objects.clear()
        for look in (lambda: run.latest, run.steps, lambda: run.load_or(tree(0)), run.verify):
            with pytest.raises(StorageError, match="the run is not there any more"):
                look()


@pytest.fixture
def interruptible() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs ignore it
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_ends_a_read_that_is_under_way(trainer: stepwell.Store, s3: Place, bucket: Bucket
                                              ) -> None:
    save(trainer, 1)
    s3.push(trainer, 1)
    asked = threading.Event()

    def late(key: str) -> str:
        asked.set()
        return "late"

    def interrupt() -> None:
        asked.wait(60)
        os.kill(os.getpid(), signal.SIGINT)

    with s3.open() as run:
        bucket.fault = late
        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            try:
                run.load(1)
            except Error:  # as a loop does that tries again
                time.sleep(1)
        thread.join()
        bucket.fault = lambda key: ""
        assert is_tree(run.load(1), 1)


def test_the_cache_keeps_what_was_used_last_in_bounded_memory() -> None:
    entry = run_objects._ENTRY_BYTES
    cache = RangeCache(5 * entry + 1000)
    for name in "abcde":
        cache.put(name, 100, bytes([ord(name)]) * 200)
    assert cache.get("a", 100, 10) == b"a" * 10 and cache.get("a", 295, 5) == b"a" * 5
    assert cache.get("a", 295, 6) is None and cache.get("a", 99, 2) is None
    cache.put("f", 0, b"f" * 200)  # "b" was used longest ago
    assert cache.get("b", 100, 1) is None and cache.get("a", 100, 200) == b"a" * 200
    cache.put("a", 100, b"A" * 250)  # more from the same place on
    assert cache.get("a", 100, 250) == b"A" * 250
    cache.put("g", 0, b"g" * 2 * entry)  # too much
    assert cache.get("g", 0, 1) is None
    assert cache._bytes == sum(entry + len(data) for data in cache._ranges.values())
    assert cache._bytes <= 5 * entry + 1000
    assert {(name, start) for name, starts in cache._starts.items() for start in starts} == set(
        cache._ranges)
