# SPDX-License-Identifier: Apache-2.0
"""Notebooks run in a real kernel of Jupyter, with the package and these modules on its path."""

from __future__ import annotations

import os
from pathlib import Path

import nbclient
import nbformat

import stepwell


def execute(notebook: nbformat.NotebookNode, folder: Path) -> list[str]:
    """Runs the cells in a kernel whose directory is `folder`; what they show, as HTML or as text.
    Raises nbclient.exceptions.CellExecutionError."""
    path = os.pathsep.join([str(Path(stepwell.__file__).parents[1]), str(Path(__file__).parent)])
    client = nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3",
                                     resources={"metadata": {"path": str(folder)}})
    client.execute(env={**os.environ, "PYTHONPATH": path, "JAX_PLATFORMS": "cpu",
                        "IPYTHONDIR": str(folder / ".ipython")})
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return [data.get("text/html", data.get("text/plain", ""))
            for data in (output.get("data", {}) for output in outputs) if data]
