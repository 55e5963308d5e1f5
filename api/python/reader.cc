// SPDX-License-Identifier: Apache-2.0
#include "api/python/reader.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>

#include <set>
#include <utility>

#include "api/python/bindings.h"
#include "api/python/errors.h"
#include "api/python/group.h"
#include "api/python/leaves.h"
#include "api/python/paths.h"
#include "db/export/orbax/parts.h"
#include "db/read/step_tree.h"
#include "format/key.h"

namespace stepwell::python {

namespace nb = nanobind;

Reader::Reader(std::shared_ptr<db::StepReader> reader)
    : reader_(std::move(reader)), pid_(getpid()) {}

Reader::~Reader() {
  if (pid_ != getpid()) new std::shared_ptr<db::StepReader>(std::move(reader_));
}

nb::object Reader::WholeTree() {
  if (!tree_.is_valid()) {
    tree_ = nb::cast(std::make_unique<Tree>(reader_, Call([&] { return reader_->Leaves(""); })));
  }
  return tree_;
}

std::optional<Selection> Reader::Select(nb::handle path, const nb::list& above, bool whole) {
  const format::PathPattern pattern = PatternFromPython(path);
  format::KeyPath start;
  for (nb::handle component : above) start.push_back(ComponentFromPython(component));
  auto records = Call([&] { return db::FindAlong(*reader_, pattern, start, whole); });
  if (records.empty()) return std::nullopt;
  const nb::object part =
      nb::cast(std::make_unique<Tree>(reader_, std::move(records), /*is_part=*/true));
  const auto& tree = nb::cast<const Tree&>(part);
  std::optional<Place> below;
  if (!start.empty()) {
    below = tree.Find(start);
    if (!below) return std::nullopt;
  }
  return tree.Resolve(part, pattern, below, /*misses=*/true);
}

std::optional<Loaded> Reader::Load(nb::handle path, bool keys) {
  const format::PathPattern pattern = PatternFromPython(path);
  std::optional<Selection> selection;
  if (pattern.empty()) {  // needs no look at paths, which a load would pay for
    const nb::object whole = WholeTree();
    const bool is_state = db::IsOnlyState(record()) && nb::len(whole) > 0;
    selection = Selection{whole, is_state ? 0 : kStep, {}};
  } else {
    selection = Select(path, nb::list(), /*whole=*/true);
  }
  if (!selection) {
    const nb::object whole = WholeTree();
    selection = nb::cast<const Tree&>(whole).Resolve(whole, pattern, std::nullopt);
  }
  auto& tree = nb::cast<Tree&>(selection->tree);
  if (keys && tree.HasKeys()) return std::nullopt;
  return selection->number ? tree.Load(*selection->number) : tree.LoadLeaves(selection->leaves);
}

std::vector<std::string> Reader::Shardings() {
  const auto leaves = Call([&] { return reader_->Leaves(""); });
  std::set<std::string> shardings;
  for (const format::LeafRecord& leaf : leaves) {
    if (!leaf.sharding_json.empty()) shardings.insert(leaf.sharding_json);
  }
  return {shardings.begin(), shardings.end()};
}

nb::bytes Reader::Records(const nb::bytes& subtree_key) {
  const std::string key(subtree_key.c_str(), subtree_key.size());
  const std::string records = Call([&] { return db::RecordsOfShare(*reader_, key); });
  return nb::bytes(records.data(), records.size());
}

void BindReader(nb::module_& m) {
  using format::ItemRecord;
  using nb::arg;
  nb::class_<ItemRecord>(m, "ItemRecord")
      .def_prop_ro("name", [](const ItemRecord& item) { return TextObject(item.name); })
      .def_ro("kind", &ItemRecord::kind)
      .def_ro("leaf_count", &ItemRecord::leaf_count)
      .def_ro("logical_bytes", &ItemRecord::logical_bytes)
      .def_ro("stored_bytes", &ItemRecord::stored_bytes)
      .def_ro("nonfinite", &ItemRecord::nonfinite);
  nb::class_<Reader>(m, "Reader")
      .def_prop_ro("step", [](const Reader& r) { return r.record().step; })
      .def_prop_ro("commit", [](const Reader& r) { return r.record().commit; })
      .def_prop_ro("time_ns", [](const Reader& r) { return r.record().time_ns; })
      .def_prop_ro("save_ns", [](const Reader& r) { return r.record().save_ns; })
      .def_prop_ro("frame_bytes", [](const Reader& r) { return r.record().frame_bytes(); })
      .def_prop_ro("pinned", [](const Reader& r) { return r.record().pinned; })
      .def_prop_ro("taint", [](const Reader& r) { return TextObject(r.record().taint); })
      .def_prop_ro("metadata_json", [](const Reader& r) { return r.record().metadata_json; })
      .def_prop_ro("metrics_json", [](const Reader& r) { return r.record().metrics_json; })
      .def_prop_ro("logical_bytes", [](const Reader& r) { return r.record().logical_bytes; })
      .def_prop_ro("stored_bytes", [](const Reader& r) { return r.record().stored_bytes; })
      .def_prop_ro(
          "owned_bytes",
          [](const Reader& r) { return r.record().stored_bytes - r.record().referenced_bytes; })
      .def_prop_ro("group", [](const Reader& r) { return SaveOfStep(r.record()); })
      .def_prop_ro("only_state", [](const Reader& r) { return db::IsOnlyState(r.record()); })
      .def_prop_ro("items", [](const Reader& r) { return r.record().items; })
      .def("shardings", &Reader::Shardings)
      .def("records", &Reader::Records, arg("subtree_key"))
      .def("tree", &Reader::WholeTree, nb::sig("def tree(self) -> StepTree"))
      .def("select", &Reader::Select, arg("path").none(), arg("above"), arg("whole"),
           nb::sig("def select(self, path: str | tuple[typing.Hashable, ...] | None, "
                   "above: list[tuple[int, typing.Any]], whole: bool) -> Selection | None"))
      .def("load", &Reader::Load, arg("path").none(), arg("keys"),
           nb::sig("def load(self, path: str | tuple[typing.Hashable, ...] | None, "
                   "keys: bool) -> Loaded | None"));
}

}  // namespace stepwell::python
