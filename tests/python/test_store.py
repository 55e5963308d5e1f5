# SPDX-License-Identifier: Apache-2.0
"""The store's life: steps, handles, errors, threads."""

from __future__ import annotations

import concurrent.futures
import logging
import os
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from log_lines import wait_for

import stepwell


def test_steps_in_any_order(store):
    assert store.steps() == []
    assert store.latest is None
    for step in (5, 0, 2**63 - 1, np.int64(7)):
        assert store.save(step, {"x": int(step)}).result() == step
    assert store.steps() == [0, 5, 7, 2**63 - 1]
    assert store.latest == 2**63 - 1
    assert store.load() == {"x": 2**63 - 1}
    assert 5 in store and 6 not in store


@pytest.mark.parametrize(("step", "why"), [(-1, "not -1"), (2**63, "a step must be 0"),
                                           (1.5, "a step must be an int, not 1.5"),
                                           ("3", "not '3'")])
def test_bad_steps(store, step, why):
    for call in (lambda: store.save(step, 1), lambda: store.load(step),
                 lambda: store.delete([step])):
        with pytest.raises(stepwell.InvalidArgumentError, match=why):
            call()


def test_step_that_exists(store):
    store.save(1, {"x": 1}).result()
    with pytest.raises(stepwell.StepExistsError) as info:
        store.save(1, {"x": 2})
    assert isinstance(info.value, FileExistsError)
    assert "1" in str(info.value)
    handle = store.save(1, {"x": 2}, if_exists="skip")
    assert handle.result() == 1 and handle.skipped
    assert store.load(1) == {"x": 1}
    assert not store.save(1, {"x": 3}, if_exists="replace").skipped
    store.wait()
    assert store.load(1) == {"x": 3}
    with pytest.raises(stepwell.InvalidArgumentError, match="if_exists must be"):
        store.save(2, 1, if_exists="sometimes")


def test_step_that_does_not_exist(store):
    with pytest.raises(stepwell.StepNotFoundError, match="has no step yet"):
        store.load()
    for step in (10, 20):
        store.save(step, 1)
    store.wait()
    with pytest.raises(stepwell.StepNotFoundError) as info:
        store.load(12)
    assert "12" in str(info.value) and "10" in str(info.value)
    assert isinstance(info.value, FileNotFoundError)
    with pytest.raises(stepwell.StepNotFoundError):
        store.delete([10, 12])
    assert store.steps() == [10, 20]


def test_directories_above_a_store_are_made(tmp_path):
    path = tmp_path / "runs" / "7" / "checkpoints"
    with pytest.raises(stepwell.InvalidArgumentError, match="is a URL; stores.*mode=\"r\""
                       ) as raised:
        stepwell.open("gs://name:secret@bucket/run")
    assert "secret" not in str(raised.value)
    with pytest.raises(stepwell.StoreNotFoundError):
        stepwell.open(path, "r")
    assert list(tmp_path.iterdir()) == []
    with stepwell.open(path) as store:
        store.save(1, {"a": 1}).result()
    with stepwell.open(path, "r") as store:
        assert store.load(1) == {"a": 1}


def test_delete(store):
    for step in range(6):
        store.save(step, {"x": step})
    store.wait()
    store.delete(3)
    store.delete([0, 5])
    assert store.steps() == [1, 2, 4]
    view = store[4]
    store.delete(4)
    assert view["x"] == 4  # what was opened before stays readable


def test_keep_latest(path):
    with stepwell.open(path, keep=stepwell.policy.LatestN(3)) as store:
        for step in range(10):
            store.save(step, {"x": np.full(1000, step)})
        store.wait()
        assert store.steps() == [7, 8, 9]
    with pytest.raises(stepwell.InvalidArgumentError, match="at least 1"):
        stepwell.policy.LatestN(0)


def test_metadata_and_metrics(store):
    store.save(0, 1, metadata={"git": "abc", "n": [1]},
               metrics={"loss": jnp.float32(0.5), "acc": np.float64(1)}).result()
    assert store[0].metadata == {"git": "abc", "n": [1]}
    assert store[0].metrics == {"loss": 0.5, "acc": 1.0}
    store.save(1, 1).result()
    assert store[1].metadata is None
    with pytest.raises(stepwell.InvalidArgumentError, match="metadata is not JSON"):
        store.save(2, 1, metadata={"x": object()})
    with pytest.raises(stepwell.InvalidArgumentError, match="metrics must be a dict"):
        store.save(2, 1, metrics=3)


def test_handles(store):
    seen = threading.Event()
    found = []

    def callback(handle):
        found.append((handle.step, store.load(handle.step), threading.current_thread().name))
        seen.set()

    handle = store.save(3, {"x": 1})
    handle.on_complete(callback)
    assert handle.result(timeout=60) == 3
    assert handle.done()
    assert seen.wait(60)
    assert found == [(3, {"x": 1}, "stepwell-callbacks")]
    seen.clear()
    handle.on_complete(callback)  # done already: at once
    assert seen.wait(60)
    assert repr(handle) == "<save of step 3, done>"
    assert handle.step == 3


def test_a_callback_that_raises_is_logged(store, caplog):
    done = threading.Event()
    handle = store.save(0, 1)
    handle.on_complete(lambda handle: 1 / 0)
    handle.on_complete(lambda handle: done.set())
    assert done.wait(60)
    assert "an on_complete callback raised" in caplog.text


def test_reopen(path):
    with stepwell.open(path) as store:
        store.save(1, {"x": np.arange(3)})
    store.close()  # idempotent
    with pytest.raises(stepwell.Error, match="is closed"):
        store.steps()
    with pytest.raises(stepwell.Error, match="is closed"):
        store.save(2, 1)
    with stepwell.open(path) as store:
        assert store.load(1)["x"].tolist() == [0, 1, 2]
    with stepwell.open(path, mode="r") as reader:
        assert reader.steps() == [1]
        assert reader.read_only
        with pytest.raises(stepwell.PermissionDeniedError, match="reading only"):
            reader.save(2, 1)
        with pytest.raises(stepwell.PermissionDeniedError, match="reading only"):
            reader.delete(1)


def test_close_does_not_mask_the_users_exception(path):
    with pytest.raises(ZeroDivisionError), stepwell.open(path) as store:
        store.save(0, 1)
        raise ZeroDivisionError
    with stepwell.open(path) as store:
        assert store.steps() == [0]


def test_relative_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with stepwell.open("here") as store:
        os.chdir("/")
        store.save(0, 1).result()
        assert store.path == str(tmp_path / "here")
    assert (tmp_path / "here").is_dir()


def test_bad_open_arguments(path):
    for keywords, why in (({"mode": "w"}, "mode must be"), ({"keep": 3}, "keep must be a policy"),
                          ({"staging_bytes": 0}, "staging_bytes must be an int of at least 1"),
                          ({"threads": -1}, "threads must be an int of at least 1"),
                          ({"codec": "zip"}, "codec must be one")):
        with pytest.raises(stepwell.InvalidArgumentError, match=why):
            stepwell.open(path, **keywords)
    assert not path.exists()


def test_open_what_is_no_store(tmp_path, path):
    with pytest.raises(stepwell.StoreNotFoundError):
        stepwell.open(path, mode="r")
    assert not path.exists()
    other = tmp_path / "other"
    other.mkdir()
    (other / "file").write_text("x")
    for mode in ("r", "a"):
        with pytest.raises(stepwell.FormatError):
            stepwell.open(other, mode=mode)
    assert os.listdir(other) == ["file"]


def test_readers_beside_the_writer(path):
    with stepwell.open(path) as store, stepwell.open(path, mode="r") as reader:
        assert reader.latest is None
        for step in range(5):
            store.save(step, {"x": np.full(1000, step)}).result()
            assert reader.latest == step
            assert reader.load(step)["x"][0] == step


def test_codecs(tmp_path):
    smooth = np.arange(1 << 20, dtype=np.float32)
    for codec in ("raw", "blosc", "auto"):
        with stepwell.open(tmp_path / codec, codec=codec) as store:
            store.save(0, {"x": smooth}).result()
            np.testing.assert_array_equal(store.load(0, "x"), smooth)
            stored = store[0].stored_bytes
            assert (stored >= smooth.nbytes) == (codec == "raw")


def test_threads(store):
    errors = []

    def work(start):
        try:
            for step in range(start, start + 10):
                store.save(step, {"x": np.full(5000, step), "s": step}).result()
                assert store.load(step)["x"][-1] == step
                assert step in store.steps()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(100 * i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(store.steps()) == 40


def test_state_larger_than_the_staging_memory(path):
    with stepwell.open(path, staging_bytes=20 << 20) as store:
        random = np.random.default_rng(0)
        state = {f"w{i}": random.standard_normal(1 << 20).astype(np.float32) for i in range(16)}
        for step in range(3):
            store.save(step, state)
        store.wait()
        assert store.stats()["staging_bytes_max"] <= 20 << 20
        for name, array in state.items():
            np.testing.assert_array_equal(store.load(2, name), array)


def test_a_warm_store_takes_its_memory_at_once_and_within_the_bound(path):
    blocks = 48 << 20
    with stepwell.open(path, staging_bytes=blocks) as store:
        store.save(0, {"w": np.arange(100_000)}).result()
        assert store.stats()["staging_bytes"] < blocks // 2
    with stepwell.open(path, staging_bytes=blocks, warm=True) as store:
        bound = store.stats()["staging_bytes_max"]
        while store.stats()["staging_bytes"] < bound:  # in the background
            store.save(0, {"w": np.arange(100_000)}, if_exists="replace").result()
        assert bound <= blocks and store.stats()["staging_bytes"] == bound
    with stepwell.open(path, warm=True) as store:  # closes while it takes 1 GiB
        np.testing.assert_array_equal(store.load()["w"], np.arange(100_000))
    with pytest.raises(stepwell.InvalidArgumentError, match="warm takes the memory of saves"):
        stepwell.open(path, mode="r", warm=True)


def test_verify_and_stats(store):
    store.save(0, {"x": np.arange(1000), "t": "text"}).result()
    report = store.verify()
    assert report.ok and report.steps == 1 and report.leaves == 2
    assert store.verify(0).ok
    stats = store.stats()
    assert stats["steps"] == 1
    assert stats["recovery"]["clean"] is True
    assert set(stats["last_load"]) == {"bytes_read", "bytes_needed", "bytes_out", "reads", "chunks"}


def test_log(path, caplog):
    with caplog.at_level(logging.INFO, "stepwell"), stepwell.open(path):
        wait_for("keeps every step", caplog)


def test_errors_are_their_builtins():
    for name, builtin in (("StepExistsError", FileExistsError),
                          ("StepNotFoundError", FileNotFoundError),
                          ("PathNotFoundError", KeyError), ("MismatchError", ValueError),
                          ("UnsupportedLeafError", TypeError), ("CorruptionError", OSError),
                          ("NoSpaceError", OSError), ("StorageError", OSError),
                          ("PermissionDeniedError", PermissionError)):
        kind = getattr(stepwell, name)
        assert issubclass(kind, stepwell.Error) and issubclass(kind, builtin)
    for name in ("LockedError", "ForkError", "FormatError", "OutcomeUnknownError"):
        assert issubclass(getattr(stepwell, name), stepwell.Error)
    assert str(stepwell.PathNotFoundError("a 'b'")) == "a 'b'"


# ---- what the caller does with its memory after save --------------------------------------------


def test_numpy_changed_after_save(store):
    array = np.arange(1 << 20)
    handle = store.save(0, {"x": array})
    array[:] = -1
    handle.result()
    np.testing.assert_array_equal(store.load(0, "x"), np.arange(1 << 20))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_donation_after_save(store, dtype):
    train = jax.jit(lambda state: jax.tree.map(lambda x: x + jnp.ones((), dtype), state),
                    donate_argnums=0)
    state = {"w": jnp.zeros((300, 1000), dtype), "b": jnp.zeros(5, dtype)}
    for step in range(30):
        store.save(step, state)
        state = train(state)
    store.wait()
    for step in range(30):
        loaded = store.load(step)
        assert (np.asarray(loaded["w"], np.float32) == step).all()
        assert (np.asarray(loaded["b"], np.float32) == step).all()


def test_deleted_arrays(store):
    gone = jnp.ones(3)
    gone.delete()
    with pytest.raises(stepwell.UnsupportedLeafError,
                       match="a/b: is a jax.Array that was deleted or donated"):
        store.save(0, {"a": {"b": gone}, "ok": 1})
    assert store.steps() == []


def test_memory_is_let_go(store):
    import gc
    import threading
    import weakref

    class Watched(np.ndarray):
        pass

    array = np.zeros(1000).view(Watched)
    let_go = threading.Event()
    watched = weakref.ref(array, lambda _: let_go.set())
    plain = np.asarray(array)  # a view that keeps `array` alive
    store.save(0, {"x": plain}).result()
    del array, plain
    gc.collect()
    assert let_go.wait(10) and watched() is None


def modes_below(directory):
    """Permissions of the files and of the directories."""
    files, directories = set(), {os.stat(directory).st_mode & 0o777}
    for folder, names, leaves in os.walk(directory):
        directories |= {os.stat(os.path.join(folder, name)).st_mode & 0o777 for name in names}
        files |= {os.stat(os.path.join(folder, leaf)).st_mode & 0o777 for leaf in leaves}
    return files, directories


def test_a_new_store_is_its_owners_alone(tmp_path):
    old = os.umask(0o022)
    try:
        for name, options in (("mine", {}), ("ours", {"private": False})):
            with stepwell.open(tmp_path / name, **options) as store:
                store.save(1, {"a": np.arange(5)}).result()
    finally:
        os.umask(old)
    assert modes_below(tmp_path / "mine") == ({0o600}, {0o700})
    assert modes_below(tmp_path / "ours") == ({0o644}, {0o755})


def test_an_untrusted_store_is_only_read(path):
    with stepwell.open(path) as store:
        store.save(1, {"a": np.arange(5)}).result()
    os.remove(os.path.join(path, "RECLAIM"))
    before = sorted(os.listdir(path))
    with pytest.raises(stepwell.InvalidArgumentError, match="only be read"):
        stepwell.open(path, untrusted=True)
    with stepwell.open(path, mode="r", untrusted=True) as store:
        np.testing.assert_array_equal(store.load(1)["a"], np.arange(5))
    assert sorted(os.listdir(path)) == before


def test_a_link_in_a_store_is_refused(path, tmp_path):
    stepwell.open(path).close()
    victim = tmp_path / "victim"
    victim.write_text("precious")
    os.remove(os.path.join(path, "LOCK"))
    os.symlink(victim, os.path.join(path, "LOCK"))
    with pytest.raises(stepwell.Error, match="LOCK: it is a symbolic link"):
        stepwell.open(path)
    assert victim.read_text() == "precious"


def test_the_newest_step_may_go_while_it_is_looked_up(path, monkeypatch):
    with stepwell.open(path) as store, stepwell.open(path, mode="r") as reader:
        for step in (1, 2, 3, 4):
            store.save(step, {"x": step}).result()
        newest = reader._latest_of_all

        def too_late():
            number = newest()
            if number > 1:
                store.delete(number)
            return number

        monkeypatch.setattr(reader, "_latest_of_all", too_late)
        assert reader.load_or({"x": 0}) == ({"x": 1}, 2)
        for step in (2, 3):
            store.save(step, {"x": step}).result()
        with pytest.raises(stepwell.StepNotFoundError):
            reader.load(7, path="x")
        done = threading.Event()

        def come_and_go():
            while not done.is_set():
                store.save(9, {"x": 9}).result()
                store.delete(9)

        with concurrent.futures.ThreadPoolExecutor(1) as thread:
            going = thread.submit(come_and_go)
            try:
                assert {reader.load(path="x") for _ in range(300)} <= {3, 9}
            finally:
                done.set()
            going.result()
