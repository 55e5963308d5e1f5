// SPDX-License-Identifier: Apache-2.0
#include "api/python/over_time.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <map>
#include <memory>
#include <string_view>
#include <utility>

#include "api/python/array_memory.h"
#include "api/python/bindings.h"
#include "api/python/errors.h"
#include "api/python/gil.h"
#include "api/python/paths.h"
#include "api/python/reader.h"
#include "db/read/load_steps.h"
#include "db/read/part_merge.h"
#include "db/read/step_tree.h"

namespace stepwell::python {
namespace {

namespace nb = nanobind;
using format::LeafRecord;

using Pairs = std::vector<std::pair<size_t, size_t>>;
using Boxes = std::vector<std::pair<Extents, Extents>>;

db::ComparedStep ComparedOf(const Tree& tree) {
  if (tree.reader() == nullptr) throw nb::value_error("a tree without its records' chunks");
  return {tree.reader().get(), tree.leaf_records()};
}

db::LeafChanges Compare(const Tree& before, const Tree& after,
                        const std::vector<db::LeafPair>& pairs, const db::CompareOptions& how) {
  const db::ComparedStep one = ComparedOf(before);
  const db::ComparedStep other = ComparedOf(after);
  return Call([&] { return db::CompareLeaves(one, other, pairs, how); });
}

// Raises IndexError unless all are records of the tree.
void CheckNumbers(const Tree& tree, const std::vector<size_t>& numbers) {
  for (const size_t number : numbers) {
    if (number >= tree.leaf_records().size()) throw nb::index_error("no such record");
  }
}

// Numbers of leaves, ascending.
StepChanges CompareSteps(const Tree& before, const std::vector<size_t>& leaves_before,
                         const Tree& after, const std::vector<size_t>& leaves_after, bool elements,
                         bool may_read) {
  CheckNumbers(before, leaves_before);
  CheckNumbers(after, leaves_after);
  const db::StepTree& one = before.tree();  // made here, where the GIL is held
  const db::StepTree& other = after.tree();
  db::MatchedLeaves matched;
  {
    const GilReleased release;
    matched = db::MatchLeaves(one, leaves_before, other, leaves_after);
  }
  StepChanges found;
  if (!matched.pairs.empty()) {
    db::LeafChanges compared =
        Compare(before, after, matched.pairs, {.count_elements = elements, .may_read = may_read});
    found.changed = std::move(compared.changes);
    found.asked = std::move(compared.asked);
    found.stats = compared.stats;
  }
  found.unchanged = matched.pairs.size() - found.changed.size();
  found.removed = std::move(matched.removed);
  found.added = std::move(matched.added);
  return found;
}

StepChanges ComparePairs(const Tree& before, const Tree& after, const Pairs& pairs) {
  std::vector<db::LeafPair> leaves;
  leaves.reserve(pairs.size());
  for (const auto& [one, other] : pairs) {
    leaves.push_back({before.At(static_cast<Place>(one)), after.At(static_cast<Place>(other))});
  }
  db::LeafChanges compared = Compare(before, after, leaves, {});
  StepChanges found;
  found.unchanged = leaves.size() - compared.changes.size();
  found.changed = std::move(compared.changes);
  found.stats = compared.stats;
  return found;
}

std::optional<Boxes> ChangedBoxes(const Tree& before, size_t number_before, const Tree& after,
                                  size_t number_after) {
  const LeafRecord& one = before.leaf_records().at(number_before);
  const LeafRecord& other = after.leaf_records().at(number_after);
  const auto boxes = Call([&] { return db::ChangedBoxes(one, other); });
  if (!boxes) return std::nullopt;
  Boxes found;
  for (const format::Box& box : *boxes) found.emplace_back(box.start, box.stop);
  return found;
}

// The tree of a step whose other shares lie on other machines' disks: `share` is part 0's, `others`
// are their records, by part, as Reader::Records gives them. It does not load.
std::unique_ptr<Tree> MergedTree(const Reader& share, const std::map<uint32_t, nb::bytes>& others) {
  std::map<uint32_t, std::vector<LeafRecord>> records;
  for (const auto& [part, bytes] : others) {
    records.emplace(part, ValueOrThrow(format::DecodeRecords(
                              AsBytes(std::string_view(bytes.c_str(), bytes.size())))));
  }
  const auto reader = db::ReadWithRecords(share.reader(), std::move(records), "the store");
  return std::make_unique<Tree>(reader, Call([&] { return reader->Leaves(""); }));
}

// A step's records on the way to what a path names, and the place there.
struct FoundInStep {
  std::shared_ptr<db::StepReader> reader;
  std::vector<LeafRecord> records;
  std::optional<db::PathSelection> selection;
};

// From `above` on (components, the item first; empty: where paths start).
Status FindIn(const format::PathPattern& path, const format::KeyPath& above, FoundInStep* step) {
  STEPWELL_ASSIGN_OR_RETURN(step->records,
                            db::FindAlong(*step->reader, path, above, /*below=*/false));
  if (step->records.empty()) return OkStatus();
  const format::StepRecord& record = step->reader->step();
  STEPWELL_ASSIGN_OR_RETURN(
      const db::StepTree tree,
      db::StepTree::Make(record.step, step->records, db::IsOnlyState(record), /*is_part=*/true));
  std::optional<size_t> below;
  if (!above.empty()) below = 0;  // the item's root comes first
  auto selection = tree.Resolve(path, below);
  if (selection.status().code() == StatusCode::kNotFound) return OkStatus();
  STEPWELL_RETURN_IF_ERROR(selection.status());
  step->selection = *std::move(selection);
  return OkStatus();
}

Result<FoundInStep> FindInStep(db::StoreReader& store, uint64_t number,
                               const format::PathPattern& path, bool gone_ok) {
  FoundInStep step;
  auto reader = store.Read(number);
  if (gone_ok && reader.status().code() == StatusCode::kNotFound) return step;
  STEPWELL_ASSIGN_OR_RETURN(step.reader, std::move(reader));
  STEPWELL_RETURN_IF_ERROR(FindIn(path, {}, &step));
  if (!step.selection && !db::IsOnlyState(step.reader->step())) {
    STEPWELL_RETURN_IF_ERROR(FindIn(path, {format::PathComponent::Key("state")}, &step));
  }
  return step;
}

std::byte* MemoryOf(nb::handle array, size_t rows, uint64_t row_bytes) {
  auto* const object = reinterpret_cast<PyArrayObject*>(array.ptr());
  if (!PyArray_Check(array.ptr()) || !PyArray_IS_C_CONTIGUOUS(object) ||
      !PyArray_ISWRITEABLE(object) ||
      static_cast<uint64_t>(PyArray_NBYTES(object)) != rows * row_bytes) {
    throw nb::value_error("not memory for these rows");
  }
  return static_cast<std::byte*>(PyArray_DATA(object));
}

// Reads boxes of an array in several steps, into an array for each box that has a row for each
// step. `leaves`: trees and numbers; arrays of one dtype and shape.
db::LoadStats ReadRows(const nb::list& leaves, const Boxes& boxes, const nb::list& out) {
  std::vector<db::StepRequest> requests;
  for (size_t i = 0; i < boxes.size(); ++i) {
    std::byte* row = nullptr;
    for (nb::handle each : leaves) {
      const auto leaf = nb::cast<std::pair<nb::object, size_t>>(each);
      const auto& tree = nb::cast<const Tree&>(leaf.first);
      const LeafRecord& record = tree.leaf_records().at(leaf.second);
      const db::ComparedStep step = ComparedOf(tree);
      const format::Box box = BoxOf(record, boxes[i].first, boxes[i].second);
      const uint64_t row_bytes = BoxBytes(record, box);
      if (row == nullptr) row = MemoryOf(out[i], nb::len(leaves), row_bytes);
      if (row_bytes == 0) break;
      requests.push_back({step.reader, {&record, box, row, {}}});
      row += row_bytes;
    }
  }
  return Call([&] { return db::LoadFromSteps(requests); });
}

}  // namespace

std::vector<std::optional<Selection>> FindInSteps(db::StoreReader& store,
                                                  const std::vector<uint64_t>& steps,
                                                  nb::handle path, bool gone_ok) {
  const format::PathPattern pattern = PatternFromPython(path);
  std::vector<FoundInStep> found;
  std::optional<Status> ambiguous;
  Call([&]() -> Status {
    for (const uint64_t step : steps) {
      auto one = FindInStep(store, step, pattern, gone_ok);
      if (one.status().code() == StatusCode::kInvalidArgument) {
        ambiguous = one.status();
        return OkStatus();
      }
      STEPWELL_RETURN_IF_ERROR(one.status());
      found.push_back(*std::move(one));
    }
    return OkStatus();
  });
  if (ambiguous) ThrowIfPathError(*ambiguous);
  std::vector<std::optional<Selection>> selections;
  for (FoundInStep& step : found) {
    auto& selection = selections.emplace_back();
    if (!step.selection) continue;
    selection.emplace();
    selection->tree = nb::cast(
        std::make_unique<Tree>(std::move(step.reader), std::move(step.records), /*is_part=*/true));
    if (step.selection->is_glob) {
      selection->leaves = step.selection->numbers;
    } else {
      selection->number = static_cast<Place>(step.selection->numbers.front());
    }
  }
  return selections;
}

void BindOverTime(nb::module_& m) {
  using nb::arg;
  nb::class_<db::LeafChange>(m, "LeafChange")
      .def_prop_ro("before", [](const db::LeafChange& change) { return change.leaf.before; })
      .def_prop_ro("after", [](const db::LeafChange& change) { return change.leaf.after; })
      .def_ro("chunk_count", &db::LeafChange::chunk_count)
      .def_ro("changed_chunks", &db::LeafChange::changed_chunks)
      .def_ro("changed_bytes", &db::LeafChange::changed_bytes)
      .def_ro("changed_elements", &db::LeafChange::changed_elements);
  nb::class_<db::AskedBox>(m, "AskedBox")
      .def_ro("change", &db::AskedBox::change)
      .def_prop_ro("start", [](const db::AskedBox& asked) { return asked.box.start; })
      .def_prop_ro("stop", [](const db::AskedBox& asked) { return asked.box.stop; });
  nb::class_<StepChanges>(m, "StepChanges")
      .def_ro("removed", &StepChanges::removed)
      .def_ro("added", &StepChanges::added)
      .def_ro("changed", &StepChanges::changed)
      .def_ro("asked", &StepChanges::asked)
      .def_ro("unchanged", &StepChanges::unchanged)
      .def_ro("stats", &StepChanges::stats);
  m.def("compare_steps", &CompareSteps, arg("before"), arg("leaves_before"), arg("after"),
        arg("leaves_after"), arg("elements"), arg("may_read") = true);
  m.def("compare_pairs", &ComparePairs, arg("before"), arg("after"), arg("pairs"));
  m.def("merged_tree", &MergedTree, arg("share"), arg("others"));
  m.def("changed_boxes", &ChangedBoxes, arg("before"), arg("number_before"), arg("after"),
        arg("number_after"));
  m.def("read_rows", &ReadRows, arg("leaves"), arg("boxes"), arg("out"),
        nb::sig("def read_rows(leaves: list[tuple[StepTree, int]], "
                "boxes: collections.abc.Sequence[tuple[collections.abc.Sequence[int], "
                "collections.abc.Sequence[int]]], out: list[typing.Any]) -> LoadStats"));
}

}  // namespace stepwell::python
