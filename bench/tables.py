# SPDX-License-Identifier: Apache-2.0
"""The report as Markdown that is also readable as it is."""

import statistics
from typing import Any

import rows
from report import Figure, Report

# Values are in bytes, bytes per second and seconds; this is how they are shown.
UNITS = {"GB/s": 1e-9, "ms": 1e3, "MB": 1e-6, "core-s/GB": 1.0}

HEAD = ["what", "who", "median", "min … max", "rounds", "ratio to limit", "budget", "bounded by"]

# The tables of README.md and of the page Numbers: row, words, and the limit of the ratio, which is
# shown ("": it has none); None: the value is.
SHORT: list[tuple[str, str, str | None]] = [
    ("full/jax/durable", "throughput of a save until durable, JAX arrays ÷ fio write", "1"),
    ("full/NumPy/durable", "throughput of a save until durable, NumPy arrays ÷ fio write", "1"),
    ("full/jax/stall", "stall of the caller, {arrays} JAX arrays; for each", None),
    ("full/NumPy/stall", "stall of the caller, NumPy arrays ÷ memcpy", "1"),
    ("full/NumPy/first", "stall of a process's first save ÷ memcpy", "1"),
    ("full/NumPy/cpu", "CPU seconds per GB saved, NumPy arrays", None),
    ("full/NumPy/restore", "throughput of a cold restore into NumPy ÷ fio read", "1"),
    ("part/read", "`params` of params and optimizer: bytes read ÷ needed", "1"),
    ("leaf/first", "one leaf of 10,000, the first after opening", None),
    ("leaves/stall", "2,000 leaves of 4 KiB: stall", None),
    ("leaves/durable", "2,000 leaves of 4 KiB: saved", None),
    ("leaves/restore", "2,000 leaves of 4 KiB: opened and restored", None),
    ("tiny/durable", "100,000 leaves of 64 bytes: saved", None),
    ("tiny/restore", "100,000 leaves of 64 bytes: opened and restored", None),
    ("one/durable", "10 leaves of 1 KiB at a path ÷ one file and its directory, synced", ""),
    ("part/columns", "an eighth of an array's columns: bytes read ÷ needed", "1"),
    *((f"sizes/{size_mb}-stall", f"stall of the caller, NumPy arrays of {size_mb:,} MB ÷ memcpy",
       "1") for size_mb in (1, 10, 100, 1000)),
    ("beside/1", "training of 30 million parameters, saved each step ÷ never saved", "1"),
    ("beside/10", "the same, saved every 10 steps", "1"),
    ("beside/100", "the same, saved every 100 steps", "1"),
    ("report/page", "a page of a run, 1,000 steps × 5,000 leaves: made", None),
    ("report/size", "its size", None),
    ("commit/durable", "a state of 1 MB: save to durable", None),
    ("space/written", "bytes written ÷ bytes saved, newest 5 of many steps kept", "1"),
    ("orbax/step", "a step saved and there for Orbax, durable ÷ fio write", "1"),
    ("orbax/load", "loaded by Orbax v1, cold ÷ fio read", "1"),
    ("orbax/copy", "export by copy ÷ copying its files", "1"),
    ("orbax/import", "import of what Orbax v1 saved ÷ copying its files", "1"),
    ("mesh/save", "saved over a mesh (8,1) of CPU devices ÷ fio write", "1"),
    ("mesh/1x8", "restored on (1,8) ÷ fio read", "1"),
    ("mesh/2x4", "restored on (2,4) ÷ fio read", "1"),
    ("mesh/one", "restored on one device ÷ fio read", "1"),
    ("memory/save-NumPy", "peak memory of a save beyond the state ÷ state", ""),
    ("unchanged/objects-written", "1 % of a state changed, the same arrays: bytes written ÷ state",
     ""),
    ("unchanged/objects-time", "that save until durable ÷ the first one", ""),
    ("unchanged/content-time", "that save, equal content in new arrays ÷ the first one", ""),
    *((f"delta/rl-{rate}-written",
       f"bfloat16 weights, learning rate {rate}, differences: bytes written ÷ state", "")
      for rate in ("1e-07", "1e-06", "3e-06", "1e-05", "3e-05")),
    ("delta/adam-bf16-written",
     "Adam, all in bfloat16, differences and blosc: bytes written ÷ state", ""),
    ("delta/adam-fp32-written",
     "Adam, all in float32, differences and blosc: bytes written ÷ state", ""),
    ("delta/rl-1e-06-restore",
     "a step with differences, learning rate 1e-06, restored cold ÷ one without", ""),
    ("delta/rl-1e-06-left", "all other steps deleted: disk space ÷ bytes of the step", ""),
    ("push/lora-sent", "20 steps with 1 % trained, pushed as a run: bytes sent ÷ one step", ""),
    ("push/lora-received", "each of them pulled: bytes received ÷ one step", ""),
    ("history/time", "one array of 1,000 steps by `history` ÷ a load of each", ""),
    ("statistics/fp32-cpu", "CPU time of a save with statistics, float32 ÷ one without", ""),
    ("deep/dense-p99", "slowest of 100 saves at 100,000 live steps ÷ at 100, all new", ""),
    ("deep/shared-p99", "slowest of 100 saves at 100,000 live steps ÷ at 100, 63 of 64 shared",
     ""),
    ("publish/default-applied",
     "1 % of bfloat16 weights changed: from save until a follower has them ÷ memcpy of all", ""),
    ("publish/staged-applied", "the same, `staging_bytes` of four times the weights ÷ memcpy", ""),
    ("publish/staged-trl", "that ÷ the encoder of TRL #5937, and its application", ""),
    ("publish/staged-prime-rl", "that ÷ the encoder of prime-rl #2823, and its application", ""),
    ("publish/wait-worst", "from durable until the follower woke, the longest", None),
    ("publish/memory", "peak memory of a follower's update, beyond the weights", None),
]


def number(value: float, unit: str) -> str:
    value *= UNITS[unit]
    if value == 0:
        return "0"
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def head(described: dict[str, Any], settings: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in described["versions"].items())
    return "\n".join([
        f"machine     {described['cores']} cores of {described['cpu']}, "
        f"{described['memory_bytes'] / 2**30:.0f} GiB; load {described['load_average']:.1f} before",
        f"kernel      Linux {described['kernel']}",
        f"directory   {described['filesystem']}",
        f"disk        {described['disk']}",
        f"versions    {versions}",
        f"state       {settings['state']}",
        f"method      {settings['method']}",
    ])  # fmt: skip


def full(report: Report) -> str:
    """One table for the limits and one for each group."""
    groups: dict[str, list[list[str]]] = {}
    for row in report.rows.values():
        first = True
        for key, described in report.who.items():
            figure = report.figures.get((row.id, key))
            if figure is None:
                continue
            what = row.what + (" (Stepwell only)" if row.only else "") if first else ""
            groups.setdefault(row.group, []).append(
                [what, described["name"], *_cells(figure, row, key)])
            first = False
    tables = [("Limits of this machine, in the same rounds", _limits(report)), *groups.items()]
    widths = [max([len(HEAD[i]), *(len(line[i]) for _, lines in tables for line in lines)])
              for i in range(len(HEAD))]
    return "\n\n".join(f"**{name}**\n\n" + _markdown(HEAD, lines, widths)
                       for name, lines in tables)


def _limits(report: Report) -> list[list[str]]:
    lines = []
    for name, (what, unit) in rows.LIMITS.items():
        values = report.limits.get(name)
        if values:
            lines.append([what, "the machine", f"{number(statistics.median(values), unit)} {unit}",
                          _spread(values, unit), str(len(values)), "", "", ""])
        else:
            lines.append([what, "the machine", "not measured", "", "", "", "", ""])
    return lines


def _spread(values: list[float], unit: str) -> str:
    if len(values) < 2:
        return ""
    return f"{number(min(values), unit)} … {number(max(values), unit)}"


def _cells(figure: Figure, row: rows.Row, contender: str) -> list[str]:
    own = contender == "stepwell"
    budget, bound = (row.budget, row.bound) if own else ("", "")
    if not figure.values:
        return [figure.problem, "", "", "", budget, bound]
    median = f"{number(figure.median, row.unit)} {row.unit}"
    if figure.problem:  # in another round
        median += f"; {figure.problem}"
    ratio = "" if figure.ratio is None else f"{_ratio(figure.ratio)} × {row.limit_name}"
    return [median, _spread(figure.values, row.unit), str(len(figure.values)), ratio, budget, bound]


def _ratio(value: float) -> str:
    if 0 < value < 0.1:
        return f"{value:.2g}"
    return f"{value:.2f}" if value < 100 else f"{value:,.0f}"


def _markdown(header: list[str], lines: list[list[str]], widths: list[int]) -> str:
    def line(cells: list[str]) -> str:
        return "| " + " | ".join(c.ljust(w) for c, w in zip(cells, widths, strict=True)) + " |"

    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([line(header), rule, *map(line, lines)])


def short(report: Report, arrays: int) -> str:
    """Makes the table of documents. `arrays`: in the state."""
    header = ["", *(described["name"] for described in report.who.values()), "limit"]
    lines = []
    for row_id, what, limit in SHORT:
        cells = [what.format(arrays=arrays)]
        for key in report.who:
            figure = report.figures.get((row_id, key))
            if figure is None:
                cells.append("")
            elif not figure.values:
                cells.append(figure.problem.split(":")[0])
            elif limit is None:
                unit = report.rows[row_id].unit
                each = f"; {figure.median / arrays * 1e6:,.0f} µs" if "{arrays}" in what else ""
                cells.append(f"{number(figure.median, unit)} {unit}{each}")
            else:
                cells.append("" if figure.ratio is None else _ratio(figure.ratio))
        if not any(cells[1:]):
            continue  # --rows left it out
        lines.append([*cells, limit or ""])
    return "\n".join("| " + " | ".join(cells) + " |" for cells in
                     [header, ["---"] * len(header), *lines])
