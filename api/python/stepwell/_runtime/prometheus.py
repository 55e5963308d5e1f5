# SPDX-License-Identifier: Apache-2.0
"""A store's numbers in the text format that Prometheus reads."""

from __future__ import annotations

from .stats import LatencyStats, StoreStats

# Rows of (field of StoreStats, Prometheus type, description).
_NUMBERS = (
    ("steps", "gauge", "Committed steps."),
    ("pinned_steps", "gauge", "Pinned steps."),
    ("segments", "gauge", "Files of the log."),
    ("segment_bytes", "gauge", "Bytes allocated by the files of the log."),
    ("staging_bytes", "gauge", "Memory of saves under way."),
    ("staging_bytes_max", "gauge", "The most memory that saves use."),
    ("saves_in_flight", "gauge", "Saves under way."),
    ("saves", "counter", "Saves committed since the store was opened."),
    ("saves_failed", "counter", "Saves that failed since the store was opened."),
    ("bytes_saved", "counter", "Bytes of the states saved since the store was opened."),
    ("bytes_written", "counter", "Bytes written to the log since the store was opened."),
    ("syncs", "counter", "Flushes of the disk since the store was opened."),
    ("bytes_moved", "counter", "Bytes of live steps that reclaim moved."),
    ("bytes_punched", "counter", "Bytes that reclaim gave back inside files."),
    ("segments_removed", "counter", "Files of the log that reclaim removed."),
    ("segments_recycled", "counter", "Files of the log that were used again."),
)
_SPACE = ("live_bytes", "padding_bytes", "overhead_bytes", "dead_bytes", "reserved_bytes",
          "index_bytes", "other_bytes")


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def prometheus_text(stats: StoreStats, path: str, latest: int | None) -> str:
    store = f"store={_quoted(path)}"
    lines: list[str] = []

    def add(name: str, kind: str, text: str, samples: list[tuple[str, str, float]]) -> None:
        lines.extend([f"# HELP stepwell_{name} {text}", f"# TYPE stepwell_{name} {kind}"])
        lines.extend([f"stepwell_{name}{suffix}{{{store}{labels}}} {value!r}"
                      for suffix, labels, value in samples])

    for key, kind, text in _NUMBERS:
        name = f"{key}_total" if kind == "counter" else key
        add(name, kind, text, [("", "", stats[key])])  # type: ignore[literal-required]
    if latest is not None:
        add("latest_step", "gauge", "The highest committed step.", [("", "", latest)])
    space = stats["space"]
    add("space_bytes", "gauge", "Bytes of the store's directory, by what they are for.",
        [("", f',kind="{key.removesuffix("_bytes")}"', space[key])  # type: ignore[literal-required]
         for key in _SPACE])
    samples: list[tuple[str, str, float]] = []
    for stage, each in stats["latency"].items():
        samples += _latency(stage, each)  # type: ignore[arg-type]
    add("save_seconds", "summary", "How long the stages of saves took since the store was opened.",
        samples)
    return "\n".join([*lines, ""])


def _latency(stage: str, each: LatencyStats) -> list[tuple[str, str, float]]:
    label = f',stage="{stage}"'
    return [("", f'{label},quantile="0.5"', each["p50_s"]),
            ("", f'{label},quantile="0.99"', each["p99_s"]),
            ("_sum", label, each["total_s"]), ("_count", label, each["count"])]
