# SPDX-License-Identifier: Apache-2.0
"""Plans which process runs what, in what order, and how often."""

from typing import NamedTuple


class Task(NamedTuple):
    name: str
    function: str  # module:function below themes/
    rows: tuple[str, ...]  # how the ids of its rows start
    theme: str  # what --rows selects it by
    alone: bool = False  # in a process that has done nothing else
    only: str = ""  # the contender that alone has it
    rounds_max: int = 1000  # what counts bytes hardly varies


def _task(name: str, function: str, **options: object) -> Task:
    return Task(name, function, (name + "/",), name, **options)  # type: ignore[arg-type]


def _memory(name: str, function: str, *rows: str, only: str = "") -> Task:
    return Task(name, "memory:" + function, rows, "memory", alone=True, only=only, rounds_max=2)


TASKS = [
    _task("full", "full:run"),
    _task("leaves", "leaves:run_leaves"),
    _task("tiny", "leaves:run_tiny"),
    _task("commit", "commit:run"),
    _task("one", "one:run"),
    _task("part", "part:run_part"),
    _task("leaf", "part:run_leaf"),
    _task("steps", "steps:run", only="stepwell"),
    _task("many", "many:run", only="stepwell"),
    _task("start", "start:run"),
    _task("orbax", "orbax:run"),
    Task("million", "orbax:run_million", ("million/",), "orbax", only="stepwell", rounds_max=2),
    _task("mesh", "mesh:run", alone=True),
    _task("space", "space:run", rounds_max=2),
    _task("sizes", "sizes:run", alone=True, only="stepwell"),
    _task("beside", "beside:run", alone=True, rounds_max=2),
    _task("unchanged", "unchanged:run"),
    _task("delta", "delta:run", rounds_max=2),
    _task("history", "history:run", only="stepwell"),
    _task("report", "report:run", only="stepwell", rounds_max=2),
    _task("deep", "deep:run", only="stepwell", rounds_max=2),
    _task("statistics", "statistics:run", only="stepwell"),
    _task("push", "push:run", only="stepwell", rounds_max=2),
    _task("publish", "publish:run", only="stepwell", rounds_max=2),
    _memory("memory-numpy", "run_save_numpy", "memory/save-NumPy"),
    _memory("memory-restore", "run_restore", "memory/restore"),  # of what memory-numpy saved
    _memory("memory-jax", "run_save_jax", "memory/save-jax"),
    _memory("memory-staging", "run_staging", "memory/staging", "memory/bounded", only="stepwell"),
]
THEMES = list(dict.fromkeys(task.theme for task in TASKS))


def processes(contender: str, themes: list[str], round_: int,
              skipped: set[str]) -> list[list[Task]]:
    """The tasks of one contender in one round, grouped by process."""
    together: list[Task] = []
    groups = [together]
    for task in TASKS:
        if (task.theme not in themes or round_ >= task.rounds_max or task.name in skipped
                or task.only not in ("", contender)):
            continue
        if task.alone:
            groups.append([task])
        else:
            together.append(task)
    return [group for group in groups if group]
