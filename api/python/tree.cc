// SPDX-License-Identifier: Apache-2.0
#include "api/python/tree.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/set.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "api/python/bindings.h"
#include "api/python/errors.h"
#include "api/python/leaves.h"
#include "api/python/paths.h"
#include "db/read/rearranged.h"
#include "format/key.h"
#include "format/names.h"

namespace stepwell::python {
namespace {

namespace nb = nanobind;
using db::StepTree;
using format::LeafKind;
using format::LeafRecord;
using format::PathComponent;

Place PlaceOf(size_t number) {
  return number == StepTree::kRoot ? kStep : static_cast<Place>(number);
}

std::vector<Place> PlacesOf(const std::vector<size_t>& numbers) {
  return {numbers.begin(), numbers.end()};
}

nb::list ComponentObjects(const format::KeyPath& path) {
  nb::list components;
  for (const PathComponent& component : path) components.append(ComponentObject(component));
  return components;
}

std::vector<size_t> ChildrenAlike(const StepTree& tree, size_t number, PathComponent component) {
  format::PatternComponent wanted;
  wanted.text = format::Spelling(component);
  wanted.typed = std::move(component);
  return tree.ChildrenLike(number, wanted);
}

}  // namespace

Tree::Tree(std::shared_ptr<db::StepReader> reader, std::vector<LeafRecord> records, bool is_part)
    : reader_(std::move(reader)),
      step_(reader_->step().step),
      only_state_(db::IsOnlyState(reader_->step())),
      is_part_(is_part),
      records_(std::move(records)),
      all_made_(nb::steal<nb::list>(nb::handle())),
      pid_(getpid()) {}

Tree::Tree(uint64_t step, const nb::dict& encoded)
    : step_(step), all_made_(nb::steal<nb::list>(nb::handle())), pid_(getpid()) {
  std::set<std::string> items;
  for (const auto [key, value] : encoded) {
    const ConstBytes bytes{reinterpret_cast<const std::byte*>(PyBytes_AsString(value.ptr())),
                           nb::len(value)};
    records_.push_back(ValueOrThrow(format::DecodeLeafValue(
        std::string_view(PyBytes_AsString(key.ptr()), nb::len(key)), bytes)));
    // Other parts have the rest of its elements.
    if (records_.back().partial) records_.back().statistics.reset();
    items.insert(ValueOrThrow(format::DecodeLeafKey(records_.back().key)).item);
  }
  std::ranges::sort(records_, {}, &LeafRecord::key);
  only_state_ = items == std::set<std::string>{"state"};
}

Tree::Tree(const Tree& of, std::vector<LeafRecord> records, std::vector<size_t> origins,
           bool only_state)
    : step_(of.step_),
      only_state_(only_state),
      is_part_(of.is_part_),
      records_(std::move(records)),
      origins_(std::move(origins)),
      all_made_(nb::steal<nb::list>(nb::handle())),
      pid_(getpid()) {}

Tree::~Tree() {
  // A forked child owns neither the pin nor the files behind the reader.
  if (pid_ != getpid()) new std::shared_ptr<db::StepReader>(std::move(reader_));
}

const StepTree& Tree::tree() const {
  if (!tree_) tree_ = ValueOrThrow(StepTree::Make(step_, records_, only_state_, is_part_));
  return *tree_;
}

size_t Tree::At(Place number) const {
  if (number == kStep) return StepTree::kRoot;
  if (number < 0 || static_cast<size_t>(number) >= records_.size()) {
    throw nb::index_error("no such record");
  }
  return static_cast<size_t>(number);
}

std::pair<size_t, size_t> Tree::RangeOf(Place number) const {
  if (number == kStep) return {0, records_.size()};
  const size_t begin = At(number);
  const auto past = std::partition_point(
      records_.begin() + static_cast<ptrdiff_t>(begin), records_.end(),
      [&](const LeafRecord& record) { return record.key.starts_with(records_[begin].key); });
  return {begin, static_cast<size_t>(past - records_.begin())};
}

nb::object Tree::RecordAt(size_t number) {
  made_.resize(records_.size());
  nb::object& made = made_.at(number);
  if (!made.is_valid()) made = nb::cast(RecordOf(records_[number]));
  return made;
}

nb::list Tree::Records() {
  if (!all_made_.is_valid()) {
    nb::list made;
    for (size_t number = 0; number < records_.size(); ++number) made.append(RecordAt(number));
    all_made_ = std::move(made);
  }
  return all_made_;
}

std::optional<std::vector<Place>> Tree::Origins() const {
  if (origins_.empty()) return std::nullopt;
  std::vector<Place> origins;
  for (const size_t origin : origins_) origins.push_back(PlaceOf(origin));
  return origins;
}

std::unique_ptr<Tree> Tree::Rearranged(const std::optional<std::vector<std::string>>& items,
                                       const std::vector<size_t>& taken, const nb::list& moves,
                                       Place top) const {
  for (const size_t leaf : taken) At(static_cast<Place>(leaf));
  std::vector<db::Move> made_moves;
  for (nb::handle each : moves) {
    const auto fields = nb::cast<nb::tuple>(each);
    db::Move& move = made_moves.emplace_back();
    move.leaf = At(nb::cast<Place>(fields[0]));
    move.origin = nb::cast<size_t>(fields[1]);
    for (nb::handle name : nb::cast<nb::tuple>(fields[2])) {
      move.names.push_back(TextOf(name.ptr()));
    }
    move.shape = nb::cast<std::optional<format::Shape>>(fields[3]);
  }
  db::Rearranged made = ValueOrThrow(db::Rearrange(tree(), items, taken, made_moves, At(top)));
  return std::make_unique<Tree>(*this, std::move(made.records), std::move(made.origins),
                                only_state_ && !items);
}

std::optional<Place> Tree::Find(const format::KeyPath& path) const {
  size_t number = StepTree::kRoot;
  for (const PathComponent& component : path) {
    const std::optional<size_t> child = tree().FindChild(number, component);
    if (!child) return std::nullopt;
    number = *child;
  }
  return PlaceOf(number);
}

std::vector<Place> Tree::FindChildren(Place number, nb::handle component) const {
  return PlacesOf(ChildrenAlike(tree(), At(number), ComponentFromPython(component)));
}

nb::dict Tree::Children(Place number) const {
  nb::dict children;
  for (const size_t child : tree().Children(At(number))) {
    children[ComponentObject(tree().component(child))] = child;
  }
  return children;
}

Place Tree::ValueOf(Place number, bool has_value) const {
  const auto value = [&](size_t at) {
    return ChildrenAlike(tree(), at, PathComponent::Attribute("value"));
  };
  if (number == kStep || tree().Children(At(number)).size() != 1) return number;
  const std::vector<size_t> found = value(At(number));
  if (found.empty() || !records_[At(number)].variable_types.empty()) return number;
  return has_value && value(found[0]).empty() ? number : PlaceOf(found[0]);
}

std::vector<size_t> Tree::LeavesBelow(Place number) const {
  std::vector<size_t> leaves;
  const auto [begin, end] = RangeOf(number);
  for (size_t i = begin; i < end; ++i) {
    if (records_[i].kind != LeafKind::kNode) leaves.push_back(i);
  }
  return leaves;
}

nb::dict Tree::ByText(const std::vector<size_t>& leaves, std::optional<Place> above) const {
  nb::dict found;
  for (const size_t leaf : leaves) {
    const nb::str text = TextObject(above ? tree().Text(leaf, At(*above)) : tree().ShortText(leaf));
    if (found.contains(text)) {
      ThrowIfPathError(InvalidArgumentError(StrCat(
          "two leaves are spelled ", nb::repr(text).c_str(),
          ", so a dict by path cannot hold both; take them one by one, as tuples with int for keys "
          "and indices and str for names")));
    }
    found[text] = leaf;
  }
  return found;
}

std::string Tree::Describe(Place number) const {
  const LeafRecord& record = records_.at(At(number));
  if (record.kind == LeafKind::kValue) return format::NameOf(record.value_type);
  if (record.kind == LeafKind::kNode) {
    return StrCat(format::NameOf(record.container), " of ", tree().Children(At(number)).size());
  }
  DTypeOf(record);  // which says so where it is not known
  std::string text(FindDType(record.dtype)->name);
  if (!record.prng_impl.empty()) text = StrCat("key<", record.prng_impl, "> ", text);
  std::string extents;
  for (const uint64_t extent : record.shape) {
    extents += StrCat(extents.empty() ? "" : ", ", extent);
  }
  return StrCat(text, "[", extents, "]");
}

std::optional<Selection> Tree::Resolve(nb::handle self, const format::PathPattern& path,
                                       std::optional<Place> below, bool misses) const {
  std::optional<size_t> start;
  if (below) start = At(*below);
  const Result<db::PathSelection> selection = tree().Resolve(path, start);
  if (misses && selection.status().code() == StatusCode::kNotFound) return std::nullopt;
  ThrowIfPathError(selection.status());
  Selection found{nb::borrow(self), {}, {}};
  if (selection->is_glob) {
    found.leaves = selection->numbers;
  } else {
    found.number = PlaceOf(selection->numbers.front());
  }
  return found;
}

nb::dict Tree::EncodedRecords() const {
  nb::dict encoded;
  for (const LeafRecord& record : records_) {
    const std::string value = format::EncodeLeafValue(record);
    encoded[nb::bytes(record.key.data(), record.key.size())] =
        nb::bytes(value.data(), value.size());
  }
  return encoded;
}

std::map<size_t, std::vector<format::PieceRecord>> Tree::Pieces() const {
  std::map<size_t, std::vector<format::PieceRecord>> found;
  for (size_t number = 0; number < records_.size(); ++number) {
    if (records_[number].partial) found.emplace(number, records_[number].pieces);
  }
  return found;
}

std::vector<std::string> Tree::Shardings() const {
  std::set<std::string> shardings;
  const std::string* last = nullptr;
  for (const LeafRecord& record : records_) {
    if (record.sharding_json.empty()) continue;
    if (last == nullptr || *last != record.sharding_json) shardings.insert(record.sharding_json);
    last = &record.sharding_json;
  }
  return {shardings.begin(), shardings.end()};
}

bool Tree::HasKeys() const {
  return std::ranges::any_of(records_,
                             [](const LeafRecord& record) { return !record.prng_impl.empty(); });
}

void BindTree(nb::module_& m) {
  using nb::arg;
  m.def("decode_value", &ValueObject, arg("value_type"), arg("data"),
        nb::sig("def decode_value(value_type: ValueType, data: bytes) -> typing.Any"));
  m.def(
      "name_of", [](format::ValueType type) { return format::NameOf(type); }, arg("value_type"));
  using format::PieceRecord;
  nb::class_<PieceRecord>(m, "PieceRecord")
      .def_ro("origin", &PieceRecord::origin)
      .def_ro("shape", &PieceRecord::shape);
  nb::class_<Loaded>(m, "Loaded")
      .def_ro("value", &Loaded::value, nb::for_getter(nb::sig("def value(self) -> typing.Any")))
      .def_ro("stats", &Loaded::stats);
  nb::class_<Selection>(m, "Selection")
      .def_ro("tree", &Selection::tree, nb::for_getter(nb::sig("def tree(self) -> StepTree")))
      .def_ro("number", &Selection::number)
      .def_ro("leaves", &Selection::leaves);
  nb::class_<Tree>(m, "StepTree")
      .def(nb::init<uint64_t, const nb::dict&>(), arg("step"), arg("records"),
           nb::sig("def __init__(self, step: int, records: dict[bytes, bytes]) -> None"))
      .def("__len__", [](const Tree& tree) { return tree.leaf_records().size(); })
      .def_prop_ro("records", &Tree::Records,
                   nb::for_getter(nb::sig("def records(self) -> list[Record]")))
      .def(
          "record", [](Tree& tree, Place number) { return tree.RecordAt(tree.At(number)); },
          arg("number"), nb::sig("def record(self, number: int) -> Record"))
      .def_prop_ro("top", [](const Tree& tree) { return PlaceOf(tree.tree().top()); })
      .def_prop_ro("origins", &Tree::Origins)
      .def("rearranged", &Tree::Rearranged, arg("items").none(), arg("taken"), arg("moves"),
           arg("top"),
           nb::sig("def rearranged(self, items: collections.abc.Sequence[str] | None, "
                   "taken: list[int], moves: list[tuple[int, int, tuple[str, ...], "
                   "tuple[int, ...] | None]], top: int) -> StepTree"))
      .def(
          "is_node",
          [](const Tree& tree, Place number) { return tree.tree().IsNode(tree.At(number)); },
          arg("number"))
      .def(
          "components",
          [](const Tree& tree, Place number, Place above) {
            return ComponentObjects(tree.tree().PathOf(tree.At(number), tree.At(above)));
          },
          arg("number"), arg("above") = kStep,
          nb::sig("def components(self, number: int, above: int = -1) -> "
                  "list[tuple[int, typing.Any]]"))
      .def("children", &Tree::Children, arg("number"),
           nb::sig("def children(self, number: int) -> dict[tuple[int, typing.Any], int]"))
      .def(
          "at",
          [](const Tree& tree, const nb::list& components) {
            format::KeyPath path;
            for (nb::handle each : components) path.push_back(ComponentFromPython(each));
            return tree.Find(path);
          },
          arg("components"),
          nb::sig("def at(self, components: list[tuple[int, typing.Any]]) -> int | None"))
      .def("find", &Tree::FindChildren, arg("number"), arg("component"),
           nb::sig("def find(self, number: int, component: tuple[int, typing.Any]) -> list[int]"))
      .def(
          "nearest",
          [](const Tree& tree, Place number, nb::handle name, const nb::list& taken) -> nb::object {
            std::set<std::string> spelled;
            for (nb::handle each : taken) spelled.insert(TextOf(each.ptr()));
            const auto near =
                tree.tree().NearestChild(tree.At(number), TextOf(name.ptr()), spelled);
            return near ? ComponentObject(tree.tree().component(*near)) : nb::none();
          },
          arg("number"), arg("name"), arg("taken"),
          nb::sig("def nearest(self, number: int, name: str, taken: list[str]) -> "
                  "tuple[int, typing.Any] | None"))
      .def("value_of", &Tree::ValueOf, arg("number"), arg("has_value") = false)
      .def("leaves", &Tree::LeavesBelow, arg("number"))
      .def("keys",
           [](const Tree& tree) {
             std::vector<nb::bytes> keys;
             for (const LeafRecord& record : tree.leaf_records()) {
               keys.emplace_back(record.key.data(), record.key.size());
             }
             return keys;
           })
      .def(
          "text",
          [](const Tree& tree, Place number) {
            return TextObject(tree.tree().ShortText(tree.At(number)));
          },
          arg("number"))
      .def("by_text", &Tree::ByText, arg("leaves"), arg("above").none() = nb::none(),
           nb::sig("def by_text(self, leaves: list[int], above: int | None = None) -> "
                   "dict[str, int]"))
      .def("describe", &Tree::Describe, arg("number"))
      .def(
          "resolve",
          [](nb::handle self, nb::handle path, std::optional<Place> below) {
            return *nb::cast<const Tree&>(self).Resolve(self, PatternFromPython(path), below);
          },
          arg("path").none(), arg("below").none() = nb::none(),
          nb::sig("def resolve(self, path: str | tuple[typing.Hashable, ...] | None, "
                  "below: int | None = None) -> Selection"))
      .def("encoded_records", &Tree::EncodedRecords,
           nb::sig("def encoded_records(self) -> dict[bytes, bytes]"))
      .def("pieces", &Tree::Pieces)
      .def("shardings", &Tree::Shardings)
      .def("read_boxes", &Tree::ReadBoxes, arg("boxes"),
           nb::sig("def read_boxes(self, boxes: list[Wanted]) -> Loaded"))
      .def("build", &Tree::Build, arg("number"), arg("values"),
           nb::sig("def build(self, number: int, values: list[object]) -> typing.Any"));
}

}  // namespace stepwell::python
