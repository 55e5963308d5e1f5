# SPDX-License-Identifier: Apache-2.0
"""The tensors of a safetensors file that is made of a step: their names, types and elements, as
`rename` and `dtype` want them. Elements are read in parts: memory is bounded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from .. import _stepwell
from .._load.mapped import MappedSource, check_there
from .._load.scalars import kind_of
from .._load.slicing import PART_BYTES, parts_of
from .._load.source import Source, in_batches
from .._mapping import Box, Index, Tensor, size_of, whole
from .._pytree.dtypes import number_of
from .._pytree.records import ROOT
from .._renaming import Named, Rule, renamed
from .._stepwell import ArchiveOptions, LoadStats, Wanted
from ..errors import InvalidArgumentError


class Request(NamedTuple):
    """What is to be made of a step, checked.

    options: on_unsupported, and the subtree.
    rules: of `rename`.
    dtype: of all floating-point arrays; None: as they are stored.
    """

    options: ArchiveOptions
    rules: list[Rule]
    dtype: np.dtype[Any] | None


class FileTensor(NamedTuple):
    """A tensor of the file. element: of a Python number, which has no chunks; else empty."""

    tensor: Tensor
    dtype: np.dtype[Any]
    element: bytes

    @property
    def shape(self) -> Index:
        return self.tensor.shape

    @property
    def nbytes(self) -> int:
        return size_of(((0,) * len(self.shape), self.shape)) * self.dtype.itemsize

    def boxes(self) -> Iterator[Box]:
        """All of it, in C order, in parts that can be read at once."""
        item = max(self.dtype.itemsize, (self.tensor.dtype or self.dtype).itemsize)
        for axes in parts_of([range(extent) for extent in self.shape], item, self.shape):
            yield tuple([axis.start for axis in axes]), tuple([axis.stop for axis in axes])


def float_dtype(dtype: Any) -> np.dtype[Any] | None:
    """What `dtype=` means. InvalidArgumentError."""
    if dtype is None:
        return None
    made: np.dtype[Any] | None
    try:
        made = np.dtype(dtype)
    except TypeError:
        made = None
    if made is None or kind_of(made) != "f" or not safetensors_word(made):
        raise InvalidArgumentError(
            f"dtype is a floating-point type that safetensors has, such as \"bfloat16\", not "
            f"{dtype!r}")
    return made


def safetensors_word(dtype: np.dtype[Any]) -> str:
    """The format's name of a type; "": it has none."""
    return _stepwell.safetensors_dtype(number_of(dtype) or 0)


class Tensors:
    """The tensors of one step by name, in the order of the file: the widest elements first, so that
    all are aligned.

    metadata: of the step, as an export has it. report: leaves that were left out or widened.
    stats: of what has been read.
    """

    def __init__(self, source: Source, top: int, request: Request) -> None:
        """`top`: the record that the request's subtree is."""
        self.source = source
        self.stats = LoadStats()
        plan = _stepwell.plan_archive(source.tree, request.options)
        self.metadata: list[tuple[str, str]] = list(plan.metadata)
        self.report = plan.report
        own = len(source.tree)
        named: Named = {}
        elements: dict[int, bytes] = {}
        dtypes: dict[int, np.dtype[Any]] = {}
        for place, (names, leaf, dtype, shape, element) in enumerate(plan.arrays):
            number = own + place if leaf is None else leaf
            stored = dtype if leaf is None else source.tree.records[leaf].dtype
            named[names] = whole(number, stored, shape)
            dtypes[number] = dtype
            if leaf is None:
                elements[number] = element
        after = renamed(request.rules, named,
                        lambda pattern: check_there(source.tree, pattern, top))
        made = {}
        for names, tensor in after.items():
            dtype = dtypes[tensor.leaf]
            if request.dtype is not None and kind_of(dtype) == "f":
                dtype = request.dtype
            made["/".join(names)] = FileTensor(tensor, dtype, elements.get(tensor.leaf, b""))
        _check_names(made, len(after))
        self.by_name: dict[str, FileTensor] = dict(
            sorted(made.items(), key=lambda pair: -pair[1].dtype.itemsize))

    def __getitem__(self, name: str) -> FileTensor:
        return self.by_name[name]

    def read(self, boxes: Iterable[tuple[str, Box]]) -> Iterator[np.ndarray[Any, Any]]:
        """Each box, as the file has it, in C order in memory."""
        listed = [(self.by_name[name], box) for name, box in boxes]
        tensors = [file.tensor for file, _ in listed]
        own = len(self.source.tree)
        mapped = MappedSource(self.source, tensors, [])

        def size(place: int) -> int:
            file, box = listed[place]
            return size_of(box) * (file.tensor.dtype or file.dtype).itemsize

        stored = [place for place, (file, _) in enumerate(listed) if not file.element]
        batches = in_batches(stored, size, PART_BYTES)
        wanted = [[Wanted(own + place, list(listed[place][1][0]), list(listed[place][1][1]))
                   for place in batch] for batch in batches]
        arrays = self._arrays(mapped, wanted)
        for file, _ in listed:
            if file.element:
                array = np.frombuffer(file.element, file.tensor.dtype).reshape(file.shape)
            else:
                array = next(arrays)
            yield _converted(array, file.dtype)

    def _arrays(self, mapped: Source, wanted: list[list[Wanted]]) -> Iterator[Any]:
        for raws, stats in mapped.read_batches(wanted):
            self.stats += stats
            raws.reverse()
            while raws:  # nothing here refers to one while it is used
                yield raws.pop()


def _converted(array: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    with np.errstate(all="ignore"):
        if not np.can_cast(array.dtype, dtype, "unsafe"):  # of ml_dtypes: by what has both
            array = array.astype(np.float32)
        return np.ascontiguousarray(array.astype(dtype, copy=False)).reshape(array.shape)


def _check_names(made: dict[str, FileTensor], count: int) -> None:
    if not made:
        raise InvalidArgumentError("rename: nothing is left to write")
    if len(made) < count:
        raise InvalidArgumentError("rename: two names are the same once joined with \"/\"")
    for name in made:
        try:
            name.encode()
        except UnicodeEncodeError:
            raise InvalidArgumentError(f"rename: {name!r} is not UTF-8") from None
        if name == "__metadata__":
            raise InvalidArgumentError(f"rename: {name!r} is the name of safetensors' metadata")


def top_of(source: Source, key: bytes) -> int:
    """The record with this key; of the whole step the place where paths start."""
    if not key:
        return source.tree.top if source.reader.only_state else ROOT
    return source.tree.keys().index(key)
