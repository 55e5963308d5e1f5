# SPDX-License-Identifier: Apache-2.0
"""Orbax checkpoints that several processes import together, under a real jax.distributed: each
reads and stores its share, and the step is as one process would have imported it."""

import pathlib
import shutil
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp_v0
import pytest
from equality import same
from group_runs import Said, run
from group_values import digest_of
from orbax.checkpoint import v1 as ocp_v1

import stepwell

pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:Sharding info not provided"),
]

CHUNK_BYTES = 256 << 10
CELL_BYTES = 2 << 20  # nothing here is cut finer
CONFIG = {"lr": 0.5, "layers": [1, {"name": "a"}]}


def state(seed: int) -> dict[str, Any]:
    """A large array, middle ones, and one of each kind of leaf; no bit of it compresses."""
    random = np.random.default_rng(seed)

    def bits(*shape: int) -> Any:
        return random.integers(0, 1 << 32, shape, np.uint32)

    return {
        "large": jnp.asarray(bits(1000, 4100)),
        "layers": [{"w": bits(300, 257), "b": bits(19)} for _ in range(12)],
        "half": jnp.asarray(bits(65, 33).astype(np.uint16)).view(jnp.bfloat16),
        "key": jax.random.key_data(jax.random.key(seed)),
        "zero_d": np.asarray(random.normal()), "device": jnp.asarray(seed, jnp.int32),
        "none": {}, "count": seed, "rate": 0.25, "name": "run",
    }


def save_v0(root: pathlib.Path, step: int, **options: Any) -> pathlib.Path:
    """An Orbax v0 step with a JSON item and metrics."""
    tree = state(step)
    chunks = jax.tree.map(lambda _: ocp_v0.SaveArgs(chunk_byte_size=CHUNK_BYTES), tree)
    handlers = {"state": ocp_v0.PyTreeCheckpointHandler(**options),
                "config": ocp_v0.JsonCheckpointHandler()}
    best = ocp_v0.CheckpointManagerOptions(best_fn=lambda metrics: float(metrics["loss"]))
    with ocp_v0.CheckpointManager(root, options=best, item_handlers=handlers) as manager:
        manager.save(step, args=ocp_v0.args.Composite(
            state=ocp_v0.args.PyTreeSave(tree, save_args=chunks),
            config=ocp_v0.args.JsonSave(CONFIG)), metrics={"loss": 0.5})
    return root / str(step)


def save_v1(path: pathlib.Path) -> pathlib.Path:
    options = ocp_v1.options.ArrayOptions
    saving = options.Saving(
        storage_options=options.Saving.StorageOptions(chunk_byte_size=CHUNK_BYTES))
    tree = {**state(7), "key": jax.random.key(7)}
    with ocp_v1.Context(array_options=options(saving=saving)):
        ocp_v1.save(path, tree, custom_metadata={"note": "from v1"})
    return path


def save_ours(path: pathlib.Path) -> pathlib.Path:
    """Chunks that are imported as they are stored, and what Orbax refuses to save."""
    with stepwell.open(path.with_name("ours"), codec="blosc") as store:
        store.save(3, {**state(3), "nothing": np.zeros((0, 3), np.float32)}).result()
        store.export(3, path, mode="copy")
    return path


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    """Checkpoints by the number of the step that they become."""
    folder = tmp_path_factory.mktemp("sources")
    return {number: str(path) for number, path in {
        1: save_v0(folder / "v0", 1),
        2: save_v0(folder / "files", 2, use_ocdbt=False, use_zarr3=True),
        3: save_ours(folder / "ours_3"),
        4: save_v1(folder / "v1_4")}.items()}


@pytest.fixture(scope="module")
def alone(sources: dict[int, str], tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Imports them in one process."""
    root = tmp_path_factory.mktemp("alone") / "store"
    with stepwell.open(root) as store:
        for step, source in sources.items():
            store.import_checkpoint(source, step).result()
    return root


def imports(source: str | list[str], step: int, **more: Any) -> list[Any]:
    return ["import", {"from": source, "how": {"step": step, **more}}]


def all_fail(said: list[Said], number: int, error: str, *words: str) -> None:
    for one in said:
        line = one.lines[number]
        assert line.get("error") == error, line
        assert all(word in line["text"] for word in words), line["text"]


def stored_bytes(root: pathlib.Path, step: int, parts: int) -> list[int]:
    """Returns the stored bytes of each part."""
    others = []
    for part in range(1, parts):
        with stepwell.open(root / f"process_{part}", "r") as store:
            others.append(store[step].stored_bytes)
    with stepwell.open(root, "r") as store:
        return [store[step].stored_bytes - sum(others), *others]


@pytest.mark.parametrize("processes", [2, 4])
def test_it_is_as_if_one_process_had_imported_it(
        tmp_path: pathlib.Path, sources: dict[int, str], alone: pathlib.Path, processes: int
        ) -> None:
    root = tmp_path / "store"
    acts = [["open", {}], *[imports(source, step) for step, source in sources.items()],
            ["digest", {"step": 1}], ["close", {}]]
    said = run(root, acts, processes=processes)
    for one in said:
        assert [one.gave(i + 1) for i in range(len(sources))] == list(sources)
    with stepwell.open(root, "r") as store, stepwell.open(alone, "r") as single:
        assert store.verify().problems == []
        assert {one.gave(len(sources) + 1) for one in said} == {digest_of(single.load(1))}
        for step in sources:
            assert store[step].items == single[step].items
            assert store[step].metadata == single[step].metadata
            assert store[step].metrics == single[step].metrics
            assert same(store.load(step), single.load(step)), step
            assert list(store[step]) == list(single[step])
            parts = stored_bytes(root, step, processes)
            total = single[step].stored_bytes
            assert abs(sum(parts) - total) < total / 50, step  # nothing twice
            assert max(parts) < total / processes + CELL_BYTES, (step, parts)
            assert min(parts) > total / processes - CELL_BYTES, (step, parts)
        assert store[1].metrics == {"loss": 0.5}
        assert store.load(1)["config"] == CONFIG
        assert store[4].metadata == {"note": "from v1"}
        # The exported step is what Orbax saved.
        for step in (1, 4):
            store.export(step, tmp_path / f"x{step}", leaves="numpy")
            read = ocp_v1.load_checkpointables(tmp_path / f"x{step}")["state"]
            assert same(read["large"], np.asarray(state(1 if step == 1 else 7)["large"]))
            assert len(read["layers"]) == 12


def test_steps_that_are_there_and_checkpoints_that_are_not_right(
        tmp_path: pathlib.Path, sources: dict[int, str]) -> None:
    root, manager = tmp_path / "store", tmp_path / "manager"
    for step in (5, 6, 7):
        save_v0(manager, step, use_ocdbt=False)
    # The last of the chunks of the large array, which is not process 0's.
    chunk = sorted((manager / "6/state/large").iterdir(),
                   key=lambda file: [int(n) for n in file.name.split(".") if n.isdigit()])[-1]
    chunk.write_bytes(chunk.read_bytes()[:99])
    damaged = ["item 'state', leaf 'large'", str(chunk)]
    said = run(root, [
        ["open", {}],
        imports(str(manager / "6"), 6),                                              # 1: damaged
        imports(sources[1], 1),
        imports(sources[1], 1),                                                      # 3: exists
        ["import", {"from": sources[4], "how": {"step": 1, "if_exists": "skip"}, "skipped": 0}],
        ["digest", {"step": 1}],
        imports(sources[4], 1, if_exists="replace"),
        ["digest", {"step": 1}],
        imports(str(tmp_path / "typo"), 9),                                          # 8
        ["import_all", {"from": str(manager), "how": {}}],                           # 9: 6 damaged
        ["import_all", {"from": str(manager), "how": {"steps": [5, 7], "if_exists": "skip"}}],
        ["import_all", {"from": str(manager), "how": {"steps": [5]}}],               # 11: exists
        ["save", {"step": 20}], ["check", {"step": 20}], ["steps", {}], ["close", {}]])
    all_fail(said, 1, "CorruptionError", *damaged)
    all_fail(said, 3, "StepExistsError", "step 1")
    all_fail(said, 8, "CheckpointNotFoundError", str(tmp_path / "typo"))
    all_fail(said, 9, "CorruptionError", *damaged)
    all_fail(said, 11, "StepExistsError", "step 5")
    for one in said:
        assert [one.gave(i) for i in (2, 4, 6, 10)] == [1, [1, True], 1, [5, 7]]
        assert one.gave(5) != one.gave(7)
        assert [one.gave(i) for i in (12, 13, 14)] == [20, "equal", [1, 5, 7, 20]]
    with stepwell.open(root, "r") as store:
        assert store.verify().problems == []
        assert store.load(5)["state"]["count"] == 5


def test_machines_that_see_it_and_that_do_not(tmp_path: pathlib.Path, sources: dict[int, str],
                                              alone: pathlib.Path) -> None:
    roots = [tmp_path / f"machine_{number}" / "store" for number in range(3)]
    for root in roots:
        root.parent.mkdir()
    copy, nowhere = str(tmp_path / "copy_1"), str(tmp_path / "nowhere")
    shutil.copytree(sources[1], copy)
    other = str(save_v0(tmp_path / "other", 1))  # the same tree, saved again
    said = run(roots, [
        ["open", {"disks": "local", "roots": [str(root) for root in roots]}],
        imports([sources[1], nowhere, copy], 1),
        ["digest", {"step": 1}],
        imports([sources[1], other, nowhere], 2),
        imports([nowhere, sources[1], sources[1]], 2),
        imports([sources[3], nowhere, nowhere], 3),
        ["digest", {"step": 3}], ["steps", {}], ["verify", {}], ["close", {}]],
        processes=3, devices=6)
    all_fail(said, 3, "PeerError", "process 1 sees another checkpoint", other)
    all_fail(said, 4, "CheckpointNotFoundError", nowhere)
    with stepwell.open(alone, "r") as single:
        for one in said:
            assert one.gave(2) == digest_of(single.load(1))
            assert one.gave(6) == digest_of(single.load(3))
            assert one.gave(7) == [1, 3]
            assert one.gave(8)[1] == []
        chunks = [one.gave(8)[0] for one in said]
        assert chunks[1] == 0 and chunks[0] > 0 and chunks[2] > 0


def test_who_takes_long_is_waited_for_and_who_dies_is_not(tmp_path: pathlib.Path,
                                                          sources: dict[int, str]) -> None:
    acts = [["open", {}], ["dawdle", {"process": 1, "seconds": 9}], imports(sources[3], 3),
            ["dawdle", {"process": 0, "seconds": 20}], imports(sources[3], 4), ["steps", {}],
            ["close", {}]]
    for one in run(tmp_path / "slow", acts, timeout=4):
        assert [one.gave(i) for i in (2, 4, 5)] == [3, 4, [3, 4]]
    died = run(tmp_path / "died", [["open", {}], imports(sources[3], 3), imports(sources[3], 4)],
               kill=[2, 1, "read"], timeout=3)
    assert died[1].status == -9
    if len(died[0].lines) > 2:  # else JAX ended it
        all_fail(died[:1], 2, "PeerError", "process 1 of 2 did not answer within 3 s")
    with stepwell.open(tmp_path / "died", "r") as store:
        assert store.steps() == [3]
