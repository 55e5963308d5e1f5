# SPDX-License-Identifier: Apache-2.0
"""Steps that have names of several formats: what both facades of Orbax call a composite."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Sequence
from typing import Any


@dataclasses.dataclass(frozen=True)
class CompositeNameFormat:
    """Writes names of one format and reads those of several."""

    write_name_format: Any
    read_name_formats: Sequence[Any]

    def __post_init__(self) -> None:
        if self.write_name_format not in self.read_name_formats:
            raise ValueError(f"write_name_format: {self.write_name_format} must be present in "
                             f"read_name_formats: {[str(f) for f in self.read_name_formats]}.")

    def __str__(self) -> str:
        return f"Composite([{','.join(map(str, self.read_name_formats))}])"

    def build_name(self, step: int) -> str:
        return str(self.write_name_format.build_name(step))

    def find_all(self, base_path: Any) -> Iterator[Any]:
        found: set[str] = set()
        for each in self.read_name_formats:
            for metadata in each.find_all(base_path):
                if os.fspath(metadata.path) not in found:
                    found.add(os.fspath(metadata.path))
                    yield metadata

    def find_step(self, base_path: Any, step: int) -> Any:
        errors: list[str] = []
        for each in self.read_name_formats:
            try:
                return each.find_step(base_path, step)
            except ValueError as error:
                errors.append(str(error))
        raise ValueError("\n".join(errors))
