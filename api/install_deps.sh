# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Sourced by api/quickstart and tests/check: installs what is missing, and only that.
#
#   stepwell_install_packages PACKAGE...     Debian and Ubuntu packages, by apt (sudo if not root)
#   stepwell_install_python REQUIREMENTS...  .venv at the top of the repository, by pip
#   stepwell_configure BUILD [OPTION...]     cmake with Ninja, unity batches (a third of the time)
#                                            and, where there is one, ccache
#
# Afterwards "$STEPWELL_ROOT" is the repository and "$STEPWELL_PYTHON" the venv's interpreter.

STEPWELL_ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
STEPWELL_PYTHON="$STEPWELL_ROOT/.venv/bin/python"

STEPWELL_BUILD_PACKAGES=(
  build-essential ca-certificates ccache cmake ninja-build pkg-config
  capnproto libblosc-dev libcapnp-dev libcli11-dev libisal-dev liblz4-dev librocksdb-dev
  liburing-dev libxxhash-dev libzstd-dev nlohmann-json3-dev python3 python3-dev python3-venv
  zlib1g-dev)
STEPWELL_TEST_PACKAGES=(
  btrfs-progs clang clang-format-14 e2fsprogs fio fish fuse3 groff-base libbenchmark-dev
  libfuse3-dev libgmock-dev libgtest-dev mount strace xfsprogs zsh)
# Ubuntu has Chromium as a snap alone; tests/builds.sh takes Playwright's there.
if ! grep -qs '^ID=ubuntu$' /etc/os-release; then STEPWELL_TEST_PACKAGES+=(chromium); fi

stepwell_say() { printf '== %s\n' "$*" >&2; }

stepwell_install_packages() {
  if ! command -v dpkg-query >/dev/null; then
    stepwell_say "not Debian or Ubuntu: these packages must be there already: $*"
    return 0
  fi
  local package missing=()
  for package in "$@"; do
    if [[ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" != installed ]]; then
      missing+=("$package")
    fi
  done
  if ((${#missing[@]} == 0)); then return 0; fi
  stepwell_say "installing ${missing[*]}"
  local as_root=()
  if [[ "$(id -u)" != 0 ]]; then as_root=(sudo); fi
  local apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get
    -o DPkg::Lock::Timeout=600 -o Acquire::Retries=3 -qq)
  "${apt[@]}" update >&2
  "${apt[@]}" install -y --no-install-recommends "${missing[@]}" >&2
}

# The first interpreter that is new enough and can make a venv and build a module.
stepwell_find_python() {
  local candidate
  for candidate in "${PYTHON:-python3}" /usr/bin/python3 python3.13 python3.12 python3.11; do
    if "$candidate" - 2>/dev/null <<'PYTHON'
import ensurepip, os, sys, sysconfig, venv
header = os.path.join(sysconfig.get_path("include"), "Python.h")
sys.exit(sys.version_info < (3, 11) or not os.path.exists(header))
PYTHON
    then
      "$candidate" -c 'import sys; print(sys.executable)'
      return 0
    fi
  done
  stepwell_say "no Python >= 3.11 with headers and venv found (set PYTHON to one)"
  return 1
}

stepwell_install_python() {
  local venv="$STEPWELL_ROOT/.venv" file
  (
    flock 9 # two commands may start at once
    if ! "$STEPWELL_PYTHON" -c 'import pip' 2>/dev/null; then
      stepwell_say "making $venv"
      python="$(stepwell_find_python)"
      "$python" -m venv "$venv"
    fi
    for file in "$@"; do
      # The stamp holds what was asked for; files that a requirements file includes count too.
      stamp="$venv/.installed-$(basename "$(dirname "$file")")"
      wanted="$({
        "$STEPWELL_PYTHON" --version
        cat "$file" "$STEPWELL_ROOT/api/examples/requirements.txt"
      } | sha256sum)"
      if [[ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ]]; then
        stepwell_say "installing ${file#"$STEPWELL_ROOT/"} into .venv"
        "$STEPWELL_PYTHON" -m pip install --quiet --disable-pip-version-check -r "$file" >&2
        echo "$wanted" >"$stamp"
      fi
    done
  ) 9>"$STEPWELL_ROOT/build/.python.lock"
}

stepwell_configure() {
  local build="$1" launcher=()
  shift
  if command -v ccache >/dev/null; then launcher=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache); fi
  cmake -S "$STEPWELL_ROOT" -B "$build" -G Ninja "${launcher[@]}" \
    -DPython_EXECUTABLE="$STEPWELL_PYTHON" -DPython3_EXECUTABLE="$STEPWELL_PYTHON" \
    -Dnanobind_DIR="$("$STEPWELL_PYTHON" -m nanobind --cmake_dir)" \
    -DCMAKE_UNITY_BUILD=ON -DCMAKE_UNITY_BUILD_BATCH_SIZE=20 \
    -Wno-dev --no-warn-unused-cli --log-level=NOTICE "$@" >&2
}

mkdir -p "$STEPWELL_ROOT/build"
