# SPDX-License-Identifier: Apache-2.0
"""ocp.path.step: how the directories of steps are named."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

from .. import _single
from .._step_names import CompositeNameFormat
from .metadata import StepMetadata
from .options import default_path
from .places import read_json


@runtime_checkable
class NameFormat(Protocol):
    """Names steps, and finds them below a root."""

    def build_name(self, step: int) -> str: ...

    def find_all(self, base_path: Any) -> Iterator[StepMetadata[None]]: ...

    def find_step(self, base_path: Any, step: int) -> StepMetadata[None]: ...


@dataclasses.dataclass(frozen=True)
class StandardNameFormat:
    """`<prefix>_<number>`, the number with zeros in front up to a length."""

    step_prefix: str | None = None
    step_format_fixed_length: int | None = None
    single_host_load_and_broadcast: bool = False

    def __post_init__(self) -> None:
        if self.step_format_fixed_length is not None and self.step_format_fixed_length < 0:
            raise ValueError("step_format_fixed_length must not be negative: "
                             f"{self.step_format_fixed_length}")

    def build_name(self, step: int) -> str:
        prefix = f"{self.step_prefix}_" if self.step_prefix else ""
        return f"{prefix}{step:0{self.step_format_fixed_length or 0}d}"

    def find_all(self, base_path: Any) -> Iterator[StepMetadata[None]]:
        base = os.fspath(base_path)
        for name in sorted(os.listdir(base)):
            number = re.search(r"[0-9]+$", name)
            if number is not None and self.build_name(int(number[0])) == name:
                found = self._read(base, name, int(number[0]))
                if found is not None:
                    yield found

    def find_step(self, base_path: Any, step: int) -> StepMetadata[None]:
        found = self._read(os.fspath(base_path), self.build_name(step), step)
        if found is None:
            raise ValueError(f"No step path found with name={self.build_name(step)}, for "
                             f"step={step}, under base_path={base_path}.")
        return found

    def _read(self, base: str, name: str, step: int) -> StepMetadata[None] | None:
        path = os.path.join(base, name)
        if not os.path.isdir(path):
            return None
        described = read_json(os.path.join(path, _single.CHECKPOINT_METADATA))
        committed = described.get("commit_timestamp_nsecs") or os.stat(path).st_mtime_ns
        return StepMetadata(step, default_path(path), metadata=None,
                            init_timestamp_nsecs=described.get("init_timestamp_nsecs"),
                            commit_timestamp_nsecs=committed)


def standard_name_format(*, step_prefix: str | None = None,
                         step_format_fixed_length: int | None = None,
                         single_host_load_and_broadcast: bool = False) -> NameFormat:
    """`7`; with a prefix and a length of 8 `prefix_00000007`."""
    return StandardNameFormat(step_prefix, step_format_fixed_length,
                              single_host_load_and_broadcast)


def composite_name_format(write_name_format: NameFormat, read_name_formats: Sequence[NameFormat]
                          ) -> NameFormat:
    """Names in `write_name_format`, which must be one of `read_name_formats`; finds in all."""
    return CompositeNameFormat(write_name_format, read_name_formats)


def prefix_and_digits(name_format: NameFormat) -> tuple[str | None, int]:
    """The prefix and the length of a format, by the names that it builds. ValueError if its names
    are not a prefix and a number: a store shows its steps under such names only."""
    short, long = name_format.build_name(7), name_format.build_name(10**17 + 7)
    prefix, digits = long.removesuffix(str(10**17 + 7)), re.search(r"[0-9]+$", short)
    if digits is not None and prefix in ("", f"{prefix[:-1]}_"):
        own = StandardNameFormat(prefix[:-1] or None, len(digits[0]) if len(digits[0]) > 1 else 0)
        if (own.build_name(7), own.build_name(10**17 + 7)) == (short, long):
            return own.step_prefix, own.step_format_fixed_length or 0
    raise ValueError(f"step_name_format names steps 7 and {10**17 + 7} {short!r} and {long!r}; "
                     "names are <number> or <prefix>_<number>, with zeros in front or without")
