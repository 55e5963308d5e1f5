# SPDX-License-Identifier: Apache-2.0
"""What processes tell each other, small: values of JSON, compressed."""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any


def packed(value: Any) -> bytes:
    return zlib.compress(json.dumps(value).encode(), 1)


def unpacked(data: bytes) -> Any:
    return json.loads(zlib.decompress(data))


def packed_text(value: Any) -> str:
    """For JAX's coordination service, whose values are text."""
    return base64.b85encode(packed(value)).decode()


def unpacked_text(text: str) -> Any:
    return unpacked(base64.b85decode(text))
