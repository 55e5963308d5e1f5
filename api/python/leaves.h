// SPDX-License-Identifier: Apache-2.0
// Python's flattened leaves as the engine's inputs. Row formats: stepwell/_pytree/tree.py.
#pragma once

#include <nanobind/nanobind.h>

#include <string>
#include <string_view>
#include <vector>

#include "db/store.h"

namespace stepwell::python {

// `items`: list of (name, rows). `to_numpy`: called with a jax.Array whose memory cannot be viewed
// directly; returns an ndarray that is not changed elsewhere. `wishes`: list of (number of the
// item, of the row, chunk_bytes_max, chunk_axes). Raises on bad paths. Needs the GIL.
std::vector<db::ItemInput> ItemsFromPython(nanobind::list items, nanobind::object to_numpy,
                                           nanobind::list wishes);

// A str as UTF-8, lone surrogates as their three bytes.
std::string TextOf(PyObject* text);
// The str of UTF-8 with such surrogates; other bytes as "\\xff".
nanobind::object TextObject(std::string_view text);
// A component of a path, (type, value).
format::PathComponent ComponentFromPython(nanobind::handle component);

// The enums of rows: IntEnums, since rows have their numbers.
void BindRows(nanobind::module_& m);

}  // namespace stepwell::python
