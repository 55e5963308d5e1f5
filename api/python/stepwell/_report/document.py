# SPDX-License-Identifier: Apache-2.0
"""The document of a report: what a run looks like, as JSON (`report.schema.json`).

It comes from the records of the steps and the index alone: no array is read. What would make it
too large is sampled or left out, and its `limits` say so.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from importlib import resources
from typing import Any, NamedTuple

import stepwell

from .._runtime.files import json_of
from .._runtime.stats import StoreStats
from .._store import Store
from .._stepwell import KeepKind, StepRecord
from .._text import counted
from ..errors import CorruptionError, Error, StepNotFoundError
from ..policy import Policy, Rule
from . import leaves, steps
from .steps import StepFacts, evenly, step_json

SCHEMA = 1
_WITHIN = ".stepwell"  # a store in a directory of Orbax's
_FREES_MAX = 500_000  # leaves that are read for what deleting steps would free
_STEP_COST = 20  # to read a step's records without leaves takes as long as so many leaves

Document = dict[str, Any]


def schema() -> dict[str, Any]:
    """The JSON Schema of the document."""
    text = resources.files(__package__).joinpath("report.schema.json").read_text("utf-8")
    return dict(json.loads(text))


def document_of(store: Store, live: bool = False) -> Document:
    """The document of a store as it is now. `live`: of the server.

    Raises the errors of reading the log. The document itself names damaged records of steps.
    """
    store._check()
    core = store._backend.whole("a report")
    run = _Run(core.steps(), {}, [], [])
    metrics = _read_metrics(store, run)
    names = steps.metric_names(metrics)
    best = steps.best_steps(run.records, metrics, names[:steps.METRICS_MAX])
    shown = steps.shown_of(run.records, best)
    place = {number: at for at, number in enumerate(shown)}
    records = []
    for i in shown:
        facts, problem = steps.facts_of(core, run.records[i])
        records.append(facts)
        if problem is not None:
            run.damaged.setdefault(i, problem)
    if len(shown) < len(run.records):
        run.limits.append(f"{len(shown):,} of {len(run.records):,} steps are shown: the first, "
                          f"the last and the best, up to {steps.STEPS_MAX // 2:,} pinned or "
                          "tainted ones, and others evenly.")
    if len(names) > steps.METRICS_MAX:
        run.limits.append(f"{steps.METRICS_MAX} of {len(names):,} metrics are shown, those that "
                          "most steps have.")
    items, items_left = steps.items_of(records)
    if items_left:
        run.limits.append(f"{counted(items_left, 'item')} left out.")
    shown_metrics = sorted(names[:steps.METRICS_MAX])
    samples = evenly(range(len(records)),
                     leaves.sample_count(max([each.leaf_count for each in records], default=0)))
    surveyed = leaves.survey(core, [records[i].step for i in samples])
    _note_survey(run, records, samples, surveyed)
    kept = _retention(store, run, shown)
    numbers = [record.step for record in run.records]
    interval, gaps = steps.gaps_of(numbers)
    stats = store.stats()
    if not stats["space"]["total_bytes"]:
        run.limits.append("The space of a pushed run is not known.")
    return {
        "schema": SCHEMA,
        "stepwell": stepwell.__version__,
        "made": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "live": live,
        "store": {
            "path": store.path, "name": _name_of(store.path), "steps": len(numbers),
            "latest": step_json(max([each.step for each in run.records if not each.taint],
                                    default=None)),
            "first": step_json(min(numbers, default=None))},
        "steps": {
            "total": len(numbers), "shown": len(shown), **steps.columns_of(records),
            "frees_bytes": _frees(store, run, records),
            "kept_by": kept.kept_by, "goes_next": kept.goes_next,
            "damaged": {str(place[i]): what for i, what in sorted(run.damaged.items())
                        if i in place}},
        "metrics": steps.metrics_of([metrics[i] for i in shown], shown_metrics),
        "best": {name: {end: None if i is None else place[i] for end, i in best[name].items()}
                 for name in shown_metrics},
        "best_rules": kept.best_rules,
        "retention": {"rules": kept.rules, "warnings": kept.warnings, "interval": interval,
                      "gaps": gaps},
        "items": items,
        "leaves": leaves.leaves_of(surveyed, samples),
        "shardings": leaves.shardings_of(surveyed),
        "space": dict(stats["space"]),
        "health": _health(store, stats, run),
        "limits": run.limits,
    }


class _Run(NamedTuple):
    """What is found out while a document is made. `damaged`: what reading said, by place."""

    records: Sequence[StepRecord]
    damaged: dict[int, str]
    notes: list[str]
    limits: list[str]


def _read_metrics(store: Store, run: _Run) -> list[Mapping[str, Any]]:
    """Of each step; an empty one where it has none, or they cannot be read."""
    texts = {each.step: each for each in store._backend.whole("a report").survey_metrics()}
    metrics: list[Mapping[str, Any]] = []
    for i, record in enumerate(run.records):
        found: Any = None
        text = texts.get(record.step)
        if text is not None and text.problem:
            run.damaged[i] = text.problem
        elif text is not None and text.metrics_json:
            try:
                found = json_of(text.metrics_json, f"the metrics of step {record.step}")
            except CorruptionError as error:
                run.damaged[i] = str(error)
        metrics.append(found if isinstance(found, dict) else {})
    return metrics


def _note_survey(run: _Run, records: Sequence[StepFacts], samples: Sequence[int],
                 found: Any) -> None:
    places = {record.step: i for i, record in enumerate(run.records)}
    for at, (problem, gone) in zip(samples, zip(found.problems(), found.gone)):
        step = records[at].step
        if gone:
            run.limits.append(f"Step {step} was deleted while this was made.")
        elif problem is not None:
            run.damaged.setdefault(places[step], problem)
    if len(samples) < len(records):
        run.limits.append(
            f"Of {len(records):,} steps the leaves of {len(samples):,} were looked at: damaged "
            "records of others are not known.")
    left_out = found.total_leaves - len(found.paths())
    if left_out:
        run.limits.append(f"{left_out:,} of {counted(found.total_leaves, 'leaf')} left out.")
    shardings = len(found.shardings())
    if shardings > leaves.SHARDINGS_MAX:
        run.limits.append(f"{leaves.SHARDINGS_MAX:,} of {shardings:,} shardings are shown.")


class _Kept(NamedTuple):
    rules: list[str]
    warnings: list[str]
    kept_by: list[list[int]] | None
    goes_next: list[int]
    best_rules: list[dict[str, str]]


def _name_of(path: str) -> str:
    """The last part of a path; of a store within a directory of Orbax's that of the directory, by
    which its owner knows the run."""
    folder, name = os.path.split(path)
    return os.path.basename(folder) if name == _WITHIN else name


def _retention(store: Store, run: _Run, shown: Sequence[int]) -> _Kept:
    """What keeps the shown steps: by the policy of the last program that saved."""
    try:
        fields = store._backend.retention()
    except Error as error:
        run.notes.append(f"What retention keeps is not known: {error}")
        return _Kept([], [], None, [], [])
    rules = [Rule(**{**rule, "kind": KeepKind[rule["kind"]]}) for rule in fields["rules"]]
    by_step = {each["step"]: each for each in fields["steps"]}
    of_shown = [by_step.get(run.records[i].step) for i in shown]
    return _Kept(
        [repr(Policy._of_rule(rule)) for rule in rules], list(fields["warnings"]),
        [list(each["kept_by"]) if each else [] for each in of_shown] if rules else None,
        [at for at, each in enumerate(of_shown) if each and each["goes_next"]],
        [{"metric": rule.metric, "mode": "max" if rule.larger_is_better else "min"}
         for rule in rules if rule.kind == KeepKind.BEST])


def _frees(store: Store, run: _Run, records: Sequence[StepFacts]) -> list[int | None]:
    """What deleting each step alone would free, where finding out is quick."""
    unknown: list[int | None] = [None] * len(records)
    cost = sum([max(each.leaf_count, each.chunk_count) + _STEP_COST for each in run.records])
    if cost > _FREES_MAX:
        run.limits.append("What deleting steps would free is left out: it takes the records of "
                          "all steps. Store.frees_bytes tells it.")
        return unknown
    if not records:
        return []
    try:
        freed = store.frees_bytes([record.step for record in records])
    except StepNotFoundError:
        run.limits.append("What deleting steps would free is left out: some were deleted "
                          "meanwhile.")
        return unknown
    except Error as error:
        run.limits.append(f"What deleting steps would free is left out: {error}")
        return unknown
    if not any([each is not None for each in freed.values()]):
        run.limits.append("What deleting steps would free is not known.")
    elif any([record.group is not None for record in run.records]):
        run.limits.append("What deleting steps would free is what process 0 stores of them.")
    return [freed.get(record.step) for record in records]


def _health(store: Store, stats: StoreStats, run: _Run) -> dict[str, Any]:
    losses: list[str] = []
    try:
        store._backend.newest()
    except CorruptionError as error:
        losses.append(str(error))
    verified = [record.step for record in run.records if record.verified]
    nonfinite = [record.step for record in run.records
                 if any(item.nonfinite for item in record.items)]
    if nonfinite:
        run.notes.append(f"Elements that are NaN or infinite are in "
                         f"{counted(len(nonfinite), 'step')}, the last one step {nonfinite[-1]}.")
    if run.records and not verified:
        run.notes.append("No step is known to be verified: `stepwell verify` reads all of them.")
    return {
        "damaged": [{"step": step_json(run.records[i].step), "what": what}
                    for i, what in sorted(run.damaged.items())],
        "losses": losses,
        "recovery": dict(stats["recovery"]),
        "last_verified": step_json(max(verified, default=None)),
        "verified_steps": len(verified),
        "old_pins": list(stats["old_pins"]),
        "views": [dict(view) for view in stats["views"]],
        "notes": run.notes,
    }
