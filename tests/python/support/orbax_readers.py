# SPDX-License-Identifier: Apache-2.0
"""Everything that reads checkpoints: Orbax v1, Orbax v0, TensorStore. Each compares bit for bit.

A reader takes a Checkpoint and raises if what it reads is not what was saved.
"""

from __future__ import annotations

import dataclasses
import pathlib
import random
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
import tensorstore as ts
from orbax.checkpoint import v1
from orbax_expect import Target, as_restored, check, everywhere, is_key, key_data
from orbax_trees import param_names


@dataclasses.dataclass
class Checkpoint:
    """One tree, saved in three layouts, and what is to be read."""

    tree: Any
    leaves: str  # "jax" or "numpy": how its arrays are typed
    zarr: int
    bare: pathlib.Path  # v1's own: the step's directory; item "state"
    root: pathlib.Path  # a manager's that knows its item as "state"
    default_root: pathlib.Path  # a manager's that was told no item names
    step: int
    metrics: dict[str, float]
    metadata: dict[str, Any]
    others: dict[str, Any]  # further items of bare and root
    chance: random.Random

    def __post_init__(self) -> None:
        self.plain = as_restored(self.tree, self.leaves)
        self.target = Target(self.tree, self.chance)
        self.has_text = any(isinstance(leaf, str) for leaf in jax.tree.leaves(self.tree))
        self.has_bool = any(
            isinstance(leaf, (bool, np.bool_)) for leaf in jax.tree.leaves(self.tree))

    def parts(self) -> tuple[Any, Any]:
        """A target in which leaves are left out, and what is to come: they are, there too."""
        flat, structure = jax.tree.flatten(self.target.abstract)
        restored = structure.flatten_up_to(self.target.restored)
        taken = [self.chance.random() < 0.3 for _ in flat]
        taken[self.chance.randrange(len(taken))] = True
        return tuple(
            structure.unflatten([leaf if take else ... for leaf, take in zip(some, taken)])
            for some in (flat, restored))  # type: ignore[return-value]


Reader = Callable[[Checkpoint], bool | None]  # False: there is nothing for it to read


def refuses(read: Callable[[], Any], message: str) -> None:
    """Returns true for what Orbax refuses of its own, too (test_orbax_refuses_its_own_too shows
    it)."""
    try:
        read()
    except ValueError as error:
        if message in str(error):
            return
        raise
    raise AssertionError(f"read, though Orbax says {message!r} of its own checkpoints")


# ---- Orbax v1 ---------------------------------------------------------------------------------


def v1_load(at: Checkpoint) -> None:
    check(at.plain, v1.load(at.bare))


def v1_load_target(at: Checkpoint) -> None:
    check(at.target.restored, v1.load(at.bare, at.target.abstract))


def v1_load_parts(at: Checkpoint) -> None:
    abstract, restored = at.parts()
    check(restored, v1.load(at.bare, abstract))


def v1_load_checkpointables(at: Checkpoint) -> None:
    check({"state": at.plain, **at.others}, v1.load_checkpointables(at.bare))


def v1_load_checkpointables_target(at: Checkpoint) -> None:
    loaded = v1.load_checkpointables(at.bare, {"state": at.target.abstract})
    check({"state": at.target.restored}, loaded)


def v1_metadata(at: Checkpoint) -> None:
    found = v1.metadata(at.bare)
    check(at.metadata, found.custom_metadata)
    check_described(at, found.metadata)


def check_described(at: Checkpoint, tree: Any) -> None:
    """Shapes, dtypes and shardings. Orbax v1 describes no tree with a Python bool in it, its own
    neither."""
    if at.has_bool:
        check(None, tree)
        return
    check(described(at.plain), jax.tree.map(
        lambda leaf: (leaf.shape, leaf.dtype, getattr(leaf, "sharding", None))
        if hasattr(leaf, "storage_metadata") else leaf, tree))


def described(node: Any) -> Any:
    """A tree as Orbax v1's metadata has it."""
    if isinstance(node, dict):
        return {key: described(child) for key, child in node.items()}
    if isinstance(node, (list, tuple)):
        return type(node)(described(child) for child in node)
    if isinstance(node, (jax.Array, np.ndarray)):
        data = key_data(node)  # of keys: an axis more
        sharding = getattr(data, "sharding", None)
        if is_key(node) and sharding.is_equivalent_to(everywhere(), data.ndim):
            sharding = everywhere()  # P(), of whatever rank
        return (data.shape, data.dtype, sharding)
    if isinstance(node, str):
        return "string"
    return None if node is None else type(node)()


def training_load(at: Checkpoint) -> None:
    with v1.training.Checkpointer(at.root) as checkpointer:
        assert checkpointer.latest is not None and checkpointer.latest.step == at.step
        check(at.plain, checkpointer.load())


def training_load_target(at: Checkpoint) -> None:
    with v1.training.Checkpointer(at.root) as checkpointer:
        check(at.target.restored, checkpointer.load(at.step, at.target.abstract))


def training_metadata(at: Checkpoint) -> None:
    with v1.training.Checkpointer(at.root) as checkpointer:
        found = checkpointer.metadata(at.step)
    check(at.metadata, found.custom_metadata)
    check(at.metrics, found.metrics or {})
    check_described(at, found.metadata)


# ---- Orbax v0 ---------------------------------------------------------------------------------

NO_TEXT = "Unsupported type: <class 'str'>"  # of StandardRestore's targets


def manager_restore(at: Checkpoint) -> None:
    with ocp.CheckpointManager(at.default_root) as manager:
        assert manager.all_steps() == [at.step] and manager.latest_step() == at.step
        check(at.plain, manager.restore(at.step))
        if at.metrics:
            check(at.metrics, manager.metrics(at.step))


def manager_restore_items(at: Checkpoint) -> None:
    with ocp.CheckpointManager(at.root) as manager:
        restored = manager.restore(at.step)
        metrics = {"metrics": at.metrics} if at.metrics else {}
        check({"state": at.plain, **at.others, **metrics}, dict(restored.items()))


def manager_standard(at: Checkpoint) -> None:
    with ocp.CheckpointManager(at.default_root) as manager:
        check(at.plain, manager.restore(at.step, args=ocp.args.StandardRestore()))


def manager_standard_target(at: Checkpoint) -> None:
    args = ocp.args.StandardRestore(at.target.abstract)
    with ocp.CheckpointManager(at.default_root) as manager:
        if at.has_text:
            refuses(lambda: manager.restore(at.step, args=args), NO_TEXT)
        else:
            check(at.target.restored, manager.restore(at.step, args=args))


def manager_standard_item(at: Checkpoint) -> None:
    args = ocp.args.Composite(state=ocp.args.StandardRestore())
    with ocp.CheckpointManager(at.root) as manager:
        check(at.plain, manager.restore(at.step, args=args)["state"])


def pytree_args(abstract: Any, **options: Any) -> ocp.args.PyTreeRestore:
    restore_args = ocp.checkpoint_utils.construct_restore_args(abstract)
    return ocp.args.PyTreeRestore(abstract, restore_args=restore_args, **options)


def manager_pytree(at: Checkpoint) -> None:
    with ocp.CheckpointManager(at.default_root) as manager:
        check(at.plain, manager.restore(at.step, args=ocp.args.PyTreeRestore()))
        restored = manager.restore(at.step, args=pytree_args(at.target.abstract))
        check(at.target.restored, restored)


def manager_pytree_parts(at: Checkpoint) -> None:
    abstract, wanted = at.parts()
    with ocp.CheckpointManager(at.default_root) as manager:
        check(wanted, manager.restore(at.step, args=pytree_args(abstract)))


def manager_pytree_some(at: Checkpoint) -> bool:
    """`partial_restore`: what the target does not name is not read."""
    if not isinstance(at.tree, dict):  # of a list nothing can be left out
        return False
    names = at.chance.sample(sorted(at.tree), 3)
    abstract = {name: at.target.abstract[name] for name in names}
    with ocp.CheckpointManager(at.default_root) as manager:
        restored = manager.restore(at.step, args=pytree_args(abstract, partial_restore=True))
    check({name: at.target.restored[name] for name in names}, restored)
    return True


def item_of(at: Checkpoint) -> pathlib.Path:
    return at.default_root / str(at.step) / "default"


def pytree_checkpointer(at: Checkpoint) -> None:
    with ocp.PyTreeCheckpointer() as checkpointer:
        check(at.plain, checkpointer.restore(item_of(at)))
        args = ocp.checkpoint_utils.construct_restore_args(at.target.abstract)
        check(at.target.restored, checkpointer.restore(
            item_of(at), at.target.abstract, restore_args=args))


def standard_checkpointer(at: Checkpoint) -> None:
    with ocp.StandardCheckpointer() as checkpointer:
        check(at.plain, checkpointer.restore(item_of(at)))
        if at.has_text:
            refuses(lambda: checkpointer.restore(item_of(at), at.target.abstract), NO_TEXT)
        else:
            check(at.target.restored, checkpointer.restore(item_of(at), at.target.abstract))


def v0_metadata(at: Checkpoint) -> None:
    with ocp.PyTreeCheckpointer() as checkpointer:
        tree = checkpointer.metadata(item_of(at)).item_metadata.tree
    check(jax.tree.map(lambda leaf: (tuple(np.shape(key_data(leaf)))), at.plain),
          jax.tree.map(lambda leaf: getattr(leaf, "shape", ()), tree))
    with ocp.CheckpointManager(at.default_root) as manager:
        check(at.metadata, manager.metadata(at.step).custom_metadata)


# ---- TensorStore ------------------------------------------------------------------------------


def tensorstore_arrays(at: Checkpoint) -> None:
    context = ts.Context()
    driver = "zarr3" if at.zarr == 3 else "zarr"
    opened = {}
    for name, leaf in param_names(at.tree).items():
        if isinstance(leaf, str):
            continue
        kvstore = {"driver": "ocdbt", "base": f"file://{at.bare}/state/", "path": name}
        opened[name] = leaf, ts.open({"driver": driver, "kvstore": kvstore}, context=context)
    for name, (leaf, future) in opened.items():
        wanted = np.asarray(key_data(leaf))
        wanted = wanted.astype(wanted.dtype.newbyteorder("="))
        check({name: wanted}, {name: np.asarray(future.result().read().result())})


READERS: list[Reader] = [
    v1_load, v1_load_target, v1_load_parts, v1_load_checkpointables,
    v1_load_checkpointables_target, v1_metadata, training_load, training_load_target,
    training_metadata, manager_restore, manager_restore_items, manager_standard,
    manager_standard_target, manager_standard_item, manager_pytree, manager_pytree_parts,
    manager_pytree_some, pytree_checkpointer, standard_checkpointer, v0_metadata,
    tensorstore_arrays,
]  # fmt: skip
