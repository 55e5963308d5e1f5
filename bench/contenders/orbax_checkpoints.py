# SPDX-License-Identifier: Apache-2.0
"""Orbax by its new (v1) and its old (v0) interface, both with their defaults."""

import pathlib
from typing import Any

import orbax.checkpoint as v0
from contenders.base import Contender, loader
from contenders.orbax_interface import OrbaxInterface
from orbax.checkpoint import v1


class OrbaxV1(OrbaxInterface):
    key = "orbax-v1"
    name = "Orbax v1"
    package = "orbax-checkpoint"
    import_line = "from orbax.checkpoint import v1"
    library = v1


class OrbaxV0(Contender):
    key = "orbax-v0"
    name = "Orbax v0"
    package = "orbax-checkpoint"
    import_line = "import orbax.checkpoint"
    meshes = True
    writes_orbax = True

    def __init__(self, directory: pathlib.Path, keep: int = 1) -> None:
        super().__init__(directory, keep)
        self._checkpointer = v0.StandardCheckpointer()

    def begin(self, state: Any) -> Any:
        self._checkpointer.save(self.path(self.step), state)

    def finish(self, pending: Any) -> None:
        self._checkpointer.wait_until_finished()

    def restore(self, like: Any) -> Any:
        return self._checkpointer.restore(self.path(self.step), like)

    def load_part(self, name: str, like: Any) -> Any:
        part = {name: like}
        arguments = v0.args.PyTreeRestore(
            item=part, restore_args=v0.checkpoint_utils.construct_restore_args(part),
            partial_restore=True)
        with v0.Checkpointer(v0.PyTreeCheckpointHandler()) as checkpointer:
            return checkpointer.restore(self.path(self.step), args=arguments)[name]

    def open_leaf(self, like: dict[str, Any]) -> Any:
        return loader(lambda name: self.load_part(name, like[name]))

    def close(self) -> None:
        self._checkpointer.close()
