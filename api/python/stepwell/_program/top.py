# SPDX-License-Identifier: Apache-2.0
"""`stepwell top`: how a store does, live, drawn by rich."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import math
import os
import select
import shutil
import signal
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from .. import _store
from .._display import format_bytes
from .._printed.values import value_json
from .._text import counted, printable
from ..errors import Error, InvalidArgumentError
from .looks import Looks, intervals
from .over_steps import bars, cut, duration, over_time


_BARS_MIN, _BARS_MAX = 16, 60  # columns
_TEXT_WIDTH = 56  # columns that are left for the texts beside the bars
_NARROW = 40  # columns, below which names have no column of their own
_LISTED_MAX, _METRICS_MAX = 8, 12
_NAME_MAX, _TEXT_MAX = 24, 200  # characters of a name, of a reason


def run(given: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Prints pictures until `q` or Ctrl-C. If standard output is not a terminal, it prints one."""
    if not 0 < given.interval < math.inf:
        raise InvalidArgumentError("--interval is a number of seconds above 0, not "
                                   f"{given.interval!r}")
    rich = None if given.json else _rich()
    with _store.open(given.store, mode="r", untrusted=given.untrusted) as store:
        looks = Looks(store)
        if given.json:
            return _plain(looks.look()), ""
        draw = _Drawing(rich)
        if given.once or not draw.can_be_live():
            return {}, draw.text(looks.look())
        draw.live(looks, given.interval)
    return {}, ""


def _rich() -> Any:
    """The modules of rich that draw it."""
    try:
        return argparse.Namespace(**{name: importlib.import_module(f"rich.{name}")
                                     for name in ("console", "live", "table", "text")})
    except ImportError as error:
        raise Error(f"top is drawn by rich, which is not installed ({error}): "
                    "pip install 'rich>=14'; --json needs nothing") from None


def _plain(value: Any) -> Any:
    """Numbers that JSON lacks as text."""
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    return [*map(_plain, value)] if isinstance(value, list) else value_json(value)


class _Drawing:
    def __init__(self, rich: Any) -> None:
        self._rich = rich

    def text(self, look: dict[str, Any]) -> str:
        """One picture, as text."""
        console = self._rich.console.Console(width=_columns())
        with console.capture() as captured:
            console.print(self._table(look))
        return "".join([line.rstrip() + "\n" for line in captured.get().splitlines()])

    def can_be_live(self) -> bool:
        """Whether standard output is a terminal that can move its cursor."""
        console = self._rich.console.Console()
        return sys.stdout.isatty() and not console.is_dumb_terminal

    def live(self, looks: Looks, interval_s: float) -> None:
        """Draws on the whole terminal until `q`, Ctrl-C or SIGTERM."""
        console = self._rich.console.Console()
        with contextlib.suppress(KeyboardInterrupt), _sigterm_as_ctrl_c():
            first = self._table(looks.look())  # errors of a store show on a screen that stays
            with _keys() as pressed, self._rich.live.Live(
                    first, console=console, screen=True, auto_refresh=False) as live:
                live.refresh()
                while not pressed(interval_s) & {"q", "Q"}:
                    live.update(self._table(looks.look()), refresh=True)

    def _table(self, look: dict[str, Any]) -> Any:
        table = self._rich.table.Table.grid(padding=(0, 2))
        text = self._rich.text.Text
        is_narrow = _columns() < _NARROW
        if not is_narrow:
            table.add_column(style="bold", no_wrap=True)
        table.add_column(overflow="fold")
        bars_max = min(max(_BARS_MIN, _columns() - _TEXT_WIDTH), _BARS_MAX)
        for name, value in rows_of(look, bars_max):
            if is_narrow:
                table.add_row(text(f"{name} {value}".lstrip()))
            else:
                table.add_row(text(name), text(value))
        return table


def _columns() -> int:
    return shutil.get_terminal_size((100, 0)).columns


@contextlib.contextmanager
def _sigterm_as_ctrl_c() -> Iterator[None]:
    """So that SIGTERM, too, leaves the terminal as it was."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _keys() -> Iterator[Callable[[float], set[str]]]:
    """A function that waits so many seconds, or for a key, and returns the keys."""
    if not sys.stdin or not sys.stdin.isatty():
        def sleep(seconds: float) -> set[str]:
            time.sleep(seconds)
            return set()

        yield sleep
        return
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)

    def pressed(seconds: float) -> set[str]:
        if not select.select([terminal], [], [], seconds)[0]:
            return set()
        # The end of the input (a terminal was closed) ends it as `q` does.
        return set((os.read(terminal, 1024) or b"q").decode("latin-1"))

    try:
        tty.setcbreak(terminal)
        yield pressed
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


# ---- rows ---------------------------------------------------------------------------------------


def rows_of(look: Mapping[str, Any], bars_max: int) -> Iterator[tuple[str, str]]:
    """The names and texts of what a look has found, without what does not apply."""
    yield "run", printable(look["store"])
    latest, rate, newest = look["latest"], look["rate"], look["newest"]
    yield "steps", counted(look["steps"], "step") + (
        "" if look["first"] is None else f", from {look['first']} on")
    if latest is not None:
        yield "newest", (f"step {latest['step']}, {duration(latest['age_s'])} ago, "
                         f"{format_bytes(latest['logical_bytes'])}, "
                         f"{format_bytes(latest['owned_bytes'])} its own")
    if rate is not None:
        pace = rate["steps_per_s"]
        yield "rate", (f"{pace:.3g} steps/s, " if pace < 1000 else f"{pace:,.0f} steps/s, ") + (
            f"{format_bytes(round(rate['owned_bytes_per_s']))}/s stored, "
            f"{format_bytes(round(rate['logical_bytes_per_s']))}/s of states; "
            f"{counted(rate['steps'], 'step')} in {duration(rate['seconds'])}")
        between = intervals(newest["time_s"])
        yield "interval", (f"{bars(between, bars_max)} "
                           f"median {duration(rate['interval_median_s'])}, "
                           f"longest {duration(rate['interval_max_s'])}")
        took = [math.nan if seconds is None else seconds for seconds in newest["save_s"]]
        if not all(map(math.isnan, took)):
            yield "save", over_time(took, bars_max, duration)
        yield "size", over_time(newest["logical_bytes"], bars_max, format_bytes)
        yield "own", over_time(newest["owned_bytes"], bars_max, format_bytes)
    names = list(look["metrics"])
    for name in names[:_METRICS_MAX]:
        values = [math.nan if value is None else value for value in look["metrics"][name]]
        yield cut(name, _NAME_MAX), over_time(values, bars_max, "{:.6g}".format)
    if len(names) > _METRICS_MAX:
        yield "", f"… and {counted(len(names) - _METRICS_MAX, 'metric')}"
    if look["pinned"]:
        yield "pinned", _listed(list(map(str, look["pinned"])))
    if look["tainted"]:
        yield "tainted", _listed([f"{step} ({cut(why, _TEXT_MAX)})"
                                  for step, why in look["tainted"].items()])
    if look["last_verified"] is not None:
        yield "verified", f"step {look['last_verified']} is the highest that was verified"
    yield from _space(look)
    writer = look["writer"]
    if writer is not None:
        process = "a process" if writer["process"] is None else f"process {writer['process']}"
        yield "writer", process if writer["running"] else "no process"
    for reader in look["readers"]:
        yield "reader", printable(reader["text"]) + (
            "" if reader["behind"] is None else f", {counted(reader['behind'], 'step')} behind")
    for problem in look["problems"][:_LISTED_MAX]:
        yield "problem", cut(problem, _TEXT_MAX)


def _space(look: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    space, disk = look["space"], look["disk"]
    if space is not None:
        text = (f"{format_bytes(space['total_bytes'])}: {format_bytes(space['live_bytes'])} live, "
                f"{format_bytes(space['dead_bytes'])} dead, "
                f"{format_bytes(space['reserved_bytes'])} reserved")
        if space["pinned_by_readers_bytes"]:
            text += f", {format_bytes(space['pinned_by_readers_bytes'])} kept by readers"
        yield "space", text
    if disk is not None:
        yield "disk", (f"{format_bytes(disk['free_bytes'])} free of "
                       f"{format_bytes(disk['total_bytes'])}")


def _listed(texts: list[str]) -> str:
    """The highest of them, which come last."""
    shown = ", ".join(texts[-_LISTED_MAX:])
    more = len(texts) - _LISTED_MAX
    return f"{shown}, and {more:,} lower" if more > 0 else shown
