# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of Keras 3 models, on its JAX backend.

    from stepwell.compat.keras import Checkpoint, restore

    model.compile(...)
    start = restore(model, "run1")                    # 0 if there is no checkpoint yet
    model.fit(x, y, epochs=90, initial_epoch=start, callbacks=[Checkpoint("run1", keep=3)])

A step has the variables of the model, of its optimizer and of its metrics, by their paths in Keras
("trainable_variables/hidden/kernel"), and the logs as its metrics. Keras numbers what has no name
through a whole process. The model, its optimizer and seed generators are found whatever their
number; layers are not ("dense_1" in the second model), so give them names.
"""

from __future__ import annotations

import os
import re
from typing import Any, Literal, SupportsIndex

import keras

from .. import _store, policy
from ..errors import InvalidArgumentError
from ._mismatch import mismatches_of

_GROUPS = ("trainable_variables", "non_trainable_variables", "optimizer_variables",
           "metrics_variables")
_NAMES = ("give the layers the names, and the model the layers, that they had when this was saved: "
          "Keras numbers layers without a name through a whole process")
_SEED_GENERATOR = re.compile(r"seed_generator(_\d+)?")  # as Keras names them


class Checkpoint(keras.callbacks.Callback):  # type: ignore[misc]
    """Saves the model in the background while it trains.

    every: "epoch", or a number of batches. Steps are numbered by epochs from 0 on, or by the
        optimizer's iterations; a step that is there is replaced.
    keep: how many of the newest steps stay, or a `stepwell.policy`; None keeps all.
    monitor: a name in the logs, e.g. "val_loss"; the step that is best by it stays, too.
    mode: "min" where lower is better, "max" where higher is.
    """

    def __init__(self, path: str | os.PathLike[str], *, every: Literal["epoch"] | int = "epoch",
                 keep: int | policy.Policy | None = None, monitor: str | None = None,
                 mode: Literal["min", "max"] = "min") -> None:
        super().__init__()
        if every != "epoch" and (not isinstance(every, int) or every < 1):
            raise InvalidArgumentError(
                f"every must be 'epoch' or a number of batches, at least 1, not {every!r}")
        self.path = path
        self.every = every
        self.keep = policy.LatestN(keep) if isinstance(keep, int) else keep
        if monitor is not None and self.keep is not None:
            self.keep |= policy.BestN(1, monitor, mode)
        self._store: _store.Store | None = None
        self._epoch = 0

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        if self._store is None:  # else a training that failed left it open
            self._store = _store.open(self.path, keep=self.keep)

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._epoch = epoch

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        if self.every != "epoch" and (batch + 1) % self.every == 0:
            self._save(self._epoch, None, logs)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if self.every == "epoch":
            self._save(epoch + 1, epoch, logs)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        store, self._store = self._store, None
        if store is not None:
            store.close()  # waits for the saves, and raises their errors

    def _save(self, initial_epoch: int, step: int | None, logs: dict[str, Any] | None) -> None:
        assert self._store is not None
        state = _values(self.model)
        number = int(self.model.optimizer.iterations.value) if step is None else step
        self._store.save(number, state, if_exists="replace",
                         metadata={"initial_epoch": initial_epoch},
                         metrics={name: float(value) for name, value in (logs or {}).items()})


def restore(model: Any, path: str | os.PathLike[str], step: SupportsIndex | None = None) -> int:
    """Assigns to a built model what a step has (None: the newest). Returns the epoch to go on with,
    for `fit(initial_epoch=)`; 0 if there is no store or no step, and `step` is None.

    A model that is not compiled takes the model's variables alone. What only the step has is left
    out, such as metrics of an earlier `compile`; metrics that the step lacks stay. MismatchError
    when a variable of the model or the optimizer is missing or has another shape.
    """
    if step is None and not os.path.isdir(path):
        return 0
    with _store.open(path, mode="r") as store:
        if step is None and store.latest is None:
            return 0
        if getattr(model, "optimizer", None) is not None and not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
        number = store[-1 if step is None else step].step
        like = _values(model)
        metrics = like.pop("metrics_variables", {})
        with mismatches_of("the model", missing=_NAMES):
            loaded = store.load(number, like=like, unexpected="ignore")
        loaded["metrics_variables"] = store.load(
            number, like={"metrics_variables": metrics}, unexpected="ignore",
            missing="target")["metrics_variables"]
        for group, variables in _variables(model).items():
            for names, variable in variables.items():
                value = loaded[group]
                for name in names:
                    value = value[name]
                variable.assign(value)
        return int((store[number].metadata or {}).get("initial_epoch", 0))


def _variables(model: Any) -> dict[str, dict[tuple[str, ...], Any]]:
    """The model's variables, by kind and path."""
    sync = getattr(model, "jax_state_sync", None)
    if sync is not None:
        sync()  # while `fit` runs, JAX has newer values than the variables
    optimizer = getattr(model, "optimizer", None)
    found = (model.trainable_variables, model.non_trainable_variables,
             [] if optimizer is None else optimizer.variables,
             getattr(model, "metrics_variables", []))
    numbers: dict[str, int] = {}  # of seed generators, by their names
    by_path: dict[str, dict[tuple[str, ...], Any]] = {group: {} for group in _GROUPS}
    for group, variables in zip(_GROUPS, found, strict=True):
        for variable in variables:
            names = variable.path.split("/")
            if names[0] == model.name and len(names) > 1:
                del names[0]
            if group == "optimizer_variables" and len(names) > 1:
                names = [re.sub(r"_\d+$", "", names[0]),
                         *(name.removeprefix(f"{model.name}_") for name in names[1:])]
            path = tuple(f"seed_generator_{numbers.setdefault(name, len(numbers))}"
                         if _SEED_GENERATOR.fullmatch(name) else name for name in names)
            if path in by_path[group]:
                raise InvalidArgumentError(
                    f"two variables have the path {variable.path!r}: give the layers names")
            by_path[group][path] = variable
    return by_path


def _values(model: Any) -> dict[str, Any]:
    """The values of the variables, nested by their paths."""
    tree: dict[str, Any] = {}
    for group, variables in _variables(model).items():
        for path, variable in variables.items():
            node = tree.setdefault(group, {})
            for name in path[:-1]:
                node = node.setdefault(name, {})
            node[path[-1]] = variable.value
    return tree
