# SPDX-License-Identifier: Apache-2.0
"""A header that is missing is named; one that comes through a file of the project is there."""

import pathlib

import check_std_includes


def test_missing_headers_are_named(tmp_path: pathlib.Path) -> None:
    (tmp_path / "io/include/stepwell").mkdir(parents=True)
    (tmp_path / "io/include/stepwell/text.h").write_text("#include <string>\n")
    (tmp_path / "io/a.h").write_text("#include <stepwell/text.h>\n#include <map>\n")
    (tmp_path / "io/a.cc").write_text(
        '#include "io/a.h"\nstd::map<std::string, std::string_view> m;  // no std::vector\n')
    assert check_std_includes.check(tmp_path) == []
    (tmp_path / "io/b.cc").write_text('#include "io/a.h"\nstd::vector<std::map<int, int>> v;\n')
    assert check_std_includes.check(tmp_path) == [
        "io/b.cc: includes no <vector>, which has what it uses"]
