// SPDX-License-Identifier: Apache-2.0
#include "api/python/flatten.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "api/python/bindings.h"
#include "api/python/errors.h"
#include "api/python/numpy_api.h"
#include "format/key.h"

namespace stepwell::python {
namespace {

namespace nb = nanobind;
using Type = format::PathComponent::Type;

// More are not remembered: a state has few, and each is looked for among all.
constexpr size_t kDTypesMax = 16;

// Takes over a new reference; raises Python's error for null.
nb::object Checked(PyObject* made) {
  if (made == nullptr) nb::raise_python_error();
  return nb::steal(made);
}

bool HasOnlyStrKeys(PyObject* dict) {
  PyObject* key = nullptr;
  for (Py_ssize_t at = 0; PyDict_Next(dict, &at, &key, nullptr) != 0;) {
    if (!PyUnicode_CheckExact(key)) return false;
  }
  return true;
}

// The names of what is asked of a jax array, and of a Flattener, made once.
struct Names {
  nb::str add_other = Interned("add_other");
  nb::str is_deleted = Interned("is_deleted");
  nb::str dtype = Interned("dtype");
  nb::str sharding = Interned("sharding");
  nb::str weak_type = Interned("weak_type");

  static nb::str Interned(const char* name) {
    return nb::steal<nb::str>(PyUnicode_InternFromString(name));
  }
  static const Names& Get() {
    static const Names* const names = new Names;  // never destroyed: the interpreter ends before
    return *names;
  }
};

// What a row says of a sharding, and whether such an array is known here.
struct Sharding {
  nb::object sharding;  // its address is its own as long as this is here
  bool direct;
  bool is_mesh;
  nb::object json;  // of a direct one
};

using KnownShardings = std::unordered_map<PyObject*, Sharding>;

// Takes out those that nothing else refers to. To let go of them may run Python code, which may
// come back here, so that is left to the caller.
std::vector<Sharding> TakeUnused(KnownShardings* known) {
  std::vector<Sharding> unused;
  for (auto it = known->begin(); it != known->end();) {
    if (Py_REFCNT(it->first) > 1) {
      ++it;
      continue;
    }
    unused.push_back(std::move(it->second));
    it = known->erase(it);
  }
  return unused;
}

// A jitted function gives each array that it makes a sharding object of its own, the same ones at
// each call. So they are known by their addresses from save to save: to find an equal one takes a
// third of a microsecond for each array. jax.device_put makes its shardings anew at each call;
// these go again, a kilobyte each, once there are many. `self`: a Flattener.
Sharding ShardingOf(nb::handle self, nb::object sharding) {
  constexpr size_t kUnusedMax = 1 << 12;
  static auto* const known = new KnownShardings;  // never destroyed
  static size_t look_at = kUnusedMax;             // so many: some may be unused
  PyObject* const address = sharding.ptr();
  if (const auto it = known->find(address); it != known->end()) return it->second;
  const nb::object info = self.attr("sharding_info")(sharding);
  Sharding facts{std::move(sharding),
                 nb::cast<bool>(info.attr("direct")),
                 nb::cast<bool>(info.attr("is_mesh")),
                 {}};
  if (facts.direct) facts.json = info.attr("json");  // that of a large mesh is long
  known->insert_or_assign(address, facts);
  if (known->size() >= look_at) {
    const std::vector<Sharding> unused = TakeUnused(known);
    look_at = 2 * known->size() + kUnusedMax;
  }
  return facts;
}

}  // namespace

PlainFlattener::PlainFlattener(nb::dict numbers, size_t depth_max)
    : numbers_(std::move(numbers)), depth_max_(depth_max), row_type_(nb::type<Row>()) {}

bool PlainFlattener::Walk(nb::handle self, nb::handle node, const nb::tuple& path,
                          bool in_equinox) {
  const Place place{self, path, EncodedPath(path), in_equinox};
  return AddPlain(self, node.ptr(), place.key) || AddBelow(place, node.ptr());
}

// Adds an ndarray, or a jax.Array whose memory can be viewed. Returns false, and adds nothing, for
// anything else.
bool PlainFlattener::AddPlain(nb::handle self, PyObject* node, const std::string& key) {
  if (reinterpret_cast<PyObject*>(Py_TYPE(node)) == jax_type.ptr()) return AddJax(self, node, key);
  return PyArray_CheckExact(node) && AddArray(node, key);
}

bool PlainFlattener::AddArray(PyObject* array, const std::string& key) {
  const int number =
      NumberOf(reinterpret_cast<PyObject*>(PyArray_DESCR(reinterpret_cast<PyArrayObject*>(array))));
  if (number < 0) return false;
  Row& row = NewRow(key, RowTag::kArray);
  row.data = nb::borrow(array);
  row.dtype = number;
  row.value_type = format::ValueType::kNumpyArray;
  return true;
}

bool PlainFlattener::AddJax(nb::handle self, PyObject* object, const std::string& key) {
  const nb::handle array(object);
  const Names& names = Names::Get();
  if (nb::cast<bool>(array.attr(names.is_deleted)())) return false;
  const int number = NumberOf(nb::object(array.attr(names.dtype)).ptr());
  if (number < 0) return false;
  const Sharding sharding = ShardingOf(self, array.attr(names.sharding));
  if (!sharding.direct) return false;
  const bool weak_type = nb::cast<bool>(array.attr(names.weak_type));
  if (sharding.is_mesh) meshes.add(nb::len(rows));
  Row& row = NewRow(key, RowTag::kJax);
  row.data = nb::borrow(array);
  row.dtype = number;
  row.value_type = format::ValueType::kJaxArray;
  row.weak_type = weak_type;
  row.sharding = sharding.json;
  return true;
}

// Adds a plain container. Hands anything else to `add_other`.
bool PlainFlattener::AddBelow(const Place& place, PyObject* node) {
  if (nb::len(place.path) < depth_max_) {
    // Of copies: another thread may change it while Python runs for one of the children.
    if (PyDict_CheckExact(node)) {
      const nb::object copy = Checked(PyDict_Copy(node));
      if (HasOnlyStrKeys(copy.ptr())) {
        AddDict(place, copy.ptr());
        return true;
      }
    } else if (PyList_CheckExact(node)) {
      AddSequence(place, format::ContainerKind::kList, Checked(PySequence_Tuple(node)).ptr());
      return true;
    } else if (PyTuple_CheckExact(node)) {
      AddSequence(place, format::ContainerKind::kTuple, node);
      return true;
    }
  }
  return nb::cast<bool>(
      place.self.attr(Names::Get().add_other)(nb::handle(node), place.path, place.in_equinox));
}

void PlainFlattener::AddDict(const Place& place, PyObject* dict) {
  Row& row = NewRow(place.key, RowTag::kNode);
  row.container = format::ContainerKind::kDict;
  std::string key;
  PyObject* name = nullptr;
  PyObject* child = nullptr;
  for (Py_ssize_t at = 0; PyDict_Next(dict, &at, &name, &child) != 0;) {
    key = place.key;
    format::AppendName(Type::kKey, TextOf(name), &key);
    row.child_count +=
        AddPlain(place.self, child, key) || AddChild(place, key, child, Type::kKey, name);
  }
}

void PlainFlattener::AddSequence(const Place& place, format::ContainerKind kind,
                                 PyObject* children) {
  Row& row = NewRow(place.key, RowTag::kNode);
  row.container = kind;
  std::string key;
  const Py_ssize_t count = PyTuple_GET_SIZE(children);
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* const child = PyTuple_GET_ITEM(children, i);
    key = place.key;
    format::AppendNumber(Type::kIndex, i, &key);
    row.child_count +=
        AddPlain(place.self, child, key) || AddChild(place, key, child, Type::kIndex, nb::int_(i));
  }
}

// Adds a child that is none of the plain leaves.
bool PlainFlattener::AddChild(const Place& place, const std::string& key, PyObject* child,
                              Type type, nb::handle value) {
  const nb::tuple component = nb::make_tuple(static_cast<int>(type), value);
  const nb::object path =
      Checked(PySequence_Concat(place.path.ptr(), nb::make_tuple(component).ptr()));
  return AddBelow({place.self, nb::borrow<nb::tuple>(path), key, place.in_equinox}, child);
}

// Returns -1 for one that is not stored as it is.
int PlainFlattener::NumberOf(PyObject* dtype) {
  const auto known =
      std::ranges::find(dtypes_, dtype, [](const auto& each) { return each.first.ptr(); });
  if (known != dtypes_.end()) return known->second;
  PyObject* const found = PyDict_GetItemWithError(numbers_.ptr(), dtype);  // borrowed
  if (found == nullptr && PyErr_Occurred() != nullptr) nb::raise_python_error();
  const int number = found == nullptr ? -1 : nb::cast<int>(nb::handle(found));
  if (dtypes_.size() < kDTypesMax) dtypes_.emplace_back(nb::borrow(dtype), number);
  return number;
}

Row& PlainFlattener::NewRow(const std::string& key, RowTag tag) {
  const nb::object made = nb::inst_alloc(row_type_);
  Row* const row = new (nb::inst_ptr<Row>(made)) Row;
  nb::inst_mark_ready(made);
  row->path = key;
  row->tag = tag;
  rows.append(made);
  return *row;
}

void BindFlatten(nb::module_& m) {
  using nb::arg;
  nb::class_<PlainFlattener>(m, "PlainFlattener")
      .def(nb::init<nb::dict, size_t>(), arg("numbers"), arg("depth_max"),
           nb::sig("def __init__(self, numbers: dict[typing.Any, int], depth_max: int) -> None"))
      .def_ro("rows", &PlainFlattener::rows, nb::for_getter(nb::sig("def rows(self) -> list[Row]")))
      .def_ro("meshes", &PlainFlattener::meshes,
              nb::for_getter(nb::sig("def meshes(self) -> set[int]")))
      .def_rw("jax_type", &PlainFlattener::jax_type,
              nb::for_getter(nb::sig("def jax_type(self) -> type | None")),
              nb::for_setter(nb::sig("def jax_type(self, kind: type | None, /) -> None")))
      .def(
          "walk",
          [](nb::handle_t<PlainFlattener> self, nb::handle node, const nb::tuple& path,
             bool in_equinox) {
            return nb::inst_ptr<PlainFlattener>(self)->Walk(self, node, path, in_equinox);
          },
          arg("node").none(), arg("path"), arg("in_equinox"),
          nb::sig("def walk(self, node: typing.Any, path: tuple[tuple[int, typing.Any], ...], "
                  "in_equinox: bool) -> bool"));
}

}  // namespace stepwell::python
