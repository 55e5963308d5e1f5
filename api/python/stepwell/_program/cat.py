# SPDX-License-Identifier: Apache-2.0
"""`stepwell cat`: arrays and values as NumPy and Python print them, or as a .npy file. Of a large
array only the corners are read."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator
from typing import IO, Any

import numpy as np

from .. import _store
from .._display import format_bytes
from .._load.source import Source
from .._printed import selection
from .._printed.values import array_json, value_json, value_text
from .._pytree.records import ARRAY
from .._runtime import durable
from .._text import counted, printable
from .._views import ArrayView, view_of
from ..errors import Error, InvalidArgumentError

_WHOLE_MAX = 1000  # elements, as NumPy prints them by default
_PRINTED_MAX = 1 << 12  # elements that are text at one time


def run(given: argparse.Namespace) -> dict[str, Any]:
    """Prints the leaves as text, or returns the document to print."""
    _check(given)
    with _store.open(given.store, mode="r", untrusted=given.untrusted) as store:
        step = store[given.number]
        source, chosen = step._source.select(given.path, whole=True)
        if chosen.number is not None and source.tree.is_node(chosen.number):
            raise InvalidArgumentError(_is_node(source, chosen.number))
        leaves = [chosen.number] if chosen.number is not None else chosen.leaves
        if len(leaves) > 1 and given.npy:
            raise InvalidArgumentError(
                f"{given.path} names {len(leaves)} leaves; --npy writes one array")
        if given.json:
            documents = [_document(given, source, number) for number in leaves]
            several = {"leaves": documents} if len(documents) > 1 else documents[0]
            return {"store": given.store, "step": step.step, **several}
        for number in leaves:
            if len(leaves) > 1:
                between = ":\n" if source.tree.records[number].shape else ": "
                given.print(printable(source.tree.text(number)) + between)
            _print(given, source, number)
    return {}


def _check(given: argparse.Namespace) -> None:
    if not given.npy and (given.output is not None or given.bits):
        raise InvalidArgumentError("--output and --bits are for --npy")
    if given.npy and given.output is None and given.json:
        raise InvalidArgumentError("--npy and --json both print to standard output; add -o FILE")
    if given.npy and given.output is None and sys.stdout.isatty():
        raise InvalidArgumentError("--npy is not for a terminal; add -o FILE, or use a pipe")


def _is_node(source: Source, number: int) -> str:
    text = source.tree.text(number)
    count = len(source.tree.leaves(number))
    return (f"{text or 'the item itself'} is a node with {counted(count, 'leaf')} below it, not an "
            f"array or a value; `stepwell show` prints its tree, and \"{text + '/' if text else ''}"
            '**" names its leaves')


def _taken(given: argparse.Namespace, source: Source, number: int, view: Any
           ) -> list[selection.Taken]:
    if not isinstance(view, ArrayView):
        raise InvalidArgumentError(f"{source.tree.text(number)} is a value, not an array; --slice "
                                   "and --npy are for arrays")
    return selection.parse("..." if given.slice is None else given.slice, view.shape)


def _leaf(given: argparse.Namespace, source: Source, number: int
          ) -> tuple[Any, list[selection.Taken] | None]:
    """The array or value, and of an array what is taken of it."""
    view = view_of(source, number, source)
    asked = given.slice is not None or given.npy or source.tree.records[number].kind == ARRAY
    return view, _taken(given, source, number, view) if asked else None


def _print(given: argparse.Namespace, source: Source, number: int) -> None:
    view, taken = _leaf(given, source, number)
    if taken is None:
        given.print(value_text(view) + "\n")
    elif given.npy:
        given.print(_written(given, source, number, view, taken)[1])
    elif given.full and selection.count_of(taken) > _WHOLE_MAX:
        for text in _full(view, taken):
            given.print(text)
        given.print("\n")
    else:
        given.print(_text(view, taken) + "\n")


def _text(view: ArrayView, taken: list[selection.Taken]) -> str:
    whole = selection.count_of(taken) <= _WHOLE_MAX
    array = selection.read(view, taken) if whole else selection.corners(view, taken)
    return np.array2string(array, threshold=_WHOLE_MAX if whole else 0, edgeitems=selection.EDGE)


def _full(view: ArrayView, taken: list[selection.Taken]) -> Iterator[str]:
    """Every element, some at a time: columns are set right among these."""
    shape = selection.shape_of(taken)
    index = 0  # of the next element, in C order
    for piece in selection.pieces(view, taken):
        flat = selection.read(view, piece).ravel()
        for begin in range(0, flat.size, _PRINTED_MAX):
            part = flat[begin:begin + _PRINTED_MAX]
            cells = np.array2string(part, threshold=sys.maxsize, max_line_width=sys.maxsize,
                                    separator=",")[1:-1].split(",")
            width = max(map(len, cells))
            yield "".join([_opened(shape, index + i) + cell.strip().rjust(width)
                           for i, cell in enumerate(cells)])
            index += part.size
    yield "]" * len(shape) if index else "[]"


def _opened(shape: tuple[int, ...], index: int) -> str:
    """The brackets and the space before an element."""
    if index == 0:
        return "[" * len(shape)
    inside = 0  # axes that begin anew
    for extent in reversed(shape):
        if index % extent:
            break
        index //= extent
        inside += 1
    if not inside:
        return "\n" + " " * len(shape) if index % shape[-1] % 12 == 0 else " "
    return "]" * inside + "\n" * inside + " " * (len(shape) - inside) + "[" * inside


def _document(given: argparse.Namespace, source: Source, number: int) -> dict[str, Any]:
    document: dict[str, Any] = {"path": source.tree.text(number)}
    view, taken = _leaf(given, source, number)
    if taken is None:
        return {**document, "kind": "value", "value": value_json(view)}
    if given.slice is not None:
        document["slice"] = given.slice
    if given.npy:
        return {**document, **_written(given, source, number, view, taken)[0]}
    whole = given.full or selection.count_of(taken) <= _WHOLE_MAX
    document |= {"kind": "array", "dtype": view.dtype.name, "shape": selection.shape_of(taken),
                 "whole": whole}
    if whole:
        return {**document, "value": array_json(selection.read(view, taken))}
    return {**document, "summary": _text(view, taken)}


# ---- .npy ---------------------------------------------------------------------------------------


def _written(given: argparse.Namespace, source: Source, number: int, view: ArrayView,
             taken: list[selection.Taken]) -> tuple[dict[str, Any], str]:
    stored = view.dtype
    dtype = stored if stored.isbuiltin == 1 else None
    if dtype is None:
        bits = np.dtype(f"u{stored.itemsize}")
        if not given.bits:
            raise Error(f"{source.tree.text(number)} is {stored}, which NumPy itself does not "
                        f"have. Add --bits to write it as {bits}; np.load(FILE).view(ml_dtypes."
                        f"{stored}) then has the values")
        dtype = bits
    shape = selection.shape_of(taken)
    descr = np.lib.format.dtype_to_descr(dtype)
    with _output(given.output) as file:
        np.lib.format.write_array_header_1_0(
            file, {"descr": descr, "fortran_order": False, "shape": shape})
        for piece in selection.pieces(view, taken):
            array = np.ascontiguousarray(selection.read(view, piece))
            file.write(array.reshape(-1).view(np.uint8).data)
        file.flush()
        size = file.tell() if given.output not in (None, "-") else 0
    if given.output in (None, "-"):
        return {}, ""
    text = f"wrote {given.output}: {descr}[{', '.join(map(str, shape))}], {format_bytes(size)}\n"
    return {"file": given.output, "kind": "npy", "dtype": stored.name, "descr": descr,
            "shape": shape, "bytes": size}, text


@contextlib.contextmanager
def _output(path: str | None) -> Iterator[IO[bytes]]:
    """Standard output, a device or pipe, or a file that is there when it is whole."""
    if path is None or path == "-":
        yield sys.stdout.buffer
    elif os.path.exists(path) and not os.path.isfile(path):
        with open(path, "wb") as file:
            yield file
    else:
        with durable.Folder(os.path.abspath(path), replace=True) as folder:
            with open(os.path.join(folder.temporary, "array"), "wb") as file:
                yield file
            folder.commit("array")
