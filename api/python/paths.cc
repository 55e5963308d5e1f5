// SPDX-License-Identifier: Apache-2.0
#include "api/python/paths.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>
#include <vector>

#include "api/python/bindings.h"
#include "api/python/errors.h"
#include "api/python/leaves.h"
#include "io/bytes.h"

namespace stepwell::python {
namespace {

namespace nb = nanobind;

std::string Repr(nb::handle object) { return nb::cast<std::string>(nb::repr(object)); }

[[noreturn]] void RefusePath(const std::string& message) {
  ThrowIfError(InvalidArgumentError(message));
  nb::raise("%s", message.c_str());  // not reached: the line above has thrown
}

// A str is a name; whatever is an int (operator.index) is a number; others are literal keys.
format::PathComponent ComponentOfTuple(nb::handle part, nb::handle path) {
  if (PyUnicode_Check(part.ptr()) != 0) return format::PathComponent::Key(TextOf(part.ptr()));
  const bool is_index = PyBool_Check(part.ptr()) == 0 && PyIndex_Check(part.ptr()) != 0;
  const nb::object index = is_index ? nb::steal(PyNumber_Index(part.ptr())) : nb::object();
  const int64_t number = index.is_valid() ? PyLong_AsLongLong(index.ptr()) : 0;
  if (PyErr_Occurred() == nullptr && is_index) {
    return number < 0 ? format::PathComponent::IntKey(number)
                      : format::PathComponent::Index(number);
  }
  PyErr_Clear();
  const nb::object text =
      nb::module_::import_("stepwell._pytree.keys").attr("literal_or_none")(part);
  if (text.is_none()) {
    RefusePath(StrCat("path ", Repr(path), ": ", Repr(part), " is no key that a dict may have"));
  }
  return format::PathComponent::Literal(TextOf(text.ptr()));
}

}  // namespace

format::PathPattern PatternFromPython(nb::handle path) {
  if (path.is_none()) return {};
  if (PyUnicode_Check(path.ptr()) != 0) {
    return ValueOrThrow(format::PathPattern::Parse(TextOf(path.ptr())));
  }
  if (PyTuple_Check(path.ptr()) == 0) {
    RefusePath(StrCat("a path must be a str or a tuple of keys, not ", Repr(path)));
  }
  format::KeyPath components;
  for (nb::handle part : nb::borrow<nb::tuple>(path)) {
    components.push_back(ComponentOfTuple(part, path));
  }
  return format::PathPattern::Of(components);
}

void BindPaths(nb::module_& m) {
  using nb::arg;
  nb::class_<format::PathPattern>(m, "PathPattern")
      .def(
          "__init__",
          [](format::PathPattern* self, nb::handle path) {
            new (self) format::PathPattern(PatternFromPython(path));
          },
          arg("path"))
      .def(
          "takes",
          [](const format::PathPattern& self, const std::vector<std::string>& spellings) {
            return self.Takes(spellings);
          },
          arg("spellings"))
      // The names of its components; None with a wildcard.
      .def_prop_ro("names",
                   [](const format::PathPattern& self) -> std::optional<std::vector<std::string>> {
                     if (self.is_glob()) return std::nullopt;
                     std::vector<std::string> names;
                     for (const format::PatternComponent& component : self.components()) {
                       names.push_back(component.text);
                     }
                     return names;
                   })
      // True for the patterns that match everything whatever there is: "" and "**".
      .def_prop_ro("takes_all", [](const format::PathPattern& self) { return self.Takes({}); });
}

}  // namespace stepwell::python
