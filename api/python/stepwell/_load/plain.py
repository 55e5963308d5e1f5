# SPDX-License-Identifier: Apache-2.0
"""Loading without `like`: plain containers, arrays as NumPy or over a mesh."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .. import _stepwell
from .._pytree.records import ARRAY, VALUE, StoredTree
from .._pytree.tree import decode_value
from .._stepwell import ValueType
from ..errors import Mismatch, MismatchError
from .device_placement import Cast, Slot, Target, read_slots, same
from .source import Source
from .specs import jax_here, logical_array, restored_sharding, saved_shardings


def load_step(source: Source) -> Any:
    """What the empty path names, without the tree that paths are looked up in."""
    source.check()
    table = source.reader.leaves()
    # The state has no record where nothing was saved of it.
    return load_node(source, table, 0 if source.only_state and len(table) else None, None, False)


def load_node(source: Source, table: _stepwell.LeafTable, number: int | None,
              shardings: Mapping[int, Any] | None, cast: bool) -> Any:
    """A record with everything below it; None: all items. `table` is that of `source`, which has
    its tree read yet or not. `shardings`: of arrays by number; None: those that were saved."""
    source.check()
    if shardings is None and not source.collective and not (
            jax_here() and saved_shardings(table.shardings())):
        built, stats = table.load(number, decode_value)
        source.account(stats)
        return built
    values = load_leaves(source, table.leaves_below(number), shardings, cast)
    return table.build(number, values)


def load_leaves(source: Source, leaves: list[int], shardings: Mapping[int, Any] | None,
                cast: bool) -> list[Any]:
    tree = source.tree
    if shardings is None:
        saved = saved_shardings({tree.records[leaf].sharding for leaf in leaves} - {""})
        shardings = {leaf: sharding for leaf in leaves
                     if (sharding := restored_sharding(tree.records[leaf], saved)) is not None}
    bad: list[Mismatch] = []
    slots = [_slot(tree, leaf, shardings.get(leaf), cast, bad) for leaf in leaves]
    if bad:
        raise MismatchError(
            f"step {source.step}: {len(bad)} of 64 bits where JAX has 32; cast=True converts, "
            "jax_enable_x64 keeps them:", bad)
    return read_slots(source, slots)


def _slot(tree: StoredTree, number: int, sharding: Any, cast: bool, bad: list[Mismatch]) -> Slot:
    record = tree.records[number]
    if record.kind == VALUE:
        value_type = record.value_type
        return Slot(number, lambda raw: decode_value(value_type, raw))
    assert record.kind == ARRAY
    if sharding is None:
        is_scalar = record.value_type == ValueType.NUMPY_SCALAR
        return Slot(number, (lambda raw: raw[()]) if is_scalar else same)
    jax = jax_here()
    shape, dtype = logical_array(record)
    if record.value_type == ValueType.PRNG_KEY:
        return Slot(number, same, Target(shape, dtype, sharding, False, record.prng_impl))
    dtype = jax.dtypes.canonicalize_dtype(dtype)
    if dtype != record.dtype and not cast:
        bad.append(Mismatch(tree.text(number), f"stored {tree.describe(number)}"))
    convert = same if dtype == record.dtype else Cast(dtype)
    return Slot(number, convert, Target(shape, dtype, sharding, record.weak_type))
