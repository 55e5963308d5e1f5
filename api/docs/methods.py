# SPDX-License-Identifier: Apache-2.0
"""Tells mkdocstrings about this package's style, for the API reference."""

import re
from typing import Any

import griffe

PARAMETER = re.compile(r"\w+(, \w+)*: ")


class Methods(griffe.Extension):
    def on_class_members(self, *, cls: griffe.Class, **_: Any) -> None:
        """Documents `export = _export.export` where the class is."""
        for name, member in list(cls.members.items()):
            if member.is_attribute and isinstance(member.value, griffe.ExprAttribute):
                target = member.value.canonical_path
                cls.members[name] = griffe.Alias(name, target, parent=cls)

    def on_function_instance(self, *, func: griffe.Function, **_: Any) -> None:
        """Paragraphs of `parameter: what it is` get the heading that Google's style asks for."""
        if func.docstring is None:
            return
        known = {parameter.name for parameter in func.parameters}
        paragraphs = func.docstring.value.split("\n\n")
        for place, paragraph in enumerate(paragraphs):
            names = PARAMETER.match(paragraph)
            if names and known.issuperset(names[0][:-2].split(", ")):
                lines = (f"    {line}" for line in paragraph.splitlines())
                paragraphs[place] = "\n".join(["Args:", *lines])
        func.docstring.value = "\n\n".join(paragraphs)
