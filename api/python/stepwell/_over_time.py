# SPDX-License-Identifier: Apache-2.0
"""A leaf over time, in numbers: what a notebook shows of a History, and what it plots."""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ._charts import sparkline_svg
from ._display import escaped, format_bytes, html_note, html_table
from ._text import counted
from .errors import InvalidArgumentError

_SUMMED_MAX = 256 << 20  # bytes of values of which a notebook computes numbers
_BLOCK = 1 << 20  # elements that are looked at together
_PLOTTED = ("min", "mean", "max")


def numbers_over_time(values: Any) -> dict[str, np.ndarray[Any, Any]]:
    """Numbers about each step's value, as arrays of float64, by name. Of a scalar it is `value`. Of
    an array they are `min`, `mean`, `max` and `norm`, of complex numbers those of the magnitudes; a
    NaN makes them NaN. Of statistics they are those of the finite elements, and `nonfinite` and
    `changed`."""
    array = np.asarray(values)
    with np.errstate(all="ignore"):
        if array.dtype.names:
            mean = array["sum"] / (array["elements"] - array["nonfinite"])
            return {"min": array["min"], "mean": mean, "max": array["max"], "norm": array["norm"],
                    "nonfinite": array["nonfinite"].astype(np.float64), "changed": array["changed"]}
        if array.ndim == 1:
            return {"value": _wide(array)}
        rows = max(1, _BLOCK // max(1, math.prod(array.shape[1:])))
        # A block at a time: 100,000 small rows one by one take seconds, all as float64 the memory.
        blocks = [_summaries(_wide(array[i:i + rows])) for i in range(0, len(array), rows)]
    return {name: np.concatenate([np.empty(0), *[block[i] for block in blocks]])
            for i, name in enumerate((*_PLOTTED, "norm"))}


def _wide(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return (np.abs(array) if array.dtype.kind == "c" else array).astype(np.float64)


def _summaries(rows: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], ...]:
    """Minimum, mean, maximum and norm of each row. `rows`: at least one."""
    flat = rows.reshape(len(rows), math.prod(rows.shape[1:]))
    if not flat.size:
        unknown = np.full(len(rows), math.nan)
        return unknown, unknown, unknown, np.zeros(len(rows))
    return flat.min(1), flat.mean(1), flat.max(1), np.sqrt(np.square(flat).sum(1))


def html_over_time(steps: Sequence[int], values: Any) -> str:
    """A line, and a table of the steps. Values that are large, or not all in this process, are
    only said to be there."""
    what = f"{counted(len(steps), 'step')} of {values.dtype.name}{list(values.shape[1:])}"
    if values.dtype.names:
        what = f"statistics of {counted(len(steps), 'step')}"
    if values.nbytes > _SUMMED_MAX or not getattr(values, "is_fully_addressable", True):
        return html_note(f"{what}, {format_bytes(values.nbytes)}; plot() computes numbers of them")
    array = np.asarray(values)
    numbers = numbers_over_time(array)
    name = "value" if "value" in numbers else "norm"
    line = sparkline_svg(numbers[name].tolist(), f"{name} of {what}")
    columns = ([str(value) for value in array.tolist()],) if "value" in numbers else [
        [f"{number:.6g}" for number in column] for column in numbers.values()]
    rows = [*zip(map(str, steps), *columns, strict=True)]
    return f"<p>{escaped(name)} {line}</p>" + html_table(what, ("step", *numbers), rows)


def plot_over_time(steps: Sequence[int], values: Any, names: Sequence[str], ax: Any,
                   options: dict[str, Any]) -> Any:
    """Draws lines on matplotlib's Axes `ax`, or on the current one, and returns it."""
    try:
        pyplot = importlib.import_module("matplotlib.pyplot")
    except ImportError as error:
        raise ImportError("History.plot draws with matplotlib, which cannot be imported "
                          f"({error}): pip install matplotlib") from None
    numbers = numbers_over_time(values)
    for name in names:
        if name not in numbers:
            raise InvalidArgumentError(f"there is no {name!r} to plot; there are "
                                       f"{', '.join(numbers)}")
    chosen = names or (["value"] if "value" in numbers else _PLOTTED)
    ax = pyplot.gca() if ax is None else ax
    order = sorted(range(len(steps)), key=steps.__getitem__)
    for name in chosen:
        ax.plot([steps[i] for i in order], numbers[name][order], **{"label": name, **options})
    ax.set_xlabel("step")
    if len(chosen) > 1:
        ax.legend()
    return ax
