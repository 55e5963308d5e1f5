# SPDX-License-Identifier: Apache-2.0
"""The installed library, as other projects use it: CMake's find_package from C++, pkg-config from
C; the programs are those of the guide "C and C++". What they save, Python and the program read."""

import os
import pathlib
import re
import shutil
import subprocess

import numpy as np
import pytest
import stepwell

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ["STEPWELL_BUILD_DIR"])
C_FLAGS = ["-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror"]


def run(*command: str | os.PathLike[str], **options: object) -> str:
    result = subprocess.run(
        [os.fspath(part) for part in command],
        capture_output=True, text=True, timeout=300, check=False, **options,
    )  # fmt: skip
    assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
    return result.stdout


def example(language: str) -> str:
    guide = (ROOT / "api/docs/pages/cpp.md").read_text(encoding="utf-8")
    (text,) = re.findall(rf"```{language} .*?\n(.*?)```", guide, re.DOTALL)
    return text


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Installed elsewhere and moved: nothing in it may name its place."""
    staged = tmp_path_factory.mktemp("staged") / "prefix"
    run("cmake", "--install", BUILD, "--component", "library", "--prefix", staged)
    moved = tmp_path_factory.mktemp("moved") / "prefix"
    shutil.move(staged, moved)
    return moved


def library_folder(prefix: pathlib.Path) -> pathlib.Path:
    return next(prefix.rglob("libstepwell.so")).parent


def pkg_config(prefix: pathlib.Path) -> list[str]:
    path = library_folder(prefix) / "pkgconfig"
    flags = run("pkg-config", "--cflags", "--libs", "stepwell",
                env={**os.environ, "PKG_CONFIG_PATH": str(path)})
    return [*flags.split(), f"-Wl,-rpath,{library_folder(prefix)}"]


def test_cpp_with_find_package(prefix: pathlib.Path, tmp_path: pathlib.Path) -> None:
    source = tmp_path / "main.cc"
    source.write_text(example("cpp"), encoding="utf-8")
    build = tmp_path / "build"
    run("cmake", "-S", ROOT / "tests/api/consumer", "-B", build, "-G", "Ninja",
        f"-DCMAKE_PREFIX_PATH={prefix}", f"-DCONSUMER_SOURCE={source}",
        "-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_CXX_FLAGS=-Wall -Wextra -Wpedantic -Werror")
    run("cmake", "--build", build)
    assert run(build / "consumer", cwd=tmp_path) == f"{16 * 128} numbers\n"
    check_store(tmp_path / "run1", np.ones((256, 128), np.float32))


def test_c_with_pkg_config(prefix: pathlib.Path, tmp_path: pathlib.Path) -> None:
    source = tmp_path / "main.c"
    source.write_text(example("c"), encoding="utf-8")
    run(os.environ.get("CC", "cc"), *C_FLAGS, source, "-o", tmp_path / "consumer",
        *pkg_config(prefix))
    assert run(tmp_path / "consumer", cwd=tmp_path) == ""
    kernel = np.zeros((256, 128), np.float32)
    kernel[0, :3] = 1, 2, 3
    check_store(tmp_path / "run1", kernel)


def check_store(path: pathlib.Path, kernel: np.ndarray) -> None:
    """Checks the step that the examples save: step 7, params/kernel, epoch 3."""
    with stepwell.open(path, mode="r") as store:
        state = store.load(7)
    assert set(state) == {"params", "epoch"}
    assert state["epoch"] == 3
    np.testing.assert_array_equal(state["params"]["kernel"], kernel, strict=True)
    program = BUILD / "api/cli/stepwell"
    assert "float32[256, 128]" in run(program, "show", path, "7")
    run(program, "verify", path)


def test_python_saves_and_cpp_reads(prefix: pathlib.Path, tmp_path: pathlib.Path) -> None:
    with stepwell.open(tmp_path / "run1") as store:
        store.save(1, {"layers": [{"w": np.arange(6, dtype=np.int16).reshape(2, 3)}, {}],
                       "name": "größer", "huge": 2**70}).result()
    source = tmp_path / "main.cc"
    source.write_text("""
        #include <stepwell/store.h>
        #include <iostream>
        int main() {
          auto store = stepwell::Store::Open("run1", {.read_only = true});
          const auto step = store->ReadLatest();
          for (const auto& leaf : *step->Leaves()) std::cout << leaf.path.ToText() << " ";
          for (const int16_t x : *step->ReadVector<int16_t>("layers/0/w")) std::cout << x << " ";
          std::cout << std::get<std::string>(*step->ReadValue("name")) << " "
                    << std::get<stepwell::BigInt>(*step->ReadValue("huge")).decimal << "\\n";
        }
    """, encoding="utf-8")
    run(os.environ.get("CXX", "c++"), "-std=c++20", "-Wall", "-Wextra", "-Werror", source,
        "-o", tmp_path / "reader", *pkg_config(prefix))
    assert run(tmp_path / "reader", cwd=tmp_path).split() == [
        "huge", "layers/0/w", "name", "0", "1", "2", "3", "4", "5", "größer", str(2**70)]


def test_only_the_public_names_are_exported(prefix: pathlib.Path) -> None:
    library = library_folder(prefix) / "libstepwell.so"
    names = run("nm", "-DC", "--defined-only", "--format=just-symbols", library).splitlines()
    # A public class with virtual functions exports its table and type, too.
    names = [re.sub(r"^(vtable|typeinfo name|typeinfo) for ", "", name) for name in names]
    bad = [name for name in names
           if not name.startswith(("stepwell::", "stepwell_", "STEPWELL_"))
           or name.startswith(("stepwell::db", "stepwell::io", "stepwell::format", "stepwell::c::"))
           or "::Core::" in name or "::Impl::" in name]
    assert not bad
    assert len(names) > 80
    assert "libstepwell.so.0.1" in run("objdump", "-p", library)


def test_every_installed_header_compiles_alone(
    prefix: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    headers = sorted((prefix / "include/stepwell").glob("*.h"))
    assert len(headers) > 8
    for header in headers:
        unit = tmp_path / f"{header.stem}.cc"
        unit.write_text(f"#include <stepwell/{header.name}>\n#include <stepwell/{header.name}>\n")
        run(os.environ.get("CXX", "c++"), "-std=c++20", "-fsyntax-only", "-Wall", "-Wextra",
            "-Wpedantic", "-Werror", f"-I{prefix / 'include'}", unit)
    unit = tmp_path / "c.c"
    unit.write_text("#include <stepwell/c.h>\n#include <stepwell/c.h>\nextern int unused;\n")
    run(os.environ.get("CC", "cc"), *C_FLAGS, "-fsyntax-only", f"-I{prefix / 'include'}", unit)


def test_no_header_names_what_it_stands_on(prefix: pathlib.Path) -> None:
    for header in (prefix / "include/stepwell").glob("*.h"):
        includes = re.findall(r"#include ([<\"].*[>\"])", header.read_text(encoding="utf-8"))
        assert not [i for i in includes if "/" in i and not i.startswith("<stepwell/")], header
