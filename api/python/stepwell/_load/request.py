# SPDX-License-Identifier: Apache-2.0
"""A load: its request, and its execution. Paths, items, meshes, `like`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

from .._pytree.records import ROOT, PathLike
from .._pytree.tree import KEY, check_called
from .._renaming import Rename, Rule, rules_of
from .._runtime.arguments import Progress, check_path, item_names
from .._runtime.gc_pause import paused
from .._text import brief, counted
from ..errors import InvalidArgumentError, Mismatch, MismatchError, PathNotFoundError
from .casts import Casting
from .like import Fit, is_abstract, load_like
from .mapped import MappedSource, rearranged
from .plain import As, Plain
from .source import Source
from .specs import assign

Missing = Literal["error", "target"]
Unexpected = Literal["error", "ignore"]
OnCorrupt = Literal["raise", "previous"]


class LoadRequest(NamedTuple):
    """The arguments of `Store.load`, checked."""

    path: PathLike | None
    like: Any
    mesh: Any
    specs: Any
    items: list[str] | None
    as_: As
    cast: Casting
    missing: Missing
    unexpected: Unexpected
    rename: list[Rule]
    progress: Progress | None

    @classmethod
    def checked(cls, path: PathLike | None, like: Any, mesh: Any, specs: Any,
                items: Iterable[str] | None, as_: As, cast: Casting, missing: Missing,
                unexpected: Unexpected, rename: Rename | None,
                progress: Progress | None) -> LoadRequest:
        """Raises InvalidArgumentError."""
        check_path(path)
        check_called(like, "like")
        rules = rules_of(rename)
        if mesh is None and specs is not None:
            raise InvalidArgumentError("specs need a mesh")
        for name, value, choices in (("as_", as_, ("numpy", "jax")),
                                     ("cast", cast, (False, True, "wrap")),
                                     ("missing", missing, ("error", "target")),
                                     ("unexpected", unexpected, ("error", "ignore"))):
            if value not in choices:
                raise InvalidArgumentError(
                    f"{name} must be {' or '.join(map(repr, choices))}, not {brief(value)}")
        if like is None:
            given = [name for name, default in (("missing", missing == "error"),
                                                ("unexpected", unexpected == "error"),
                                                ("rename", not rename)) if not default]
            if given:
                raise InvalidArgumentError(f"{' and '.join(given)} say how the step and `like` may "
                                           "differ: give like=, too")
        if items is not None:
            if path is not None:
                raise InvalidArgumentError("give a path or items: a path names its item itself")
            items = item_names(items)
            if like is not None and not isinstance(like, Mapping):
                raise InvalidArgumentError(
                    f"with items, `like` must be a dict by item name, not {brief(like)}")
        return cls(path, like, mesh, specs, items, as_, cast, missing, unexpected, rules, progress)

    def run(self, source: Source) -> Any:
        if self.mesh is not None or self.items is not None:
            source.tree  # noqa: B018 - all of the step, which specs and items speak of
        elif self.like is None and (loaded := self._plain(None).load_at_once(source, self.path)):
            return loaded.value
        with paused():
            source, selection = source.select(self.path, whole=True)
            tree = source.tree
            top = ROOT if selection.number is None or self.items is not None else selection.number
            leaves = selection.leaves if selection.number is None else tree.leaves(top)
            shardings: dict[int, Any] = {}
            if self.mesh is not None:
                shardings = assign(tree, source.step, top, leaves, self.mesh, self.specs)
        fit = Fit(self.cast, self.missing == "target", self.unexpected == "ignore", shardings)
        if self.items is not None:
            return self._load_items(source, fit)
        if self.like is not None:
            if selection.number is None:
                return self._load_flat(source, leaves, fit)
            return self._load_like(source, top, fit)
        plain = self._plain(shardings if self.mesh is not None else None)
        if selection.number is not None:
            return plain.load_node(source, top)
        names = tree.by_text(leaves)
        return dict(zip(names, plain.load_leaves(source, leaves), strict=True))

    def _plain(self, shardings: Mapping[int, Any] | None) -> Plain:
        return Plain(self.as_, shardings, self.cast, self.progress)

    def _load_like(self, source: Source, top: int, fit: Fit) -> Any:
        tree = source.tree
        if self.items is not None or self.rename:
            above = tree.components(top)
            source, tree = rearranged(source, self.items, self.rename, top)
            if self.mesh is not None and isinstance(source, MappedSource):
                raise InvalidArgumentError("where rename makes arrays, `like` must have their "
                                           "shardings: give no mesh")
            found = tree.at(above)
            assert found is not None  # the place itself stays
            top = found
        (loaded,) = load_like(source, [(self.like, top)], fit, tree, self.progress)
        return loaded

    def _load_items(self, source: Source, fit: Fit) -> dict[str, Any]:
        assert self.items is not None
        there = source.tree.children(ROOT)
        lacking = [name for name in self.items if (KEY, name) not in there]
        if lacking and not fit.missing:
            names = ", ".join(repr(name) for _, name in there)
            raise PathNotFoundError(
                f"step {source.step} has no item {lacking[0]!r}; it has {names}")
        if self.like is None:
            plain = self._plain(fit.shardings if self.mesh is not None else None)
            return {name: plain.load_node(source, there[(KEY, name)])
                    for name in self.items}
        likes: dict[str, Any] = {name: self.like[name] for name in self.items if name in self.like}
        if len(likes) < len(self.items):
            absent = next(name for name in self.items if name not in likes)
            raise InvalidArgumentError(f"`like` has nothing for the item {absent!r}")
        loaded: dict[str, Any] = self._replace(like=likes)._load_like(source, ROOT, fit)
        return loaded

    def _load_flat(self, source: Source, leaves: list[int], fit: Fit) -> dict[str, Any]:
        """A glob with `like`, a flat dict by path."""
        tree = source.tree
        like = self.like
        if not isinstance(like, Mapping):
            raise InvalidArgumentError("with a glob, `like` must be a flat dict by path")
        if self.rename:
            raise InvalidArgumentError("rename is for trees; with a glob, rename the dict's paths")
        stored = tree.by_text(leaves)
        bad = [Mismatch(name, f"stored {tree.describe(stored[name])}, not in `like`", "unexpected")
               for name in stored if name not in like and not fit.unexpected]
        for name in like:
            if name not in stored and (is_abstract(like[name]) or not fit.missing):
                bad.append(Mismatch(name, "does not match the pattern" + (
                    ", and `like` has no value for it" if fit.missing else ""), "missing"))
        if bad:
            raise MismatchError(f"step {source.step}: {counted(len(bad), 'path')} of the glob and "
                                "of `like` differ:", bad, "with a glob, `like` is a flat dict by "
                                "path")
        taken = {name: number for name, number in stored.items() if name in like}
        loaded = load_like(source, [(like[name], number) for name, number in taken.items()], fit,
                           progress=self.progress)
        return {**like, **dict(zip(taken, loaded, strict=True))} if fit.missing else dict(
            zip(taken, loaded, strict=True))
