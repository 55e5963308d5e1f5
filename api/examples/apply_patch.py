# SPDX-License-Identifier: Apache-2.0
"""Applies patches of `Store.export_patch` to a safetensors file, with NumPy and safetensors alone.

    python apply_patch.py model.safetensors patch.safetensors patched.safetensors

A consumer that has its tensors somewhere else, such as on a GPU, does the same with `indices` and
`values`: they are flat, in C order, in the names, types and shapes of the file that it began with.
"""

import hashlib
import json
import math
import sys

import numpy as np
from safetensors import deserialize

Tensors = dict[str, tuple[str, list[int], bytearray]]  # the type's word, the shape, the elements

NAMES = {"BOOL": "bool", "BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2",
         "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz",
         "F8_E8M0": "float8_e8m0fnu", "C64": "complex64"}
KINDS = {"I": "int", "U": "uint", "F": "float"}


def name_of(word: str) -> str:
    """NumPy's name of a type of safetensors."""
    return NAMES.get(word) or KINDS[word[0]] + word[1:]


def width_of(tensor: tuple[str, list[int], bytearray]) -> int:
    """The size of an element in bytes."""
    return len(tensor[2]) // max(1, math.prod(tensor[1]))


def read(path: str) -> tuple[Tensors, dict[str, str]]:
    """The tensors of a file by name, and its metadata."""
    with open(path, "rb") as file:
        data = file.read()
    size = int.from_bytes(data[:8], "little")
    about = json.loads(data[8:8 + size]).get("__metadata__", {})
    return {name: (each["dtype"], list(each["shape"]), bytearray(each["data"]))
            for name, each in deserialize(data)}, about


def write(path: str, tensors: Tensors, metadata: dict[str, str]) -> None:
    """Writes a file, the widest elements first, so that all are aligned."""
    header: dict[str, object] = {"__metadata__": metadata}
    ordered = sorted(tensors.items(), key=lambda pair: -width_of(pair[1]))
    end = 0
    for name, (word, shape, data) in ordered:
        header[name] = {"dtype": word, "shape": shape, "data_offsets": [end, end + len(data)]}
        end += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, (_, _, data) in ordered:
            file.write(data)


def digest(tensors: Tensors) -> str:
    """`stepwell.digest` of a dict from names to arrays."""
    lines = [json.dumps([[name], name_of(word), shape, hashlib.sha256(data).hexdigest()],
                        separators=(",", ":")) + "\n"
             for name, (word, shape, data) in tensors.items()]
    return hashlib.sha256("".join(sorted(lines)).encode()).hexdigest()


def apply(tensors: Tensors, patch: Tensors, metadata: dict[str, str]) -> None:
    """Brings the tensors from the patch's base to its result. ValueError for any others."""
    if (metadata.get("format"), metadata.get("version")) != ("stepwell-patch", "1"):
        raise ValueError("this is not a patch, or one of another version")
    if "base_digest" not in metadata:
        raise ValueError("this patch was made without digests, so nothing tells a wrong base")
    if digest(tensors) not in (metadata["base_digest"], metadata["result_digest"]):
        raise ValueError(f"these are not the tensors of step {metadata['since']}")
    whole = dict(patch)
    for name in json.loads(metadata["tensors"]):
        word, _, indices = whole.pop(name + ".indices")
        values = whole.pop(name + ".values")[2]
        width = width_of(tensors[name])
        elements = np.frombuffer(tensors[name][2], np.uint8).reshape(-1, width)
        elements[np.frombuffer(indices, name_of(word))] = np.frombuffer(
            values, np.uint8).reshape(-1, width)
    tensors.update(whole)
    for name in json.loads(metadata["removed"]):
        tensors.pop(name, None)
    if digest(tensors) != metadata["result_digest"]:
        raise ValueError(f"the result is not step {metadata['to']}")


if __name__ == "__main__":
    base, patch, result = sys.argv[1:]
    tensors, about = read(base)
    changes, metadata = read(patch)
    apply(tensors, changes, metadata)
    about = {key: text for key, text in about.items() if not key.startswith("stepwell.")}
    write(result, tensors, {**about, "stepwell.step": metadata["to"]})
