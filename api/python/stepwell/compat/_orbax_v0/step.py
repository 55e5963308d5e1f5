# SPDX-License-Identifier: Apache-2.0
"""Names of steps: `path.step`."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import json
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from .._step_names import CompositeNameFormat
from .libraries import as_path


TMP_DIR_SUFFIX = ".orbax-checkpoint-tmp"
_METADATA_FILE = "_CHECKPOINT_METADATA"


@dataclasses.dataclass(frozen=True)
class Metadata:
    """A step that was found, and where."""

    step: int
    path: Any

    @functools.cached_property
    def _checkpoint_metadata(self) -> dict[str, Any]:
        return read_step_metadata(os.fspath(self.path))

    @property
    def init_timestamp_nsecs(self) -> int | None:
        return self._checkpoint_metadata.get("init_timestamp_nsecs")

    @property
    def commit_timestamp_nsecs(self) -> int | None:
        return self._checkpoint_metadata.get("commit_timestamp_nsecs")

    @property
    def commit_timestamp(self) -> datetime.datetime:
        """When the step was committed; the directory's time if the step does not say."""
        nanoseconds = self.commit_timestamp_nsecs
        seconds = os.stat(self.path).st_mtime if nanoseconds is None else nanoseconds / 1e9
        return datetime.datetime.fromtimestamp(seconds, tz=datetime.timezone.utc)


def read_step_metadata(path: str) -> dict[str, Any]:
    """The JSON in `_CHECKPOINT_METADATA` of a step's directory; {} where there is none."""
    try:
        with open(os.path.join(path, _METADATA_FILE), encoding="utf-8") as file:
            found = json.load(file)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


class NameFormat(Protocol):
    """Names steps, and finds them by name."""

    def build_name(self, step: int) -> str: ...

    def find_all(self, base_path: Any) -> Iterator[Any]: ...

    def find_step(self, base_path: Any, step: int) -> Any: ...


def is_finalized(path: str) -> bool:
    return os.path.isdir(path) and TMP_DIR_SUFFIX not in os.path.basename(path)


@dataclasses.dataclass(frozen=True)
class StandardNameFormat:
    """`step_prefix` and "_" if there is one, then the number, with leading zeros up to
    `step_format_fixed_length` digits."""

    step_prefix: str | None = None
    step_format_fixed_length: int | None = None
    single_host_load_and_broadcast: bool = False

    def __str__(self) -> str:
        return f'StandardNameFormat("{self.build_name(1234)}")'

    @property
    def _prefix(self) -> str:
        return "" if self.step_prefix is None else f"{self.step_prefix}_"

    def build_name(self, step: int) -> str:
        return f"{self._prefix}{step:0{self.step_format_fixed_length or 0}d}"

    def step_of(self, name: str) -> int | None:
        """The step with this name."""
        digits = self.step_format_fixed_length or 1
        number = rf"0\d{{{digits - 1}}}|[1-9]\d{{{digits - 1}}}\d*"
        found = re.fullmatch(f"{re.escape(self._prefix)}({number})", name)
        return int(found[1]) if found else None

    def find_all(self, base_path: Any) -> Iterator[Metadata]:
        base = os.fspath(base_path)
        if not os.path.isdir(base):
            return
        for name in os.listdir(base):
            step = self.step_of(name)
            if step is not None and is_finalized(os.path.join(base, name)):
                yield Metadata(step, as_path(base) / name)

    def find_step(self, base_path: Any, step: int) -> Metadata:
        path = as_path(base_path) / self.build_name(step)
        if not is_finalized(os.fspath(path)):
            raise ValueError(f"No step path found with name={self.build_name(step)}, "
                             f"NameFormat={self} for step={step} under {base_path}.")
        return Metadata(step, path)


def standard_name_format(*, step_prefix: str | None = None,
                         step_format_fixed_length: int | None = None,
                         single_host_load_and_broadcast: bool = False,
                         temporary_path_cls: Any = None, atomicity_options: Any = None
                         ) -> StandardNameFormat:
    """Names as `prefix_000123`; see StandardNameFormat."""
    return StandardNameFormat(step_prefix, step_format_fixed_length,
                              single_host_load_and_broadcast)


def composite_name_format(write_name_format: Any, read_name_formats: Sequence[Any]
                          ) -> CompositeNameFormat:
    """Names of one format when writing, of several when reading."""
    return CompositeNameFormat(write_name_format, read_name_formats)


def single_host_load_and_broadcast_name_format(name_format: Any) -> Any:
    """`name_format`, as one that one host lists."""
    return dataclasses.replace(name_format, single_host_load_and_broadcast=True)


def standard_parts(name_format: Any) -> tuple[str | None, int]:
    """The prefix and the number of digits of the names that a format writes.

    A format of any class is tried with two numbers. ValueError if its names are not
    `prefix_000123`: the store's view shows no others.
    """
    small, large = name_format.build_name(1), name_format.build_name(12345678901)
    found = re.fullmatch(r"(?:(.*)_)?(0*1)", small)
    if found is not None:
        prefix, digits = found[1], len(found[2])
        expected = StandardNameFormat(prefix, digits)
        if large == expected.build_name(12345678901):
            return prefix, digits
    raise ValueError(f"step_name_format names step 1 {small!r}; Stepwell shows steps as "
                     "`prefix_000123`, with or without prefix and leading zeros")


def build_step_path(base_path: Any, name_format: Any, step: int) -> Any:
    return as_path(base_path) / name_format.build_name(step)


def get_save_directory(step: int, directory: Any, name: str | None = None,
                       step_prefix: str | None = None, override_directory: Any = None,
                       step_format_fixed_length: int | None = None, step_name_format: Any = None
                       ) -> Any:
    """Where a step, or its item `name`, is saved."""
    if directory is None:
        raise ValueError("Directory cannot be None.")
    name_format = step_name_format or StandardNameFormat(step_prefix, step_format_fixed_length)
    found = (build_step_path(directory, name_format, step) if override_directory is None
             else as_path(override_directory))
    return found if name is None else found / name


def step_from_checkpoint_name(name: str) -> int:
    """The number that a name is, or ends in behind "_"."""
    last = name.rsplit("_", 1)[-1]
    if not last.isdigit():
        raise ValueError(f"Unrecognized name format: {name}.")
    return int(last)


def is_path_finalized(path: Any, **_: Any) -> bool:
    """Whether a directory is a finished checkpoint."""
    return is_finalized(os.fspath(path))


def is_path_temporary(path: Any, **_: Any) -> bool:
    return TMP_DIR_SUFFIX in os.path.basename(os.fspath(path))


def all_temporary_paths(root_directory: Any) -> list[Any]:
    """Directories that unfinished saves left."""
    root = os.fspath(root_directory)
    return [as_path(root) / name for name in sorted(os.listdir(root)) if TMP_DIR_SUFFIX in name]


def checkpoint_steps_paths(checkpoint_dir: Any) -> list[Any]:
    """The directories of all finished steps."""
    root = os.fspath(checkpoint_dir)
    if not os.path.isdir(root):
        return []
    return [as_path(root) / name for name in os.listdir(root)
            if name.rsplit("_", 1)[-1].isdigit() and is_finalized(os.path.join(root, name))]


def checkpoint_steps(checkpoint_dir: Any) -> list[int]:
    """The numbers of all finished steps, in no order."""
    return [step_from_checkpoint_name(path.name) for path in checkpoint_steps_paths(checkpoint_dir)]


def any_checkpoint_step(checkpoint_dir: Any) -> int | None:
    return next(iter(checkpoint_steps(checkpoint_dir)), None)


def latest_step_metadata(root_path: Any, name_format: Any) -> Any:
    """The highest step; None if there is none."""
    return max(name_format.find_all(root_path), default=None, key=lambda found: found.step)


def maybe_find_step_metadata(base_path: Any, name_format: Any, *, step: int) -> Any:
    try:
        return name_format.find_step(base_path, step)
    except ValueError:
        return None
