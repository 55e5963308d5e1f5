# SPDX-License-Identifier: Apache-2.0
# Sourced by the programs of bench/: what they need is installed and built (build/bench), unless
# STEPWELL_BUILD_DIR names a build with the Python module; then Python finds it.
source "$(dirname "${BASH_SOURCE[0]}")/../api/install_deps.sh"

# stepwell_bench_build PACKAGE...: Debian packages beside those of a build.
stepwell_bench_build() {
  if [[ -z "${STEPWELL_BUILD_DIR:-}" ]]; then
    stepwell_install_packages "${STEPWELL_BUILD_PACKAGES[@]}" "$@"
    stepwell_install_python "$STEPWELL_ROOT/bench/requirements.txt"
    STEPWELL_BUILD_DIR="$STEPWELL_ROOT/build/bench"
    stepwell_configure "$STEPWELL_BUILD_DIR" -DCMAKE_BUILD_TYPE=Release -DSTEPWELL_TESTS=OFF \
      -DSTEPWELL_CLI=ON -DSTEPWELL_PYTHON=ON -DSTEPWELL_BENCH=ON
    cmake --build "$STEPWELL_BUILD_DIR" -j "$(nproc)" >&2
  fi
  export PYTHONPATH="$STEPWELL_BUILD_DIR/python${PYTHONPATH:+:$PYTHONPATH}"
  export JAX_PLATFORMS="${JAX_PLATFORMS:-cpu}" TF_CPP_MIN_LOG_LEVEL=3
}
