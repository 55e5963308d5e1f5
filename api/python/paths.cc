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

std::vector<std::string> NamesOf(const nb::tuple& objects) {
  std::vector<std::string> names;
  for (nb::handle each : objects) names.push_back(TextOf(each.ptr()));
  return names;
}

nb::tuple TupleOf(const std::vector<std::string>& names) {
  nb::list objects;
  for (const std::string& name : names) objects.append(TextObject(name));
  return nb::tuple(objects);
}

nb::object Match(const format::PathPattern& pattern, const nb::tuple& spellings) {
  const auto match = pattern.Match(NamesOf(spellings));
  if (!match) return nb::none();
  nb::list taken;
  for (const std::vector<std::string>& names : match->taken) taken.append(TupleOf(names));
  return nb::make_tuple(taken, match->length);
}

nb::tuple Fill(const format::PathPattern& pattern, const nb::list& objects) {
  const std::string wildcards = pattern.wildcards();
  format::TakenNames taken;
  for (nb::handle each : objects) taken.push_back(NamesOf(nb::cast<nb::tuple>(each)));
  bool fits = taken.size() == wildcards.size();
  for (size_t i = 0; fits && i < taken.size(); ++i) {
    fits = wildcards[i] == '/' || taken[i].size() == 1;
  }
  if (!fits) throw nb::value_error("not one for each wildcard");
  return TupleOf(pattern.Fill(taken));
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
      .def_prop_ro("text", [](const format::PathPattern& self) { return TextObject(self.text()); })
      .def_prop_ro("wildcards", &format::PathPattern::wildcards)
      .def("match", &Match, arg("spellings"),
           nb::sig("def match(self, spellings: tuple[str, ...]) -> "
                   "tuple[list[tuple[str, ...]], int] | None"))
      .def("fill", &Fill, arg("taken"),
           nb::sig("def fill(self, taken: list[tuple[str, ...]]) -> tuple[str, ...]"))
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
