# SPDX-License-Identifier: Apache-2.0
"""Space that comes back, the account of it, and readers that it is taken from."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest
from equality import same
from test_damage import flip

import stepwell

PARTS = ("live_bytes", "padding_bytes", "overhead_bytes", "dead_bytes", "reserved_bytes",
         "index_bytes", "other_bytes")


def state_of(seed):
    return {"w": np.random.default_rng(seed).standard_normal((200, 500)), "seed": seed}


def disk_use(path: Path) -> int:
    """Returns the size of the files as `du` has it (directories apart)."""
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            try:
                total += os.lstat(os.path.join(folder, name)).st_blocks * 512
            except FileNotFoundError:
                pass  # the next look sees that it changed
    return total


def check_space(store):
    """Every allocated byte is in one part of the account; returns the account."""
    # Index and reclaim go on in the background: a file may come and go between two looks.
    for _ in range(1000):
        before = disk_use(store.path)
        space = store.stats()["space"]
        assert sum(space[part] for part in PARTS) == space["total_bytes"]
        if disk_use(store.path) == before == space["total_bytes"]:
            break
    assert space["total_bytes"] == before
    arrays = sum(200 * 500 * 8 for _ in store.steps())
    assert arrays <= space["live_bytes"] <= arrays * 1.01 + 4096
    return space


def fill(store, steps):
    for step in steps:
        store.save(step, state_of(step))
    store.wait()


def small_state(seed: int, leaves: int = 16) -> dict[str, np.ndarray]:
    """9 KiB."""
    random = np.random.default_rng(seed)
    return {f"leaf{i}": random.standard_normal(9216 // 8 // leaves) for i in range(leaves)}


def test_a_small_store_allocates_little_ahead(path):
    with stepwell.open(path) as store:
        for step in range(5):
            store.save(step, small_state(step)).result()
        assert store.stats()["space"]["reserved_bytes"] <= 256 << 10
    assert disk_use(path) <= 512 << 10
    with stepwell.open(path) as store:
        assert store.stats()["space"]["reserved_bytes"] <= 256 << 10


@pytest.mark.parametrize(("leaves", "blocks"), [(1, 4), (4, 4), (16, 4), (32, 5)])
def test_small_steps_take_at_most_twice_their_data(path, leaves, blocks):
    with stepwell.open(path) as store:
        for step in range(300):
            store.save(step, {"params": {f"layer_{i}": {"kernel": leaf} for i, leaf in enumerate(
                small_state(step, leaves).values())}})
        store.wait()
    assert disk_use(path) <= 300 * 4096 * blocks + (512 << 10)
    assert leaves == 32 or disk_use(path) <= 2 * 300 * 9216


def test_a_store_of_few_steps_has_no_index(path):
    for last in (31, 32):
        with stepwell.open(path) as store:
            for step in range(len(store), last + 1):
                store.save(step, step, metrics={"loss": 100.0 - step})
            store.wait()
            assert store.best("loss", mode="min") == last
        assert any((Path(path) / "index").iterdir()) == (last == 32)


def test_the_ballast_grows_with_the_store_and_shrinks_what_was_larger(path):
    ballast = Path(path) / "BALLAST"
    with stepwell.open(path, codec="raw") as store:
        assert ballast.stat().st_blocks * 512 <= 256 << 10
        fill(store, range(40))
    assert ballast.stat().st_blocks * 512 > 512 << 10  # it grew with the segments
    with stepwell.open(path, codec="raw"):
        assert 2 << 20 <= ballast.stat().st_blocks * 512 <= 5 << 20  # a part of 32 MB
    with open(ballast, "r+b") as file:
        os.posix_fallocate(file.fileno(), 0, 16 << 20)
    with stepwell.open(path, codec="raw"):
        assert ballast.stat().st_blocks * 512 <= 5 << 20


def test_no_byte_of_a_store_without_deletes_is_called_dead(path):
    """Padding has its name, and the copies of frames are no waste."""
    steps = 500
    with stepwell.open(path) as store:
        for step in range(steps):
            store.save(step, small_state(step))
        store.wait()
        space = store.stats()["space"]
        assert sum(space[part] for part in PARTS) == space["total_bytes"]
        assert space["dead_bytes"] <= 64 << 10
        # 16 payloads of 580 bytes, at multiples of 64, in 3 blocks.
        assert space["padding_bytes"] == steps * (3 * 4096 - 16 * 580)
        assert space["live_bytes"] == steps * 16 * 580
    with stepwell.open(path, mode="r") as store:
        assert store.stats()["space"]["padding_bytes"] == space["padding_bytes"]


def test_reclaim_gives_the_space_of_deleted_steps_back(path):
    with stepwell.open(path, codec="raw") as store:
        fill(store, range(80))
        full = check_space(store)
        dead = [step for step in range(80) if step % 4 != 1]
        store.delete(dead)
        check_space(store)
        store.reclaim()
        report = store.reclaim()  # what was begun in the background is over, too
        assert isinstance(report, stepwell.ReclaimReport)
        assert 0 <= report.bytes_after <= report.bytes_before < full["total_bytes"]
        assert report.bytes_pinned_by_readers == report.bytes_linked == 0
        space = check_space(store)
        stats = store.stats()
        gone = full["total_bytes"] - space["total_bytes"]
        assert gone >= 0.8 * 60 * 800_000
        assert stats["bytes_punched"] + stats["bytes_moved"] > 0
        assert space["dead_bytes"] < 0.05 * full["total_bytes"]
        assert space["pinned_by_readers_bytes"] == space["linked_bytes"] == 0
        for step in store.steps():
            assert same(store.load(step), state_of(step))
        store.delete(store.steps())
        store.reclaim()
        assert check_space(store)["live_bytes"] == 0
    with stepwell.open(path) as store:
        check_space(store)


def test_a_budget_counts_records(path):
    """One of a thousand leaves changes: a step's chunk takes 2 KB, and its records 94 KB."""
    leaves = {f"leaf_{index}": np.full(512, index, np.float32) for index in range(1000)}
    with stepwell.open(path, keep=stepwell.policy.ByteBudget("5 MB")) as store:
        for step in range(40):
            leaves["leaf_7"] = np.full(512, step, np.float32)
            store.save(step, leaves).result()
        assert 3 < len(store) < 16
        assert store.stats()["space"]["overhead_bytes"] < 200 * len(leaves) * len(store)
        store.reclaim()
        space = store.stats()["space"]
        assert space["live_bytes"] + space["overhead_bytes"] < 5e6


def test_a_reader_keeps_the_space_that_it_reads(path, start_python):
    go = path.parent / "go"
    os.mkfifo(go)
    with stepwell.open(path, codec="raw") as store:
        fill(store, range(40))
        reader = start_python("""
import sys, stepwell
with stepwell.open(sys.argv[1], mode="r") as store:
    view = store[6]
    print("pinned", flush=True)
    open(sys.argv[2]).read()  # a fifo: until the test says so
    print(float(view["w"][...].sum()))
""", path, go)
        assert reader.stdout.readline() == "pinned\n"
        store.delete([step for step in range(40) if step % 4 != 1])
        report = store.reclaim()
        assert report.bytes_pinned_by_readers >= 30 * 800_000
        space = check_space(store)
        assert space["dead_bytes"] >= space["pinned_by_readers_bytes"] >= 30 * 800_000
        assert any(str(reader.pid) in pin for pin in store.stats()["old_pins"])
        go.write_text("")
        out, err = reader.communicate(timeout=120)
        assert out == f"{float(state_of(6)['w'].sum())}\n", err
        report = store.reclaim()
        assert report.bytes_pinned_by_readers == 0
        assert report.bytes_after < report.bytes_before
        assert check_space(store)["pinned_by_readers_bytes"] == 0


def test_the_account_after_a_kill(path, start_python):
    writer = start_python("""
import sys, stepwell
import numpy as np
store = stepwell.open(sys.argv[1], codec="raw", keep=stepwell.policy.LatestN(3))
for step in range(1_000_000):
    w = np.random.default_rng(step).standard_normal((200, 500))
    store.save(step, {"w": w, "seed": step})
    print(step, flush=True)
""", path)
    while int(writer.stdout.readline()) < 40:
        pass
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    with stepwell.open(path, mode="r") as reader:
        check_space(reader)
    with stepwell.open(path, keep=stepwell.policy.LatestN(3)) as store:
        check_space(store)
        store.reclaim()
        space = check_space(store)
        assert space["dead_bytes"] < 8 << 20
        for step in store.steps():
            assert same(store.load(step), state_of(step))


def test_a_step_that_is_deleted_while_a_reader_without_a_pin_loads_it(path):
    with stepwell.open(path, codec="raw") as store:
        fill(store, range(40))
        (path / "readers").rmdir()
        (path / "readers").write_text("")  # nobody can make a pin in it
        with stepwell.open(path, mode="r") as reader:
            view, live = reader[6], reader[5]
            view.tree, live.tree  # planned: the places of the chunks are known
            store.delete([step for step in range(40) if step % 4 != 1])
            store.reclaim()
            with pytest.raises(stepwell.StepNotFoundError,
                               match="step 6 was deleted while it was being read; load another"):
                view["w"][...]
            assert same(live["w"][...], state_of(5)["w"])
            with pytest.raises(FileNotFoundError, match="no step 6"):
                reader.load(6)
            assert reader.verify().ok
            assert same(reader.load(), state_of(37))
            flip(path, state_of(5)["w"][100].tobytes())  # what is there, but damaged, is damage
            with pytest.raises(stepwell.CorruptionError, match=r"\.seg"):
                live["w"][...]
