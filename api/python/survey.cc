// SPDX-License-Identifier: Apache-2.0
#include "api/python/survey.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <charconv>
#include <cmath>
#include <limits>
#include <map>
#include <unordered_map>
#include <utility>

#include "api/python/bindings.h"
#include "api/python/errors.h"
#include "api/python/interrupt.h"
#include "api/python/leaves.h"
#include "db/mesh/sharding.h"
#include "db/read/compare.h"
#include "db/read/step_tree.h"
#include "format/dtype.h"
#include "format/hash.h"
#include "format/key.h"
#include "format/names.h"

namespace stepwell::python {
namespace {

namespace nb = nanobind;
using format::Hash128;
using format::LeafKind;
using format::LeafRecord;

constexpr double kNotKnown = std::numeric_limits<double>::quiet_NaN();

// A page shows no more digits, and their text is most of its size.
double Rounded(double number) {
  if (!std::isfinite(number)) return number;
  std::array<char, 32> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), number,
                                 std::chars_format::scientific, 4);
  double rounded = number;
  // None of a number that rounds to beyond the largest one.
  std::from_chars(text.data(), end.ptr, rounded);
  return rounded;
}

void SetStatistics(const format::LeafStatistics& taken, SurveyCell* cell) {
  const auto set = [cell](SurveyColumn column, double number) {
    cell->numbers[static_cast<size_t>(column)] = Rounded(number);
  };
  cell->has_statistics = true;
  cell->elements = taken.elements;
  cell->nonfinite = taken.nonfinite;
  cell->is_exact = taken.changed_count != format::ChangedCount::kAtMost;
  set(SurveyColumn::kNorm, taken.norm());
  set(SurveyColumn::kMin, taken.has_range() ? taken.min : kNotKnown);
  set(SurveyColumn::kMax, taken.has_range() ? taken.max : kNotKnown);
  set(SurveyColumn::kMean, taken.has_range() ? taken.mean() : kNotKnown);
  const bool is_known = taken.changed_count != format::ChangedCount::kUnknown;
  const double elements = static_cast<double>(std::max<uint64_t>(taken.elements, 1));
  set(SurveyColumn::kChanged, is_known ? static_cast<double>(taken.changed) / elements : kNotKnown);
}

// Tells the contents of leaves apart as db::CompareLeaves does, but by chunks alone: an array that
// lies in other chunks is another content. None: a chunk's hash is not known.
std::optional<Hash128> ContentOf(const LeafRecord& leaf) {
  std::string text;
  const auto add = [&text](uint64_t number) {
    text.append(reinterpret_cast<const char*>(&number), sizeof number);
  };
  const auto add_shape = [&add](const format::Shape& shape) {
    add(shape.size());
    for (const uint64_t extent : shape) add(extent);
  };
  add(static_cast<uint64_t>(leaf.kind));
  if (leaf.kind == LeafKind::kArray) {
    add(static_cast<uint64_t>(leaf.dtype));
    add(leaf.prng_impl.size());
    text += leaf.prng_impl;
    add_shape(leaf.shape);
    for (const format::PieceRecord& grid : db::GridsOf(leaf)) {
      add_shape(grid.origin);
      add_shape(grid.shape);
      add_shape(grid.chunk_shape);
      add(grid.first_chunk);
    }
  } else {
    add(static_cast<uint64_t>(leaf.value_type));
    add(leaf.logical_bytes);
    text += leaf.inline_value;
  }
  for (const format::ChunkRecord& chunk : leaf.chunks) {
    if (!chunk.hash.known()) return std::nullopt;
    add(chunk.hash.low);
    add(chunk.hash.high);
    add(chunk.logical_bytes);
  }
  return format::HashOf(AsBytes(text));
}

class Surveyor {
 public:
  Surveyor(size_t steps, const SurveyLimits& limits) : limits_(limits) {
    survey_.steps = steps;
    survey_.problems.resize(steps);
    survey_.gone.resize(steps, false);
  }

  // Steps come from the newest to the oldest.
  Status Add(db::StoreReader& store, size_t at, uint64_t step) {
    auto reader = store.Read(step);
    if (reader.status().code() == StatusCode::kNotFound) {
      survey_.gone[at] = true;
      return OkStatus();
    }
    if (!reader.ok()) return Fail(at, reader.status());
    const auto records = (*reader)->Leaves("");
    if (records.status().code() == StatusCode::kNotFound) {
      survey_.gone[at] = true;
      return OkStatus();
    }
    if (!records.ok()) return Fail(at, records.status());
    only_state_ = only_state_ && db::IsOnlyState((*reader)->step());
    for (const LeafRecord& leaf : *records) {
      if (leaf.kind != LeafKind::kNode) STEPWELL_RETURN_IF_ERROR(AddLeaf(at, leaf));
    }
    return OkStatus();
  }

  Survey Finish() {
    survey_.total_leaves = rows_.size();
    for (const auto& [key, row] : rows_) {
      if (row == kLeftOut) continue;
      const auto decoded = format::DecodeLeafKey(key);
      SurveyedLeaf& leaf = survey_.leaves[row];
      leaf.item = decoded->item;
      format::KeyPath path = {format::PathComponent::Key(decoded->item)};
      path.insert(path.end(), decoded->path.begin(), decoded->path.end());
      leaf.path = db::ShortPathText(path, only_state_);
    }
    NumberContents();
    return std::move(survey_);
  }

 private:
  static constexpr size_t kLeftOut = static_cast<size_t>(-1);

  // The survey goes on with other steps behind damage, and ends at any other error.
  Status Fail(size_t at, const Status& status) {
    if (status.code() != StatusCode::kDataLoss) return status;
    survey_.problems[at] = status.message();
    return OkStatus();
  }

  Status AddLeaf(size_t at, const LeafRecord& leaf) {
    const auto [it, is_first] = rows_.emplace(leaf.key, kLeftOut);
    if (is_first) STEPWELL_RETURN_IF_ERROR(AddRow(leaf, &it->second));
    if (it->second == kLeftOut) return OkStatus();
    const size_t cell_at = it->second * survey_.steps + at;
    SurveyCell& cell = survey_.cells[cell_at];
    const auto content = ContentOf(leaf);
    cell.content = content ? 0 : SurveyCell::kUnknown;
    if (content) contents_[cell_at] = *content;
    if (leaf.statistics) SetStatistics(*leaf.statistics, &cell);
    return OkStatus();
  }

  Status AddRow(const LeafRecord& record, size_t* row) {
    STEPWELL_RETURN_IF_ERROR(format::DecodeLeafKey(record.key).status());
    path_bytes_ += record.key.size();
    const size_t count = survey_.leaves.size() + 1;
    if (count > limits_.leaves || count * survey_.steps > limits_.cells ||
        path_bytes_ > limits_.path_bytes) {
      return OkStatus();
    }
    *row = survey_.leaves.size();
    SurveyedLeaf& leaf = survey_.leaves.emplace_back();
    leaf.logical_bytes = record.logical_bytes;
    for (const format::ChunkRecord& chunk : record.chunks) {
      leaf.stored_bytes += chunk.all_stored_bytes();
    }
    if (record.kind == LeafKind::kArray) {
      const format::DTypeInfo* const dtype = format::FindDType(record.dtype);
      leaf.kind = record.value_type == format::ValueType::kPrngKey ? "key" : "array";
      leaf.dtype = dtype == nullptr ? "unknown" : std::string(dtype->name);
      leaf.shape = record.shape;
    } else {
      leaf.kind = format::NameOf(record.value_type);
    }
    if (!record.sharding_json.empty()) {
      const auto [it, is_new] = shardings_.emplace(record.sharding_json, survey_.shardings.size());
      if (is_new) survey_.shardings.push_back(record.sharding_json);
      leaf.sharding = it->second;
    }
    survey_.cells.resize(survey_.leaves.size() * survey_.steps);
    contents_.resize(survey_.cells.size());
    return OkStatus();
  }

  // Numbers the contents of each leaf in the order of the steps.
  void NumberContents() {
    for (size_t leaf = 0; leaf < survey_.leaves.size(); ++leaf) {
      std::map<Hash128, int32_t> numbers;
      for (size_t step = 0; step < survey_.steps; ++step) {
        const size_t at = leaf * survey_.steps + step;
        int32_t& content = survey_.cells[at].content;
        if (content < 0) continue;
        content =
            numbers.emplace(contents_[at], static_cast<int32_t>(numbers.size())).first->second;
      }
    }
  }

  const SurveyLimits limits_;
  Survey survey_;
  bool only_state_ = true;
  size_t path_bytes_ = 0;
  std::unordered_map<std::string, size_t> rows_;  // by key, of all leaves
  std::unordered_map<std::string, size_t> shardings_;
  std::vector<Hash128> contents_;  // by cell
};

nb::object JsonNumber(double number) {
  if (std::isnan(number)) return nb::none();
  if (std::isfinite(number)) return nb::float_(number);
  return nb::str(number > 0 ? "Infinity" : "-Infinity");
}

// A list of rows, one a leaf, of what `value(cell)` makes of its cells.
template <typename Value>
nb::list Rows(const Survey& survey, Value value) {
  nb::list rows;
  for (size_t leaf = 0; leaf < survey.leaves.size(); ++leaf) {
    nb::list row;
    for (size_t step = 0; step < survey.steps; ++step) row.append(value(survey.at(leaf, step)));
    rows.append(row);
  }
  return rows;
}

nb::list Contents(const Survey& survey) {
  return Rows(survey, [](const SurveyCell& cell) -> nb::object {
    if (cell.content == SurveyCell::kAbsent) return nb::none();
    return nb::int_(cell.content);
  });
}

// By name; empty: no leaf has statistics in any step.
nb::dict Statistics(const Survey& survey) {
  nb::dict columns;
  bool has_any = false;
  bool is_exact = true;
  for (const SurveyCell& cell : survey.cells) {
    has_any = has_any || cell.has_statistics;
    is_exact = is_exact && cell.is_exact;
  }
  if (!has_any) return columns;
  const auto add_count = [&](const char* name, uint64_t SurveyCell::*count) {
    columns[name] = Rows(survey, [count](const SurveyCell& cell) -> nb::object {
      if (!cell.has_statistics) return nb::none();
      return nb::int_(cell.*count);
    });
  };
  const char* const names[] = {"norm", "min", "max", "mean", "changed"};
  for (size_t i = 0; i < std::size(names); ++i) {
    columns[names[i]] = Rows(survey, [i](const SurveyCell& cell) -> nb::object {
      return cell.has_statistics ? JsonNumber(cell.numbers[i]) : nb::none();
    });
  }
  add_count("nonfinite", &SurveyCell::nonfinite);
  add_count("elements", &SurveyCell::elements);
  columns["changed_exact"] = is_exact;
  return columns;
}

nb::list Problems(const Survey& survey) {
  nb::list problems;
  for (const auto& problem : survey.problems) {
    problems.append(problem ? nb::object(TextObject(*problem)) : nb::none());
  }
  return problems;
}

nb::list Shardings(const Survey& survey) {
  nb::list texts;
  for (const std::string& json : survey.shardings) texts.append(TextObject(json));
  return texts;
}

// (axes of the mesh with their sizes, axes of each axis of an array, ids of devices, kind of
// memory); None for text that is no sharding over a mesh.
nb::object ParsedSharding(const std::string& json) {
  const auto parsed = db::ParseSharding(json);
  if (!parsed) return nb::none();
  nb::list axes;
  for (const MeshAxis& axis : parsed->mesh.axes) {
    axes.append(nb::make_tuple(TextObject(axis.name), axis.size));
  }
  nb::list spec;
  for (const auto& names : parsed->spec.axes) {
    nb::list each;
    for (const std::string& name : names) each.append(TextObject(name));
    spec.append(each);
  }
  return nb::make_tuple(axes, spec, parsed->devices, TextObject(parsed->memory_kind));
}

}  // namespace

Survey SurveyLeaves(db::StoreReader& store, const std::vector<uint64_t>& steps,
                    const SurveyLimits& limits) {
  return RunCancellable([&](const std::atomic<bool>& cancelled) -> Result<Survey> {
    Surveyor surveyor(steps.size(), limits);
    for (size_t i = steps.size(); i-- > 0;) {
      if (cancelled) return CancelledError("the survey was interrupted");
      STEPWELL_RETURN_IF_ERROR(surveyor.Add(store, i, steps[i]));
    }
    return surveyor.Finish();
  });
}

std::vector<StepMetrics> SurveyMetrics(db::StoreReader& store) {
  std::vector<StepMetrics> found;
  for (db::StepTexts& each : Call([&] { return store.Texts(SIZE_MAX); })) {
    found.push_back({each.step, std::move(each.metrics_json),
                     each.status.ok() ? std::string() : std::string(each.status.message())});
  }
  return found;
}

void BindSurvey(nb::module_& m) {
  using nb::arg;
  nb::class_<StepMetrics>(m, "StepMetrics")
      .def_ro("step", &StepMetrics::step)
      .def_ro("metrics_json", &StepMetrics::metrics_json)
      .def_prop_ro("problem", [](const StepMetrics& each) { return TextObject(each.problem); });
  nb::class_<SurveyLimits>(m, "SurveyLimits")
      .def(
          "__init__",
          [](SurveyLimits* self, size_t cells, size_t leaves, size_t path_bytes) {
            new (self) SurveyLimits{cells, leaves, path_bytes};
          },
          nb::kw_only(), arg("cells"), arg("leaves"), arg("path_bytes"));
  nb::class_<Survey> survey(m, "Survey");
  survey.def_ro("gone", &Survey::gone).def_ro("total_leaves", &Survey::total_leaves);
  survey.def("problems", &Problems, nb::sig("def problems(self) -> list[str | None]"));
  survey.def("shardings", &Shardings, nb::sig("def shardings(self) -> list[str]"));
  survey.def("contents", &Contents, nb::sig("def contents(self) -> list[list[int | None]]"));
  survey.def("statistics", &Statistics, nb::sig("def statistics(self) -> dict[str, typing.Any]"));
  // Of each leaf.
  const auto column = [&survey](const char* name, const char* signature, auto value) {
    survey.def(
        name,
        [value](const Survey& of) {
          nb::list values;
          for (const SurveyedLeaf& leaf : of.leaves) values.append(value(leaf));
          return values;
        },
        nb::sig(signature));
  };
  using Leaf = SurveyedLeaf;
  column("paths", "def paths(self) -> list[str]",
         [](const Leaf& leaf) { return TextObject(leaf.path); });
  column("items", "def items(self) -> list[str]",
         [](const Leaf& leaf) { return TextObject(leaf.item); });
  column("kinds", "def kinds(self) -> list[str]", [](const Leaf& leaf) { return leaf.kind; });
  column("dtypes", "def dtypes(self) -> list[str | None]", [](const Leaf& leaf) {
    return leaf.dtype.empty() ? nb::none() : nb::object(TextObject(leaf.dtype));
  });
  column("shapes", "def shapes(self) -> list[list[int] | None]",
         [](const Leaf& leaf) { return leaf.dtype.empty() ? nb::none() : nb::cast(leaf.shape); });
  column("logical_bytes", "def logical_bytes(self) -> list[int]",
         [](const Leaf& leaf) { return leaf.logical_bytes; });
  column("stored_bytes", "def stored_bytes(self) -> list[int]",
         [](const Leaf& leaf) { return leaf.stored_bytes; });
  column("leaf_shardings", "def leaf_shardings(self) -> list[int | None]",
         [](const Leaf& leaf) { return leaf.sharding; });
  m.def("parsed_sharding", &ParsedSharding, arg("json"),
        nb::sig("def parsed_sharding(json: str) -> tuple[list[tuple[str, int]], list[list[str]], "
                "list[int], str] | None"));
}

}  // namespace stepwell::python
