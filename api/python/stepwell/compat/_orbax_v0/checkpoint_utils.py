# SPDX-License-Identifier: Apache-2.0
"""`checkpoint_utils`: restore arguments of a target; following the steps of a run."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..._interop.orbax_view import pin_view
from ...errors import StepNotFoundError
from . import metadata
from .args import is_tree_metadata
from .leaf_args import PLACEHOLDER, ArrayRestoreArgs, RestoreArgs
from .libraries import jax_module
from .metadata import TreeMetadata
from .step import checkpoint_steps, standard_name_format


def construct_restore_args(target: Any, sharding_tree: Any = None, set_global_shape: bool = True,
                           support_layout: bool = False, strict: bool = True) -> Any:
    """A tree of RestoreArgs that restores leaves as those of `target`.

    target: concrete or abstract leaves, or metadata. sharding_tree: shardings instead of those of
    the target. set_global_shape: whether arrays must have the shapes of the target. strict: False
    pads and truncates arrays of other shapes.
    """
    jax = jax_module()

    def sharding_of(value: Any) -> Any:
        return getattr(value, "sharding", None)

    def restore_args(value: Any, sharding: Any) -> Any:
        return _restore_args(value, sharding, set_global_shape, strict)

    tree = target.tree if is_tree_metadata(target) else target
    tree = jax.tree.map(_key_data, tree)
    if sharding_tree is None:
        # JAX drops None from the leaves, so trees of shardings cannot be mapped beside the target.
        made = jax.tree.map(lambda value: restore_args(value, sharding_of(value)), tree)
    else:
        shardings = sharding_tree.tree if is_tree_metadata(sharding_tree) else sharding_tree
        leaves, treedef = jax.tree.flatten(tree)
        made = treedef.unflatten([
            restore_args(leaf, sharding) for leaf, sharding in zip(
                leaves, treedef.flatten_up_to(shardings), strict=True)])
    if is_tree_metadata(target):
        return TreeMetadata(tree=made, custom_metadata=target.custom_metadata)
    return made


def _key_data(value: Any) -> Any:
    jax = jax_module()

    if isinstance(value, jax.Array) and jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
        return jax.random.key_data(value)
    return value


def _restore_args(value: Any, sharding: Any, set_global_shape: bool, strict: bool) -> Any:
    jax = jax_module()

    described = metadata.kind_of(value)
    if described == "string" or isinstance(value, str):
        return RestoreArgs(restore_type=str)
    if described == "scalar":
        return RestoreArgs(restore_type=type(np.dtype(value.dtype).type(0).item()),
                           dtype=value.dtype)
    is_abstract = described == "array" or isinstance(value, jax.ShapeDtypeStruct)
    if isinstance(value, jax.Array) or is_abstract and sharding is not None:
        is_key = jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key)
        shape = None if is_key or not set_global_shape else tuple(value.shape)
        return ArrayRestoreArgs(restore_type=jax.Array, sharding=sharding, global_shape=shape,
                                dtype=value.dtype, strict=strict)
    if is_abstract or isinstance(value, np.ndarray):
        return RestoreArgs(restore_type=np.ndarray, dtype=value.dtype)
    if isinstance(value, (int, float)):
        return RestoreArgs(restore_type=type(value))
    if value is PLACEHOLDER:
        return RestoreArgs(restore_type=type(PLACEHOLDER))
    raise ValueError(f"Unsupported type: {type(value)}")


# ---- following a run ----------------------------------------------------------------------------


@contextlib.contextmanager
def wait_for_new_checkpoint(checkpoint_dir: Any, *, until_step: int | None = None,
                            seconds_to_sleep: float = 1, timeout: float | None = None,
                            timeout_fn: Callable[[], bool] | None = None,
                            step_prefix: str | None = None,
                            step_format_fixed_length: int | None = None,
                            step_name_format: Any = None, snapshot_dir: Any = None,
                            set_immutable: bool | None = None,
                            ignore_snapshot_errors: bool | None = True) -> Iterator[int]:
    """Waits for a step of at least `until_step` (None: for any). The step, or -1 after `timeout`
    seconds (if `timeout_fn` is given: once that returns True after the timeout).

    In the block the step can be read, whatever the run deletes meanwhile.
    """
    name_format = step_name_format or standard_name_format(
        step_prefix=step_prefix, step_format_fixed_length=step_format_fixed_length)
    end = None if timeout is None else time.monotonic() + timeout
    with contextlib.ExitStack() as pins:
        while True:
            step = max(checkpoint_steps(checkpoint_dir), default=None)
            if (step is not None and (until_step is None or step >= until_step)
                    and _pinned(pins, checkpoint_dir, name_format, step)):
                break
            if (end is not None and time.monotonic() + seconds_to_sleep > end
                    and (timeout_fn is None or timeout_fn())):
                step = -1
                break
            time.sleep(seconds_to_sleep)
        yield step


def _pinned(pins: contextlib.ExitStack, root: Any, name_format: Any, step: int) -> bool:
    """Pins a step of a view; False if it went meanwhile. A step of Orbax needs no pin here."""
    path = os.path.join(os.fspath(root), name_format.build_name(step))
    try:
        pins.enter_context(pin_view(path))
    except StepNotFoundError:
        return os.path.isdir(path)
    return True


def checkpoints_iterator(checkpoint_dir: Any, *, min_interval_secs: float = 0,
                         seconds_to_sleep: float = 1, timeout: float | None = None,
                         timeout_fn: Callable[[], bool] | None = None,
                         step_prefix: str | None = None,
                         step_format_fixed_length: int | None = None,
                         step_name_format: Any = None, snapshot_dir: Any = None,
                         set_immutable: bool | None = None,
                         ignore_snapshot_errors: bool | None = True) -> Iterator[int]:
    """The newest step of a run, again and again: each higher than the one before. Ends when no new
    one comes for `timeout` seconds (and `timeout_fn`, if given, returns True). Steps that come and
    go while the caller works are left out."""
    last: int | None = None
    while True:
        with wait_for_new_checkpoint(
                checkpoint_dir, until_step=None if last is None else last + 1,
                seconds_to_sleep=seconds_to_sleep, timeout=timeout, timeout_fn=timeout_fn,
                step_prefix=step_prefix, step_format_fixed_length=step_format_fixed_length,
                step_name_format=step_name_format) as step:
            if step == -1:
                return
            start = time.monotonic()
            last = step
            yield step
        time.sleep(max(0.0, start + min_interval_secs - time.monotonic()))
