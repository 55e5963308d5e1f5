# SPDX-License-Identifier: Apache-2.0
"""Single files of arrays: safetensors and Equinox, with the fsyncs that make them durable."""

import contextlib
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import states
from contenders.base import Cannot, FileContender


class Safetensors(FileContender):
    """A flat dict of names; the tree is put back together from the paths in them."""

    key = "safetensors"
    name = "safetensors + fsync"
    package = "safetensors"
    import_line = "import safetensors.numpy"
    opens_once = True

    def write(self, file: pathlib.Path, state: Any) -> None:
        arrays = states.flatten(state)
        if states.is_jax(state):
            from safetensors.flax import save_file
        else:
            from safetensors.numpy import save_file
        save_file(arrays, file)

    def restore(self, like: Any) -> Any:
        if states.is_jax(like):
            from safetensors.flax import load_file
        else:
            from safetensors.numpy import load_file
        return states.unflatten(load_file(self.path(self.step)))

    def load_part(self, name: str, like: Any) -> Any:
        from safetensors import safe_open

        with safe_open(self.path(self.step), framework="numpy") as file:
            names = [key for key in file.keys() if key.startswith(name + "/")]
            return states.unflatten({key: file.get_tensor(key) for key in names})[name]

    @contextlib.contextmanager
    def open_leaf(self, like: dict[str, Any]) -> Iterator[Callable[[str], Any]]:
        from safetensors import safe_open

        with safe_open(self.path(self.step), framework="numpy") as file:
            yield file.get_tensor


class Equinox(FileContender):
    key = "equinox"
    name = "Equinox + fsync"
    package = "equinox"
    import_line = "import equinox"

    def write(self, file: pathlib.Path, state: Any) -> None:
        import equinox

        with file.open("wb") as stream:  # by name it would add an ending to it
            equinox.tree_serialise_leaves(stream, state)

    def restore(self, like: Any) -> Any:
        import equinox

        with self.path(self.step).open("rb") as stream:
            return equinox.tree_deserialise_leaves(stream, like)

    def load_part(self, name: str, like: Any) -> Any:
        raise Cannot("leaves lie one after the other, without an index")

    def open_leaf(self, like: dict[str, Any]) -> Any:
        raise Cannot("leaves lie one after the other, without an index")
