# SPDX-License-Identifier: Apache-2.0
"""Loading without `like`: plain containers; arrays as NumPy's, as they were saved, or over a mesh.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from .._pytree.records import ARRAY, VALUE, PathLike
from .._runtime.arguments import Progress
from .._stepwell import Loaded, StepTree, ValueType, decode_value
from .._text import counted
from ..errors import InvalidArgumentError, Mismatch, MismatchError
from .casts import Casting
from .device_placement import Slot, Target, cast_to, read_slots, same
from .source import Source
from .specs import jax_here, logical_array, restored_sharding, saved_shardings

# An attribute of an enum takes a quarter of a microsecond, for each leaf.
_JAX, _NUMPY_SCALAR, _PRNG_KEY = ValueType.JAX, ValueType.NUMPY_SCALAR, ValueType.PRNG_KEY

As = Literal["numpy", "jax"]


class Plain:
    """Chooses the types of leaves that are loaded without `like`.

    as_: "numpy": arrays are NumPy's. "jax": those that were a jax.Array are one again, with their
        sharding where its devices are here, else on the default device.
    shardings: of arrays by number, over a mesh; None: none was asked for.
    Typed PRNG keys are keys in any case, where JAX is imported.
    """

    def __init__(self, as_: As, shardings: Mapping[int, Any] | None, cast: Casting,
                 progress: Progress | None) -> None:
        if as_ == "jax" and jax_here() is None:
            raise InvalidArgumentError('as_="jax" needs JAX: import jax first')
        self.as_ = as_
        self.shardings = shardings
        self.cast = cast
        self.progress = progress

    def load_at_once(self, source: Source, path: PathLike | None) -> Loaded | None:
        """Loads what `path` names, without a look at its records. None: they are needed for
        that."""
        if (self.as_ != "numpy" or self.shardings is not None or self.progress is not None
                or source.collective):
            return None
        source.check()
        loaded = source.reader.load(path, jax_here() is not None)
        if loaded is not None:
            source.account(loaded.stats)
        return loaded

    def load_node(self, source: Source, number: int) -> Any:
        """A record with everything below it; of the step all items."""
        tree = source.tree
        return tree.build(number, self.load_leaves(source, tree.leaves(number)))

    def load_leaves(self, source: Source, leaves: list[int]) -> list[Any]:
        tree = source.tree
        records = tree.records
        wanted = {records[leaf].sharding for leaf in leaves} - {""}
        saved = saved_shardings(wanted) if self.as_ == "jax" and self.shardings is None else {}
        bad: list[Mismatch] = []
        slots = [self.slot(tree, leaf, saved, bad, source.step) for leaf in leaves]
        if bad:
            raise MismatchError(
                f"step {source.step}: {counted(len(bad), 'leaf')} of 64 bits where JAX has 32; "
                "cast=True converts, jax_enable_x64 keeps them:", bad)
        return read_slots(source, slots, self.progress)

    def slot(self, tree: StepTree, number: int, saved: Mapping[str, Any], bad: list[Mismatch],
             step: int = 0) -> Slot:
        """Plans the read of a leaf. `saved`: shardings by their texts. A leaf that does not fit
        goes to `bad`. step: that errors of casts name.
        """
        record = tree.records[number]
        if record.kind == VALUE:
            value_type = record.value_type
            return Slot(number, lambda raw: decode_value(value_type, raw))
        assert record.kind == ARRAY
        is_key = record.value_type == _PRNG_KEY
        if self.shardings is not None:
            sharding = self.shardings.get(number)
            is_jax = sharding is not None
        else:
            sharding = restored_sharding(record, saved)
            is_jax = self.as_ == "jax" and record.value_type == _JAX
        jax = jax_here()
        if jax is None or not (is_jax or is_key):
            is_scalar = record.value_type == _NUMPY_SCALAR
            return Slot(number, (lambda raw: raw[()]) if is_scalar else same)
        shape, dtype = logical_array(record)
        if is_key:
            return Slot(number, same, Target(shape, dtype, sharding, False, record.prng_impl))
        dtype = jax.dtypes.canonicalize_dtype(dtype)
        if dtype != record.dtype and not self.cast:
            if self.shardings is None:  # 64 bits of a process that had them
                return Slot(number, same)
            bad.append(Mismatch(tree.text(number), f"stored {tree.describe(number)}", "dtype"))
        convert = same if dtype == record.dtype else cast_to(
            dtype, self.cast, step, tree.text(number))
        return Slot(number, convert, Target(shape, dtype, sharding, record.weak_type))
