# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Sourced by bench/run, behind api/install_deps.sh.
#
#   stepwell_install_torch     PyTorch (several GB) in bench/.venv-torch; "$STEPWELL_TORCH_PYTHON"

STEPWELL_TORCH_PYTHON="$STEPWELL_ROOT/bench/.venv-torch/bin/python"

# The wheel for CPUs is a tenth of the size; where its index is out of reach, PyPI's runs as well.
stepwell_install_torch() {
  local wanted="$STEPWELL_ROOT/bench/requirements-torch.txt" pip
  pip=("$STEPWELL_TORCH_PYTHON" -m pip install --quiet --disable-pip-version-check)
  if "$STEPWELL_TORCH_PYTHON" -c 'import torch, numpy, ml_dtypes, safetensors' 2>/dev/null; then
    return 0
  fi
  stepwell_say "installing PyTorch into bench/.venv-torch"
  "$STEPWELL_PYTHON" -m venv "$STEPWELL_ROOT/bench/.venv-torch"
  "${pip[@]}" --retries 1 --index-url https://download.pytorch.org/whl/cpu -r "$wanted" >&2 ||
    "${pip[@]}" --no-cache-dir -r "$wanted" >&2
}
