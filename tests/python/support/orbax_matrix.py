# SPDX-License-Identifier: Apache-2.0
"""orbax_matrix.py DIR: generated trees through exports and imports, read by everything.

    PYTHONPATH=<build>/python python orbax_matrix.py DIR [--export A:B] [--import A:B]
        [--modes link,reflink,copy] [--seconds S]

Every seed is one tree; which mode, version of zarr and type of leaves it gets follows from it, so
that any 12 in a row have all. Prints one line of JSON: what was read how often. An error names
seed and reader, and is status 1. DIR is emptied; reflink needs a file system that can share
blocks. A program, because the number of JAX's devices is set before JAX starts.
"""

from __future__ import annotations

import os

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ["JAX_PLATFORMS"] = "cpu"

import argparse  # noqa: E402
import collections  # noqa: E402
import itertools  # noqa: E402
import json  # noqa: E402
import logging  # noqa: E402
import pathlib  # noqa: E402
import random  # noqa: E402
import shutil  # noqa: E402
import sys  # noqa: E402
import time  # noqa: E402
import traceback  # noqa: E402
import warnings  # noqa: E402
from collections.abc import Callable  # noqa: E402
from typing import Any  # noqa: E402

import jax  # noqa: E402
import orbax.checkpoint as ocp  # noqa: E402
import stepwell  # noqa: E402
from orbax.checkpoint import v1  # noqa: E402
from orbax_expect import as_restored, check  # noqa: E402
from orbax_readers import READERS, Checkpoint  # noqa: E402
from orbax_trees import Trees  # noqa: E402
from orbax_writers import WRITERS, Content, Writer  # noqa: E402

Counts = collections.Counter[str]


def metrics_of(seed: int) -> dict[str, float]:
    return {"loss": seed / 7, "n": 3} if seed % 2 else {}


def export_case(seed: int, folder: pathlib.Path, modes: list[str], counts: Counts) -> None:
    combinations = list(itertools.product(modes, (3, 2), ("jax", "numpy")))
    mode, zarr, leaves = combinations[seed % len(combinations)]
    jax.config.update("jax_enable_x64", seed % 5 == 4)
    trees = Trees(seed, None)
    tree, other = trees.tree(), trees.fixed()["numpy"]
    metrics, metadata, step = metrics_of(seed), {"seed": seed, "é": [None, 1.5]}, seed % 1000
    options: dict[str, Any] = {"mode": mode, "zarr": zarr, "leaves": leaves}
    with stepwell.open(folder / "store") as store:
        store.save(step, tree, items={"other": other}, metrics=metrics or None,
                   metadata=metadata).result()
        reports = [
            store.export(step, folder / "bare", **options),
            store.export(step, folder / "root", layout="v0", **options),
            store.export(step, folder / "default", layout="v0", unnamed_default=True,
                         path=("state",), **options),
        ]  # fmt: skip
        assert all(report.mode == mode and not report.skipped for report in reports)
        assert not any(report.as_numpy for report in reports), reports[0].as_numpy
    shutil.rmtree(folder / "store")  # exports need it no longer
    checkpoint = Checkpoint(
        tree, leaves, zarr, folder / "bare", folder / "root", folder / "default", step, metrics,
        metadata, {"other": as_restored(other, leaves)}, random.Random(seed))  # fmt: skip
    for place in (folder / "bare", folder / "root" / str(step), folder / "default" / str(step)):
        counts["digests"] += (place / "stepwell-digests").is_file()
    for reader in READERS:
        try:
            counts[reader.__name__] += reader(checkpoint) is not False
        except Exception as error:
            error.add_note(f"{reader.__name__} of an export: {mode}, zarr {zarr}, {leaves}")
            raise
    for name in (mode, f"zarr{zarr}", leaves):
        counts[name] += 1


# ---- imports ----------------------------------------------------------------------------------


def describe_v1(path: pathlib.Path) -> Any:
    """Orbax v1's metadata; it has none for trees with a Python bool (see orbax_readers.py)."""
    try:
        tree = v1.metadata(path).metadata
    except TypeError as error:
        assert "Unsupported dtype: bool" in str(error)
        return None
    return jax.tree.map(described_leaf, tree)


def describe_v0(item: pathlib.Path) -> Any:
    with ocp.PyTreeCheckpointer() as checkpointer:
        metadata = checkpointer.metadata(item).item_metadata
    return metadata.custom_metadata, jax.tree.map(
        lambda leaf: (type(leaf).__name__, leaf.name, described_leaf(leaf)), metadata.tree)


def described_leaf(leaf: Any) -> Any:
    names = ("shape", "dtype", "sharding")
    if hasattr(leaf, "dtype"):
        return tuple(getattr(leaf, name, None) for name in names)
    return leaf if isinstance(leaf, (str, int, float)) else type(leaf).__name__


def report(path: pathlib.Path, step: int, content: Content, writer: Writer) -> dict[str, Any]:
    """Returns what Orbax gives of a checkpoint, and says of it."""
    found = {"state": v1.load(path), "described": describe_v1(path)}
    if writer.is_flat:  # the directory is step and item at once, which no export is
        item = path if (path / "_METADATA").exists() else path / "state"
        return found | {"v0": describe_v0(item)}
    found["items"] = v1.load_checkpointables(path)
    for child in path.iterdir():
        if child.is_dir() and child.name not in ("config", "metrics"):  # they are JSON
            found[f"v0 {child.name}"] = describe_v0(child)
    found["custom"] = v1.checkpointables_metadata(path).custom_metadata
    with v1.training.Checkpointer(path.parent) as checkpointer:
        found["metrics"] = checkpointer.checkpointables_metadata(step).metrics
        found["root"] = checkpointer.root_metadata().custom_metadata
    return found


def import_case(seed: int, folder: pathlib.Path, counts: Counts) -> None:
    writer = WRITERS[seed % len(WRITERS)]
    jax.config.update("jax_enable_x64", seed % 5 == 4)
    trees = Trees(seed, writer.api, writer.as_files)
    config = {"é": [1, -2.5, None, "x"], "b": {"z": True, "a": {}}}
    content = Content(trees.tree(), {"extra": trees.fixed()["jax"], "config": config},
                      {"loss": seed / 7, "n": 3.0}, {"seed": seed, "é": [None, 1.5]})
    step = seed % 1000
    source = writer.write(folder / "source", step, content)
    wanted = report(source, step, content, writer)
    zarr, mode = (3, 2)[seed % 2], ("copy", "link")[seed // 2 % 2]
    with stepwell.open(folder / "store") as store:
        assert store.import_checkpoint(source).result() == step
        check(content.metrics, store[step].metrics or {})
        for name, tree in {"state": content.tree, **content.others}.items():
            check(as_restored(tree, "saved"), store.load(step, (name,), as_="jax"))
            like = as_restored(tree, "jax")
            check(like, store.load(step, (name,), like=like))
        assert store.verify().ok
        export = store.export(step, folder / "export", mode=mode, zarr=zarr, leaves="jax",
                              layout="v0", unnamed_default=writer.is_unnamed)
        assert not (export.skipped or export.widened or export.as_numpy), export
    check(wanted, report(pathlib.Path(export.path), step, content, writer))
    counts[writer.name] += 1
    counts[f"zarr{zarr}"] += 1
    counts[mode] += 1


def seeds(text: str) -> range:
    first, last = text.split(":")
    return range(int(first), int(last))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--export", type=seeds, default=range(0))
    parser.add_argument("--import", type=seeds, default=range(0))
    parser.add_argument("--modes", default="link,reflink,copy")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    counts: Counts = collections.Counter()
    start, cases = time.monotonic(), 0
    work: list[tuple[str, Callable[[], None]]] = []
    modes, folder = arguments.modes.split(","), arguments.folder
    for seed in arguments.export:
        work.append((f"--export {seed}:{seed + 1}",
                     lambda seed=seed: export_case(seed, folder, modes, counts)))
    for seed in getattr(arguments, "import"):
        work.append((f"--import {seed}:{seed + 1}",
                     lambda seed=seed: import_case(seed, folder, counts)))
    for name, run in work:
        if time.monotonic() - start > arguments.seconds:
            break
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        try:
            run()
        except Exception:
            traceback.print_exc()
            print(f"failed: {name}", file=sys.stderr)
            return 1
        cases += 1
    print(json.dumps({"cases": cases, "seconds": round(time.monotonic() - start), **counts}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
