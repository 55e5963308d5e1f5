# SPDX-License-Identifier: Apache-2.0
"""Errors as one process tells them to others, and as these raise them."""

from __future__ import annotations

from typing import Any

from .. import errors
from ..errors import Error, OutcomeUnknownError, PeerError


def told(error: BaseException) -> dict[str, Any]:
    """An error for other processes."""
    return {"error": str(error) or type(error).__name__, "class": type(error).__name__}


def raised(decision: dict[str, Any]) -> Error:
    """The error that another process told: of the same class where that is one of ours."""
    who = ", ".join([f"process {process}" for process in decision.get("processes", ())])
    text = f"{who}: {decision['error']}" if who and "class" in decision else decision["error"]
    kind = getattr(errors, decision.get("class", ""), PeerError)
    if kind is OutcomeUnknownError:
        return OutcomeUnknownError(text, decision.get("processes", ()))
    if not issubclass(kind, Error) or issubclass(kind, PeerError):
        return PeerError(text, decision.get("processes", ()))
    made: Error = kind(text)
    return made
