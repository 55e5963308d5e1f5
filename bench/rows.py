# SPDX-License-Identifier: Apache-2.0
"""Every row that bench/run can measure: its words, its unit, its limit, its budget."""

from typing import NamedTuple

# Trainings whose steps the theme delta saves. Learning rates as in reinforcement learning with
# weights in bfloat16.
TRAININGS = ("rl-1e-07", "rl-1e-06", "rl-3e-06", "rl-1e-05", "rl-3e-05", "adam-bf16", "adam-fp32",
             "lora")


class Row(NamedTuple):
    id: str  # theme/…; what a theme emits
    group: str  # a table
    what: str
    unit: str
    limit: str = ""  # the key in limits.measure(); "own": the theme gives it with each value
    limit_name: str = ""
    bound: str = ""  # what Stepwell's figure cannot beat, in words
    budget: str = ""  # what the design promises for Stepwell
    only: str = ""  # the contender that alone has this row
    background: bool = False  # not for contenders that are durable when they say done


def _save(kind: str) -> list[Row]:
    save = f"Save the full state, {kind} arrays"
    stall = ("≤ 1.1", "memory bandwidth")
    if kind == "jax":
        stall = ("≤ 1 ms + 1 µs a leaf", "work a leaf")
    return [
        Row(f"full/{kind}/durable", save, "until durable", "GB/s", "write", "fio write",
            "disk write", "≥ 0.90"),
        Row(f"full/{kind}/done", save, "until it says done, not durable", "GB/s", "write",
            "fio write", background=True),
        Row(f"full/{kind}/stall", save, "stall of the caller", "ms", "memcpy", "memcpy",
            stall[1], stall[0]),
        Row(f"full/{kind}/first", save, "stall of a process's first save", "ms", "memcpy",
            "memcpy", "new memory, threads"),
        Row(f"full/{kind}/cpu", save, "CPU seconds", "core-s/GB", "memcpy cpu", "one memcpy's",
            "copies, checksums", "≤ 0.2 core-s/GB"),
        Row(f"full/{kind}/written", save, "bytes written", "MB", "own", "bytes saved",
            "padding, records", "≤ 1.01"),
    ]


def _restore(kind: str) -> list[Row]:
    restore = "Restore the full state, cold"
    return [
        Row(f"full/{kind}/restore", restore, f"into {kind} arrays", "GB/s", "read", "fio read",
            "disk read", "≥ 0.90"),
        Row(f"full/{kind}/read", restore, f"bytes read, into {kind} arrays", "MB", "own",
            "bytes restored", "padding, records"),
    ]


def _leaves(theme: str, count: int, leaf: str, group: str, budgets: tuple[str, str]) -> list[Row]:
    what = f"{count:,} × {leaf}: "
    return [
        Row(f"{theme}/durable", group, what + "saved, durable", "ms", f"sync {theme}",
            "fio write + fdatasync", "work a leaf, one flush", budgets[0]),
        Row(f"{theme}/stall", group, what + "stall", "ms", f"sync {theme}",
            "fio write + fdatasync", "work a leaf"),
        Row(f"{theme}/restore", group, what + "opened and restored, cold", "ms",
            f"read {theme}", "fio read", "opening, work a leaf"),
        Row(f"{theme}/open", group, what + "restored, store open, cold", "ms",
            f"read {theme}", "fio read", "index, work a leaf", budgets[1], only="stepwell"),
    ]


def _mesh() -> list[Row]:
    group = "Over meshes: saved on (8,1) of CPU devices, restored on others"
    rows = [Row("mesh/save", group, "saved on (8,1), durable", "GB/s", "write", "fio write",
                "disk write")]
    for key, words in (("1x8", "(1,8)"), ("2x4", "(2,4)"), ("one", "one device")):
        rows.append(Row(f"mesh/{key}", group, f"restored on {words}, cold", "GB/s", "read",
                        "fio read", "disk read, copies into the slices"))
        rows.append(Row(f"mesh/{key}-read", group, f"bytes read for {words}", "MB", "own",
                        "bytes restored", "padding, records"))
    return rows


def _many(steps: int) -> list[Row]:
    group = f"Many steps: {steps:,} small ones, a reader"
    return [Row(f"many/{row}", group, what, "ms", "read 4k", "fio read of 4 KiB", bound, budget,
                only="stepwell")
            for row, what, bound, budget in (
                ("latest", "`latest`, not the first call", "a look at STEPWELL", "≤ 1 ms"),
                ("numbers", "`steps()`", "work a step", "≤ 20 ms"),
                ("metrics", "`steps(metrics=True)`", "one scan of the index", "≤ 0.5 s"),
                ("best", '`best("loss")`', "one scan of the index", "≤ 0.5 s"),
                ("stats", "`stats()`", "work a step", "≤ 1 s"),
                ("ls", "`stepwell ls --last 20`, a new process", "opening the store", "≤ 0.2 s"))]


def _deep(steps: int) -> list[Row]:
    group = f"Saves at {steps:,} live steps, the oldest retired, beside those at 100"
    return [Row(f"deep/{kind}-{row}", group, f"{what}, {words}", "ms", "own", "at 100 live steps",
                "one flush", budget, only="stepwell")
            for kind, words in (("dense", "4 KiB, all new"),
                                ("shared", "64 × 4 KiB, one of them new"))
            for row, what, budget in (("p99", "the slowest of 100 saves, durable", "≤ 1.1"),
                                      ("median", "saved, durable", ""))]


def _history(steps: int) -> list[Row]:
    group = f"One array over {steps:,} steps of a fine-tuning, cold"
    return [Row("history/time", group, "`history(path)`", "ms", "own", "a load of each step",
                "reads of its chunks", only="stepwell"),
            Row("history/read", group, "bytes read", "MB", "own", "bytes of the array's steps",
                "alignment of reads, records", only="stepwell"),
            Row("history/changed", group, "`changed(first, last)`", "ms", "read 4k",
                "fio read of 4 KiB", "records of two steps", only="stepwell")]


def _report(steps: int, leaves: int) -> list[Row]:
    group = f"A page of a run, {steps:,} steps × {leaves:,} leaves with statistics, cold"
    limit = "reading the records that it looks into"
    return [Row("report/document", group, "its document", "ms", "own", limit, "work a cell",
                only="stepwell"),
            Row("report/page", group, "the page", "ms", "own", limit, "work a cell, gzip",
                "≤ 5 s", only="stepwell"),
            Row("report/size", group, "size of the page", "MB", "own", "the document as JSON",
                "digits of the statistics", "≤ 5 MB", only="stepwell")]


def _sizes() -> list[Row]:
    group = "States of several sizes, 48 NumPy arrays each, all new"
    return [row for size_mb in (1, 10, 100, 1000) for row in (
        Row(f"sizes/{size_mb}-stall", group, f"stall of the caller, {size_mb:,} MB", "ms", "own",
            "memcpy", "memory bandwidth", "≤ 1.1", only="stepwell"),
        Row(f"sizes/{size_mb}-cpu", group, f"CPU seconds, {size_mb:,} MB", "core-s/GB",
            bound="one copy, one CRC, one hash", budget="≤ 0.19", only="stepwell"))]


def _beside() -> list[Row]:
    group = "Training beside saves: a transformer of 30 million parameters with Adam, on all cores"
    return [Row(f"beside/{every}", group, f"a step of training, saved every {every}", "ms", "own",
                "a step that is never saved", "cores that training needs",
                "≤ 1.03" if every == 10 else "") for every in (1, 10, 100)]


def _unchanged() -> list[Row]:
    group = "Steps of a fine-tuning in which one percent changes, beside the first of them"
    return [row for kind, words in (("objects", "the same arrays"),
                                    ("content", "equal content in new arrays"))
            for row in (
                Row(f"unchanged/{kind}-written", group, f"bytes written, {words}", "MB", "own",
                    "bytes of the state", "what changed", "≤ 0.012"),
                Row(f"unchanged/{kind}-time", group, f"saved, durable, {words}", "ms", "own",
                    "the first step", "what changed" if kind == "objects" else "hash of the state",
                    "≤ 0.05" if kind == "objects" else "≤ 0.35"))]


def _delta() -> list[Row]:
    group = "Steps of a training, Stepwell with differences"
    names = {"adam-bf16": 'Adam, all in bfloat16, codec="blosc"',
             "adam-fp32": 'Adam, all in float32, codec="blosc"',
             "lora": "a frozen base"}
    rows = []
    for kind in TRAININGS:
        what = names.get(kind, f"bfloat16 cast of Adam at {kind[3:]}")
        row = f"delta/{kind}-"
        rows += [
            Row(row + "changed", group, f"elements that changed, {what}", "MB", "own",
                "bytes of the state", only="stepwell"),
            Row(row + "written", group, f"bytes written, {what}", "MB", "own",
                "bytes of the state", "entropy of what changed"),
            Row(row + "zstd", group, f"bytes written, {what}", "MB", "own",
                "the whole state by zstd -1", "entropy of what changed", only="stepwell"),
            Row(row + "entropy", group, f"bytes written, {what}", "MB", "own",
                "entropy of what changed", "records", "≤ 1.25", only="stepwell"),
            Row(row + "stall", group, f"stall, {what}", "ms", "own", "without differences",
                "one copy", "≤ 1", only="stepwell"),
            Row(row + "durable", group, f"saved, durable, {what}", "ms", "own",
                "without differences", "encoding", only="stepwell"),
            Row(row + "restore", group, f"restored, cold, {what}", "ms", "own",
                "without differences", "disk read, decoding", "≤ 1.5", only="stepwell"),
            Row(row + "left", group, f"disk space once all other steps are deleted, {what}", "MB",
                "own", "bytes of the step", "records, alignment", "≤ 1.05", only="stepwell"),
        ]
    return rows


def _statistics() -> list[Row]:
    group = "Save the full state with statistics, JAX arrays"
    return [row for kind in ("fp32", "bf16") for row in (
        Row(f"statistics/{kind}-durable", group, f"until durable, {kind}", "ms", "own",
            "without statistics", "disk write", "≤ 1.03", only="stepwell"),
        Row(f"statistics/{kind}-cpu", group, f"CPU time, {kind}", "ms", "own",
            "without statistics", "one look at each element", only="stepwell"))]


def _push() -> list[Row]:
    group = "Push of a chain of 20 steps, to a directory"
    rows = []
    for kind, words, budget in (("lora", "a frozen base", "≤ 1.25"),
                                ("rl-1e-06", "bfloat16 cast of Adam at 1e-06, differences", "")):
        rows += [
            Row(f"push/{kind}-sent", group, f"bytes sent, run of steps, {words}", "MB", "own",
                "bytes of one step", "what changed", budget, only="stepwell"),
            Row(f"push/{kind}-received", group, f"bytes received, each step pulled, {words}", "MB",
                "own", "bytes of one step", "what changed", budget, only="stepwell"),
            Row(f"push/{kind}-orbax", group, f"bytes sent, as Orbax checkpoints, {words}", "MB",
                "own", "bytes of one step", "the steps", only="stepwell"),
        ]
    return rows


def _publish(encoders: bool) -> list[Row]:
    group = "Weights in bfloat16, 1 % changed, from a training to a follower on this machine"
    rows = []
    for kind, words in (("default", "staging_bytes as it is"),
                        ("staged", "staging_bytes 4 × the weights")):
        rows += [Row(f"publish/{kind}-{row}", group, f"from save until {what}, {words}", "ms",
                     "own", "memcpy of the weights", bound, only="stepwell")
                 for row, what, bound in (("durable", "durable", "copies, hash, comparison"),
                                          ("seen", "the follower woke", "the same"),
                                          ("applied", "it had updated its arrays",
                                           "the same, and checks of the follower"))]
        if encoders:
            rows += [Row(f"publish/{kind}-{key}", group, f"the same, beside {name}, {words}", "ms",
                         "own", f"{name}'s encoder, and its application", only="stepwell")
                     for key, name in (("trl", "TRL"), ("prime-rl", "prime-rl"))]
    return [
        *rows,
        Row("publish/wait", group, "from durable until the follower woke", "ms", bound="inotify",
            budget="≤ 10 ms", only="stepwell"),
        Row("publish/wait-worst", group, "the longest of them", "ms", bound="inotify",
            budget="≤ 10 ms", only="stepwell"),
        Row("publish/behind", group, "from durable until it had updated its arrays", "ms", "own",
            "10 ms + fio read of what it reads", "copies, hashes", only="stepwell"),
        Row("publish/read", group, "bytes read by the follower", "MB", "own",
            "bytes of the weights that changed", "entropy of what changed", only="stepwell"),
        Row("publish/memory", group, "peak memory of an update, beyond the weights", "MB",
            bound="what it reads, buffers", budget="≤ 64 MiB", only="stepwell"),
    ]


def catalogue(leaves: int = 2000, tiny: int = 100_000, wide: int = 10_000, steps: int = 1000,
              step_leaves: int = 1000, million: int = 1_000_000,
              jax_leaves: int = 1000, many_steps: int = 100_000,
              encoders: bool = False) -> list[Row]:
    part, one = "Load a part, cold", "Load one leaf of many, cold"
    many, commit = "Many small leaves", "Small and frequent saves"
    orbax = "Orbax checkpoints: a step of the full state as one, and the other way"
    space, memory, start = "Bytes to the disk, newest 5 steps kept", "Peak memory", "Start"
    return [
        *_save("NumPy"), *_save("jax"), *_restore("NumPy"), *_restore("jax"),
        *_leaves("leaves", leaves, "4 KiB", many, ("≤ 20 ms", "≤ 10 ms")),
        Row("leaves/jax-stall", many, f"{jax_leaves:,} × 4 KiB, JAX arrays: stall", "ms",
            "sync leaves", "fio write + fdatasync", "work a leaf", "≤ 5 ms"),
        Row("leaves/jax-durable", many, f"{jax_leaves:,} × 4 KiB, JAX arrays: saved, durable",
            "ms", "sync leaves", "fio write + fdatasync", "work a leaf, one flush"),
        *_leaves("tiny", tiny, "64 B", many, ("", "")),
        Row("commit/durable", commit, "a state of 1 MB, save to durable", "ms", "sync commit",
            "fio write + fdatasync", "one write, one flush", "one flush + 1 ms"),
        Row("commit/slowest", commit, "the slowest of them", "ms", "sync commit",
            "fio write + fdatasync", "one write, one flush"),
        Row("one/durable", commit, "10 × 1 KiB as one checkpoint, a path each (Stepwell: a step)",
            "ms", "own", "one file, fsync, rename, fsync", "syncs, work a checkpoint"),
        Row("one/new", commit, "10 × 1 KiB: a new store opened, saved to and closed", "ms", "own",
            "one file, fsync, rename, fsync", "syncs of a store", "≤ 20 ms", only="stepwell"),
        Row("part/time", part, "`params` of params and optimizer", "ms", "read part",
            "fio read of as many bytes", "disk read, opening", "≤ 1 ms + disk read"),
        Row("part/read", part, "bytes read for it", "MB", "own", "bytes needed",
            "padding, records", "≤ 1.05"),
        Row("part/planned", part, "bytes read by the store's own count", "MB", "own",
            "bytes of its chunks", "alignment of reads", "≤ 1.05", only="stepwell"),
        Row("part/rows", part, "16 rows of an array, store open", "ms", "read 4k",
            "fio read of 4 KiB", "read of one chunk", "≤ 1 ms + one chunk", only="stepwell"),
        Row("part/columns", part, "bytes read for an eighth of an array's columns", "MB", "own",
            "bytes needed", "alignment of reads", "≤ 1.15", only="stepwell"),
        Row("leaf/open", one, f"opening a step of {wide:,} leaves", "ms", "read 4k",
            "fio read of 4 KiB", "records of the step"),
        Row("leaf/first", one, f"one leaf of {wide:,}, the first after opening", "ms", "read 4k",
            "fio read of 4 KiB", "one read", "≤ 1 ms"),
        Row("leaf/next", one, "another one", "ms", "read 4k", "fio read of 4 KiB", "one read",
            "≤ 1 ms"),
        Row("steps/reader", start, f"open for reading, {steps:,} steps × {step_leaves:,} leaves",
            "ms", "own", "fio read of what it reads", "reading the log's catalog", "≤ 50 ms",
            only="stepwell"),
        Row("steps/writer", start, "open for writing, closed cleanly before", "ms", "own",
            "fio read of what it reads", "catalog, index", "≤ 50 ms", only="stepwell"),
        Row("steps/list", start, "numbers of all steps", "ms", "read 4k", "fio read of 4 KiB",
            "work a step", "≤ 5 ms", only="stepwell"),
        *_many(many_steps), *_deep(many_steps),
        *_beside(),
        *_sizes(),
        *_unchanged(), *_delta(), *_statistics(), *_push(), *_publish(encoders), *_history(steps),
        *_report(steps, 5 * step_leaves),
        Row("start/import", start, "import, beyond NumPy", "ms", "own", "import of NumPy",
            "dynamic linking", "≤ 50 ms, as Orbax v1 ≤ 70 ms"),
        Row("orbax/step", orbax, "saved and there for Orbax, durable", "GB/s", "write",
            "fio write", "disk write"),
        Row("orbax/load", orbax, "loaded by Orbax v1, cold, NumPy arrays", "GB/s", "read",
            "fio read", "Orbax"),
        Row("orbax/link", orbax, "export of a saved step, by link", "ms", "sync commit",
            "fio write + fdatasync", "a few synced files", "≤ 100 ms", only="stepwell"),
        Row("orbax/link-written", orbax, "bytes written for it", "MB", "own", "bytes of the step",
            "metadata", "< 1 MB", only="stepwell"),
        Row("orbax/copy", orbax, "export by copy", "GB/s", "own", "copying its files",
            "disk read + write", "≥ 0.80", only="stepwell"),
        Row("orbax/import-own", orbax, "import of that export", "GB/s", "own",
            "copying its files", "disk read + write", "≥ 0.80", only="stepwell"),
        Row("orbax/import", orbax, "import of what Orbax v1 saved", "GB/s", "own",
            "copying its files", "disk read + write, zstd", "≥ 0.80", only="stepwell"),
        Row("million/export", orbax, f"export of {million:,} chunks, by link", "ms",
            "sync commit", "fio write + fdatasync", "work a leaf", "≤ 15 s", only="stepwell"),
        Row("million/read", orbax, "200 of those arrays, opened and read by TensorStore", "ms",
            "read 4k", "fio read of 4 KiB", "TensorStore", "≤ 1 s", only="stepwell"),
        *_mesh(),
        Row("space/written", space, "bytes written by the process", "MB", "own", "bytes saved",
            "records, index", "≤ 1.01"),
        Row("space/device", space, "bytes written to the device, by all", "MB", "own",
            "bytes saved", "records, index, journal"),
        Row("space/kept", space, "space at the end", "MB", "own", "bytes of 5 steps",
            "whole segments"),
        Row("space/viewed", space, "space of a root with a directory for each step", "MB", "own",
            "bytes of 5 steps", "whole segments; data shared by links", only="stepwell"),
        Row("space/viewed-small", space, "the same, steps of 1 MB that share segments", "MB",
            "own", "bytes of 5 steps", "a segment; small steps are copied", only="stepwell"),
        Row("memory/save-NumPy", memory, "first save, NumPy arrays, beyond the state", "MB",
            "own", "bytes of the state", "staging memory"),
        Row("memory/save-jax", memory, "first save, jax arrays, beyond the state", "MB", "own",
            "bytes of the state", "staging memory"),
        Row("memory/restore", memory, "restore into NumPy arrays, beyond the state", "MB", "own",
            "bytes of the state", "read buffers"),
        Row("memory/staging", memory, "staging memory, state 3 × as large", "MB", "own",
            "its bound", "the option staging_bytes", "≤ 1", only="stepwell"),
        Row("memory/bounded", memory, "growth during that save", "MB", "own", "its bound",
            "staging and fixed buffers", only="stepwell"),
    ]


LIMITS = {
    "write": ("fio write, O_DIRECT, new file, with fsync", "GB/s"),
    "read": ("fio read, O_DIRECT", "GB/s"),
    "memcpy rate": ("memcpy of the state, one thread", "GB/s"),
    "memcpy cpu": ("CPU seconds of that memcpy", "core-s/GB"),
    "sync commit": ("fio write + fdatasync of 1 MB, one at a time", "ms"),
    "sync leaves": ("the same for the 4 KiB leaves together", "ms"),
    "sync tiny": ("the same for the 64 B leaves together", "ms"),
    "read leaves": ("fio read of the 4 KiB leaves together", "ms"),
    "read tiny": ("fio read of the 64 B leaves together", "ms"),
    "read 4k": ("fio read of 4 KiB, random, one at a time", "ms"),
}
