# SPDX-License-Identifier: Apache-2.0
"""Saves a tree of NumPy arrays and loads it again by the calls that each library's documentation
shows, with their defaults, and nothing added. `save` returns when the library says that the
checkpoint is there."""

import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import states

Tree = dict[str, Any]


class Saver(NamedTuple):
    name: str
    save: Callable[[pathlib.Path, int, Tree], None]
    load: Callable[[pathlib.Path, int, Tree], Tree]  # into a tree of the same kind


_stores: dict[pathlib.Path, Any] = {}  # a training program has one open


def _stepwell_save(path: pathlib.Path, step: int, tree: Tree) -> None:
    import stepwell

    if path not in _stores:
        _stores[path] = stepwell.open(path / "store")
    _stores[path].save(step, tree).result()


def _stepwell_load(path: pathlib.Path, step: int, like: Tree) -> Tree:
    import stepwell

    with stepwell.open(path / "store", "r") as store:
        return store.load(step)  # type: ignore[no-any-return]


def close() -> None:
    """The program ends."""
    for store in _stores.values():
        store.close()


def _orbax_v1_save(path: pathlib.Path, step: int, tree: Tree) -> None:
    from orbax.checkpoint import v1

    v1.save(path / str(step), tree)


def _orbax_v1_load(path: pathlib.Path, step: int, like: Tree) -> Tree:
    from orbax.checkpoint import v1

    return v1.load(path / str(step), like)  # type: ignore[no-any-return]


def _orbax_v0_save(path: pathlib.Path, step: int, tree: Tree) -> None:
    import orbax.checkpoint as v0

    with v0.StandardCheckpointer() as checkpointer:
        checkpointer.save(path / str(step), tree)
        checkpointer.wait_until_finished()


def _orbax_v0_load(path: pathlib.Path, step: int, like: Tree) -> Tree:
    import orbax.checkpoint as v0

    with v0.StandardCheckpointer() as checkpointer:
        return checkpointer.restore(path / str(step), like)  # type: ignore[no-any-return]


def _safetensors_save(path: pathlib.Path, step: int, tree: Tree) -> None:
    from safetensors.numpy import save_file

    save_file(states.flatten(tree), path / str(step))


def _safetensors_load(path: pathlib.Path, step: int, like: Tree) -> Tree:
    from safetensors.numpy import load_file

    return states.unflatten(load_file(path / str(step)))


def _equinox_save(path: pathlib.Path, step: int, tree: Tree) -> None:
    import equinox

    equinox.tree_serialise_leaves(path / f"{step}.eqx", tree)


def _equinox_load(path: pathlib.Path, step: int, like: Tree) -> Tree:
    import equinox

    return equinox.tree_deserialise_leaves(  # type: ignore[no-any-return]
        path / f"{step}.eqx", like)


def _flax_save(path: pathlib.Path, step: int, tree: Tree) -> None:
    from flax import serialization

    (path / str(step)).write_bytes(serialization.to_bytes(tree))


def _flax_load(path: pathlib.Path, step: int, like: Tree) -> Tree:
    from flax import serialization

    return serialization.from_bytes(  # type: ignore[no-any-return]
        like, (path / str(step)).read_bytes())


def _tensorstore(path: pathlib.Path, step: int, name: str, leaf: np.ndarray, create: bool) -> Any:
    import tensorstore

    chunk = {"name": "regular", "configuration": {"chunk_shape": list(leaf.shape)}}
    codecs = [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}]
    return tensorstore.open({
        "driver": "zarr3",
        "kvstore": {"driver": "ocdbt", "base": f"file://{path}/{step}/", "path": f"{name}/"},
        "metadata": {"shape": list(leaf.shape), "data_type": leaf.dtype.name,
                     "chunk_grid": chunk, "codecs": codecs},
    }, create=create, open=True).result()


def _tensorstore_save(path: pathlib.Path, step: int, tree: Tree) -> None:
    for name, leaf in states.flatten(tree).items():
        _tensorstore(path, step, name, leaf, True).write(leaf).result()


def _tensorstore_load(path: pathlib.Path, step: int, like: Tree) -> Tree:
    return states.unflatten({
        name: _tensorstore(path, step, name, leaf, False).read().result()
        for name, leaf in states.flatten(like).items()})


def _torch_save(path: pathlib.Path, step: int, tree: Tree) -> None:
    import torch  # type: ignore[import-not-found]

    torch.save(states.tree_map(torch.from_numpy, tree), path / str(step))


def _torch_load(path: pathlib.Path, step: int, like: Tree) -> Tree:
    import torch

    return states.tree_map(lambda leaf: leaf.numpy(),  # type: ignore[no-any-return]
                           torch.load(path / str(step)))


def _dcp_save(path: pathlib.Path, step: int, tree: Tree) -> None:
    import torch
    import torch.distributed.checkpoint as dcp  # type: ignore[import-not-found]

    dcp.save(states.tree_map(torch.from_numpy, tree), checkpoint_id=path / str(step))


def _dcp_load(path: pathlib.Path, step: int, like: Tree) -> Tree:
    import torch
    import torch.distributed.checkpoint as dcp

    into = states.tree_map(lambda leaf: torch.zeros(leaf.shape), like)
    dcp.load(into, checkpoint_id=path / str(step))
    return states.tree_map(lambda leaf: leaf.numpy(), into)  # type: ignore[no-any-return]


SAVERS = {
    "stepwell": Saver("Stepwell", _stepwell_save, _stepwell_load),
    "orbax-v1": Saver("Orbax v1", _orbax_v1_save, _orbax_v1_load),
    "orbax-v0": Saver("Orbax v0", _orbax_v0_save, _orbax_v0_load),
    "tensorstore": Saver("TensorStore (zarr3, crc32c)", _tensorstore_save, _tensorstore_load),
    "safetensors": Saver("safetensors", _safetensors_save, _safetensors_load),
    "equinox": Saver("Equinox", _equinox_save, _equinox_load),
    "flax": Saver("Flax (msgpack)", _flax_save, _flax_load),
    "torch-save": Saver("torch.save", _torch_save, _torch_load),
    "torch-dcp": Saver("torch DCP", _dcp_save, _dcp_load),
}
TORCH = ("torch-save", "torch-dcp")
