# SPDX-License-Identifier: Apache-2.0
"""The interface of Orbax v1, for each library that has it."""

from typing import Any, ClassVar

from contenders.base import Contender, loader


class OrbaxInterface(Contender):
    meshes = True
    writes_orbax = True
    library: ClassVar[Any]  # the module that a training program calls `ocp`

    def begin(self, state: Any) -> Any:
        return self.library.save_async(self.path(self.step), state)

    def finish(self, pending: Any) -> None:
        pending.result()

    def restore(self, like: Any) -> Any:
        return self.library.load(self.path(self.step), like)

    def load_part(self, name: str, like: Any) -> Any:
        options = self.library.options.PyTreeOptions
        partial = options(loading=options.Loading(partial_load=True))
        with self.library.Context(pytree_options=partial):
            return self.library.load(self.path(self.step), {name: like})[name]

    def open_leaf(self, like: dict[str, Any]) -> Any:
        return loader(lambda name: self.load_part(name, like[name]))
