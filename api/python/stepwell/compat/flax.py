# SPDX-License-Identifier: Apache-2.0
"""`flax.training.checkpoints` over Stepwell.

    from stepwell.compat import flax as checkpoints

    checkpoints.save_checkpoint("ckpts", state, step=10, keep=3)
    state = checkpoints.restore_checkpoint("ckpts", target=state)

Names, arguments and results are Flax's; names that are not here are Flax's own. Checkpoints that
Flax wrote into the directory, msgpack files and directories of Orbax, are listed, restored and
deleted as before. Each prefix has a store of its own, and deletes its own checkpoints only.

What differs from Flax:

- A leaf that the checkpoint lacks, or of another shape or dtype, raises MismatchError (a
  ValueError), which lists all of them. Flax takes the target's leaf, or restores the other shape.
  `orbax_transforms={}` takes from the target what the checkpoint lacks.
- `overwrite=False` refuses a step at or below the newest one, with and without Orbax, by an error
  that is InvalidCheckpointError and ValueError. Flax's Orbax backend saves the older step and
  deletes it at once. Tainted steps (`stepwell.Store.taint`) are not counted, and are replaced.
- `overwrite=True` replaces the step when the new one is durable. Flax deletes the old one first.
- A prefix does not end in a digit.
- Step numbers are integers from 0 on. Flax takes floats and negative numbers, too.
- Relative paths are taken.
- An error of an asynchronous save is raised by the next wait. Flax loses it once the save is done.
- `orbax_checkpointer`, `gda_manager` and `parallel` are accepted and choose nothing: one format,
  always in parallel, and arrays of many processes like all others. A checkpointer that is still
  saving is waited for.
"""

from __future__ import annotations

import contextlib
import importlib
import operator
import os
from collections.abc import Callable, Iterator, Set
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from .. import _store
from .._runtime.files import local_path
from ..errors import InvalidArgumentError, LockedError
from ._flax_directory import Checkpoint, Directory, is_checkpoint, opened_path, opened_tree
from ._mismatch import check_names, mismatches_of
from ._stores import kept_beside

__all__ = ["AsyncManager", "available_steps", "latest_checkpoint", "restore_checkpoint",
           "save_checkpoint", "save_checkpoint_multiprocess"]

_Path = str | os.PathLike[str]
_TRIES = 10  # of a restore whose checkpoint goes meanwhile


def __getattr__(name: str) -> Any:
    """Gives Flax's own names that are not replaced here: natural_sort, convert_pre_linen and
    others."""
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("flax.training.checkpoints"), name)


def __dir__() -> list[str]:
    theirs = importlib.import_module("flax.training.checkpoints")
    return sorted({*__all__, *(name for name in vars(theirs) if not name.startswith("_"))})


def _checked(path: _Path) -> str:
    """The path as it was given. InvalidArgumentError for a URL."""
    local_path(path)
    return os.fspath(path)


class AsyncManager:
    """Runs saves in the background, one at a time: `save_checkpoint(..., async_manager=manager)`.
    """

    def __init__(self, max_workers: int = 1) -> None:
        self.executor = ThreadPoolExecutor(max_workers=max_workers)
        self.save_future: Future[Any] | None = None

    def wait_previous_save(self) -> None:
        """Waits until the previous save is durable and shown; raises its error, once."""
        future, self.save_future = self.save_future, None
        if future is not None:
            future.result()

    def save_async(self, task: Callable[[], Any]) -> None:
        """Runs `task` when the previous one is done."""
        self.wait_previous_save()
        self.save_future = self.executor.submit(task)


def save_checkpoint(ckpt_dir: _Path, target: Any, step: int | float, prefix: str = "checkpoint_",
                    keep: int = 1, overwrite: bool = False, keep_every_n_steps: int | None = None,
                    async_manager: AsyncManager | None = None, orbax_checkpointer: Any = None
                    ) -> str:
    """Saves a checkpoint and deletes those that `keep` does not name. Returns its path.

    target: any pytree; a TrainState's functions are not saved.
    keep: how many of the newest checkpoints stay, whichever library wrote them; 0 keeps all.
    overwrite: replaces this step and deletes those above it. False: InvalidCheckpointError of Flax
        if this step or one above it is there and not tainted. A tainted step is replaced; tainted
        ones above it stay, and count for `keep`.
    keep_every_n_steps: keeps checkpoints that are at least this far apart, too.
    async_manager: the call returns when the state is copied, so it may be changed or donated;
        `async_manager.wait_previous_save()` waits for the rest.

    Under `jax.distributed` every process calls this, as `save_checkpoint_multiprocess`.
    """
    _wait_for(orbax_checkpointer)
    if async_manager is not None:
        async_manager.wait_previous_save()
    number = _step_number(step)
    if keep < 0:
        raise InvalidArgumentError(f"keep must be at least 0, not {keep!r}")
    if "/" in prefix:
        raise InvalidArgumentError(f"prefix is part of a file's name, so {prefix!r} cannot be one: "
                                   "put its folder into ckpt_dir")
    name = os.path.normpath(_checked(ckpt_dir))
    directory = Directory(name, prefix, read_only=False)
    try:
        path = directory.path_of(number)
        if directory.root.store.read_only:
            raise LockedError(f"{name!r}: another process saves here")
        found = directory.checkpoints(in_flight=True)
        untainted = directory.untainted(in_flight=True)
        if not overwrite and untainted and untainted[-1].number >= number:
            raise _outdated(path, number)
        before = [each for each in found if each.number != number]
        new = Checkpoint(number, str(number), path, True)
        gone = _superseded(sorted([*before, new]), number, keep, overwrite, keep_every_n_steps,
                           directory.root.tainted())
        same = [each for each in found if each.number == number and not each.is_own]
        saving = directory.save(number, target, [*gone, *same])
    except BaseException:
        directory.close()
        raise

    def finish() -> None:
        with directory:
            saving.result()
            directory.root.gather(f"showing {name}")

    if async_manager is not None:
        async_manager.save_async(finish)
    else:
        finish()
    return path


def save_checkpoint_multiprocess(
        ckpt_dir: _Path, target: Any, step: int | float, prefix: str = "checkpoint_",
        keep: int = 1, overwrite: bool = False, keep_every_n_steps: int | None = None,
        async_manager: AsyncManager | None = None, gda_manager: Any = None,
        orbax_checkpointer: Any = None) -> str:
    """Does `save_checkpoint`, called by every process: each writes the shards that it owns, and the
    step commits on all or on none."""
    _wait_for(gda_manager)
    return save_checkpoint(ckpt_dir, target, step, prefix, keep, overwrite, keep_every_n_steps,
                           async_manager, orbax_checkpointer)


def latest_checkpoint(ckpt_dir: _Path, prefix: str = "checkpoint_") -> str | None:
    """The path of the checkpoint with the highest number that is not tainted
    (`stepwell.Store.taint`); None if there is none."""
    with Directory(_checked(ckpt_dir), prefix, read_only=True) as directory:
        return next((each.path for each in directory.untainted()[-1:]), None)


def available_steps(ckpt_dir: _Path, prefix: str = "checkpoint_", step_type: type = int
                    ) -> list[int | float]:
    """Numbers of the checkpoints, ascending, each made by `step_type` of what its name has."""
    with Directory(_checked(ckpt_dir), prefix, read_only=True) as directory:
        return [step_type(each.text) for each in directory.checkpoints()]


def restore_checkpoint(ckpt_dir: _Path, target: Any | None, step: int | float | None = None,
                       prefix: str = "checkpoint_", parallel: bool = True, gda_manager: Any = None,
                       allow_partial_mpa_restoration: bool = False, orbax_checkpointer: Any = None,
                       orbax_transforms: dict[str, Any] | None = None) -> Any:
    """Restores the newest checkpoint of a directory, or that of `step`.

    ckpt_dir: a directory of checkpoints, or the path of one.
    target: a pytree; each leaf takes the type and the sharding that it has there. What only the
        checkpoint has is left out. None: nested dicts, with "0", "1", … for sequences, as
        `flax.serialization.to_state_dict` makes them.
    orbax_transforms: `orbax.checkpoint.Transform`s by key, as in Orbax. {} takes from the target
        what the checkpoint lacks.
    allow_partial_mpa_restoration: takes from the target what the checkpoint lacks.

    Returns `target` as it is when the directory has no checkpoint. ValueError when it lacks `step`;
    MismatchError, a ValueError, when the checkpoint does not fit.
    """
    _wait_for(orbax_checkpointer)
    _wait_for(gda_manager)
    may_lack = orbax_transforms is not None or allow_partial_mpa_restoration
    path = os.path.normpath(_checked(ckpt_dir))
    tries = _TRIES if step is None else 1
    while True:
        tries -= 1
        try:
            return _restored(path, target, step, prefix, orbax_transforms, may_lack)
        except FileNotFoundError:  # a save of another thread may have deleted the newest
            if not tries:
                raise


def _restored(path: str, target: Any | None, step: int | float | None, prefix: str,
              orbax_transforms: dict[str, Any] | None, may_lack: bool) -> Any:
    with _opened(path, step, prefix) as found:
        if found is None:
            return target
        store, number = found
        if target is None:
            return _state_dict(store.load(number, as_="jax"))
        if orbax_transforms:
            with (opened_tree(_transformed(store, number, target, orbax_transforms)) as other,
                  mismatches_of("target")):
                return other.load(0, like=target)
        lacking = "" if may_lack else (
            "orbax_transforms={} takes what the checkpoint lacks from target, and "
            "orbax_transforms={key in target: orbax.checkpoint.Transform(original_key=...)} takes "
            "it from another key")
        with mismatches_of("target", missing=lacking):
            return store.load(number, like=target, unexpected="ignore",
                              missing="target" if may_lack else "error")


@contextlib.contextmanager
def _opened(ckpt_dir: str, step: int | float | None, prefix: str
            ) -> Iterator[tuple[_store.Store, int] | None]:
    """A store that has what is to be restored, and its step there; None when there is nothing."""
    if step is None and (is_checkpoint(ckpt_dir) or not os.path.exists(ckpt_dir)):
        with opened_path(ckpt_dir) as opened:
            yield opened
        return
    with Directory(ckpt_dir, prefix, read_only=True) as directory:
        found = directory.untainted() if step is None else directory.checkpoints()
        if step is not None:
            path = directory.path_of(step)
            found = [each for each in found if each.path == path]
            if not found:
                raise ValueError(f"Matching checkpoint not found: {path}")
        if not found:
            yield None
            return
        with directory.opened(found[-1]) as opened:
            yield opened


def _transformed(store: _store.Store, step: int, target: Any, transforms: dict[str, Any]) -> Any:
    """A nested dict like `target`, of what Orbax's transformations make of a step."""
    from flax import serialization
    from orbax.checkpoint import apply_transformations

    return apply_transformations(_state_dict(store.load(step)), transforms,
                                 serialization.to_state_dict(target))


def _state_dict(loaded: Any) -> Any:
    """Nested dicts as Flax's, of what was loaded without a target: all keys are str."""
    if isinstance(loaded, (list, tuple)):
        loaded = dict(enumerate(loaded))
    if not isinstance(loaded, dict):
        return loaded
    check_names(loaded)
    return {str(key): _state_dict(value) for key, value in loaded.items()}


def _superseded(checkpoints: list[Checkpoint], number: int, keep: int, overwrite: bool,
                keep_every_n_steps: int | None, tainted: Set[int]) -> list[Checkpoint]:
    """Returns the steps that go once `number` is saved: those above an overwritten step, and of the
    rest those that `keep` does not name, with the arithmetic of Flax."""
    gone = [each for each in checkpoints if overwrite and each.number > number]
    left = checkpoints[:len(checkpoints) - len(gone)]
    stay = kept_beside([each.number for each in left], number, tainted)
    last_kept = float("-inf")
    for each in left[:-keep] if keep and len(left) > keep else []:
        if keep_every_n_steps and each.number and each.number - last_kept >= keep_every_n_steps:
            last_kept = each.number
        elif each.number not in stay:
            gone.append(each)
    return gone


def _step_number(step: Any) -> int:
    try:
        number = operator.index(step)
    except TypeError:
        raise InvalidArgumentError(
            f"step must be an int, not {step!r}: Stepwell numbers its steps with integers. Save a "
            "float, such as a metric, in the state, and choose by it") from None
    if number < 0:
        raise InvalidArgumentError(f"step must be at least 0, not {number}")
    return number


def _outdated(path: str, step: int) -> Exception:
    """Makes the error that Flax raises: InvalidCheckpointError, or ValueError where it stands on
    Orbax."""
    errors: Any = importlib.import_module("flax.errors")

    class InvalidCheckpointError(errors.InvalidCheckpointError, ValueError):  # type: ignore[misc]
        """The directory has this step, or one above it."""

        __module__ = errors.__name__  # of which the message makes a link

    error: Exception = InvalidCheckpointError(path, step)
    return error


def _wait_for(checkpointer: Any) -> None:
    wait = getattr(checkpointer, "wait_until_finished", None)
    if wait is not None:
        wait()
