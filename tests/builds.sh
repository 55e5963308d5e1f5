# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Sourced by tests/check and tests/soak: what they build, and what they need for it.
#
#   stepwell_install_all         packages of Debian and Python
#   stepwell_configure_checked   build/check: sanitizers, for the C++ tests
#   stepwell_configure_release   build/check-python: for Python's tests and the longest of C++'s

source "$(dirname "${BASH_SOURCE[0]}")/../api/install_deps.sh"

stepwell_install_all() {
  stepwell_install_packages "${STEPWELL_BUILD_PACKAGES[@]}" "${STEPWELL_TEST_PACKAGES[@]}"
  stepwell_install_python "$STEPWELL_ROOT/tests/requirements.txt"
  if ! command -v chromium >/dev/null; then
    "$STEPWELL_PYTHON" -m playwright install --with-deps chromium >&2
  fi
}

stepwell_configure_checked() {
  stepwell_configure build/check -DCMAKE_CXX_COMPILER=clang++ -DCMAKE_BUILD_TYPE=RelWithDebInfo \
    -DCMAKE_CXX_FLAGS_RELWITHDEBINFO="-O1 -g1" -DSTEPWELL_SANITIZE=address,undefined \
    -DSTEPWELL_TESTS=ON -DSTEPWELL_CLI=ON -DSTEPWELL_PYTHON=OFF -DSTEPWELL_BENCH=OFF
}

stepwell_configure_release() {
  stepwell_configure build/check-python -DCMAKE_CXX_COMPILER=g++ -DCMAKE_BUILD_TYPE=Release \
    -DSTEPWELL_DCHECKS=ON \
    -DSTEPWELL_TESTS=ON -DSTEPWELL_CLI=ON -DSTEPWELL_PYTHON=ON -DSTEPWELL_BENCH=ON
}
