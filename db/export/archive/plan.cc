// SPDX-License-Identifier: Apache-2.0
#include "db/export/archive/plan.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include <stepwell/npy.h>

#include "db/export/orbax/numbers.h"
#include "db/export/orbax/verdicts.h"
#include "db/read/restore_plan.h"
#include "db/read/step_tree.h"
#include "format/archive.h"
#include "format/key.h"
#include "format/orbax/python_text.h"
#include "format/path.h"

namespace stepwell::db {
namespace {

using format::DType;
using format::LeafRecord;
using format::ValueType;
using format::orbax::Printable;

constexpr std::string_view kNpySuffix = ".npy";

const char* NameOf(ArchiveFormat format) {
  return format == ArchiveFormat::kNpz ? "npz" : "safetensors";
}

bool Holds(ArchiveFormat format, DType dtype) {
  return format == ArchiveFormat::kNpz ? !NpyDescr(dtype).empty()
                                       : !format::SafetensorsDType(dtype).empty();
}

// The archive's form of a leaf. A leaf without data gives neither an array nor a reason.
struct Translation {
  std::optional<ArchiveArray> array = {};
  std::string unsupported = {};
  std::string widened = {};
};

Translation Unsupported(std::string reason) { return {.unsupported = std::move(reason)}; }

class Translator {
 public:
  explicit Translator(const ArchiveOptions& options) : options_(options) {}

  Result<Translation> Translate(const LeafRecord& leaf) const {
    switch (leaf.kind) {
      case format::LeafKind::kNode:
        return Translation();
      case format::LeafKind::kArray:
        return Array(leaf);
      case format::LeafKind::kValue:
        return Value(leaf);
    }
    return DataLossError("the leaf's record is damaged: its kind is not known");
  }

 private:
  bool widen() const { return options_.on_unsupported == OnUnsupported::kWiden; }

  Result<Translation> Array(const LeafRecord& leaf) const {
    STEPWELL_RETURN_IF_ERROR(CheckLeaf(leaf));
    const format::DTypeInfo* info = format::FindDType(leaf.dtype);
    Translation out;
    out.array.emplace();
    out.array->leaf = &leaf;
    out.array->shape = leaf.shape;
    out.array->dtype = leaf.dtype;
    if (!Holds(options_.format, leaf.dtype)) {
      const DType wider = WiderNumpyType(leaf.dtype);
      if (wider == DType::kInvalid) return Unsupported(StrCat("is ", info->name));
      if (!widen()) {
        return Unsupported(
            StrCat("is ", info->name, "; widened it would be ", format::FindDType(wider)->name));
      }
      out.array->dtype = wider;
      out.widened = StrCat(info->name, " became ", format::FindDType(wider)->name);
    }
    if (leaf.value_type == ValueType::kPrngKey) {
      if (!widen()) return Unsupported("is a PRNG key; widened it would be its uint32 data");
      out.widened = StrCat("a PRNG key (", Printable(leaf.prng_impl), ") became its data");
    }
    const uint64_t item_bytes = format::FindDType(out.array->dtype)->item_bytes;
    STEPWELL_ASSIGN_OR_RETURN(const uint64_t count, format::ElementCount(leaf.shape, item_bytes));
    out.array->size_bytes = count * item_bytes;
    return out;
  }

  // Python's numbers are arrays of rank 0 at best.
  Translation Element(const char* what, DType dtype, ConstBytes bytes) const {
    if (!Holds(options_.format, dtype)) {
      return Unsupported(StrCat("is ", what, ", ", format::FindDType(dtype)->name, " at best"));
    }
    if (!widen()) {
      return Unsupported(StrCat("is ", what, "; widened it would be an array of ",
                                format::FindDType(dtype)->name, " and rank 0"));
    }
    Translation out;
    out.array.emplace();
    out.array->dtype = dtype;
    out.array->element = AsText(bytes);
    out.array->size_bytes = bytes.size();
    out.widened =
        StrCat(what, " became an array of ", format::FindDType(dtype)->name, " and rank 0");
    return out;
  }

  Translation Int(const LeafRecord& leaf) const {
    const auto number = IntegerElement(leaf.inline_value, DType::kInvalid);
    if (leaf.chunk_count != 0 || !number) return Unsupported("is an int beyond 64 bits");
    return Element("an int", number->dtype, AsBytes(number->bytes));
  }

  Result<Translation> Value(const LeafRecord& leaf) const {
    const ConstBytes bytes = AsBytes(leaf.inline_value);
    const auto sized = [&](const char* what, DType dtype) -> Result<Translation> {
      if (bytes.size() != format::FindDType(dtype)->item_bytes) {
        return DataLossError(StrCat("the leaf's record is damaged: the size of ", what));
      }
      return Element(what, dtype, bytes);
    };
    switch (leaf.value_type) {
      case ValueType::kNone:
        return Unsupported("is None");
      case ValueType::kInt:
        return Int(leaf);
      case ValueType::kFloat:
        return sized("a float", DType::kFloat64);
      case ValueType::kBool:
        return sized("a bool", DType::kBool);
      case ValueType::kComplex:
        return sized("a complex", DType::kComplex128);
      case ValueType::kStr:
        return Unsupported("is a str");
      case ValueType::kBytes:
        return Unsupported("is bytes");
      default:
        return Unsupported("is of a type that this version does not know");
    }
  }

  const ArchiveOptions& options_;
};

// Why the format cannot have an array of this name; empty: it can.
std::string BadName(ArchiveFormat format, const std::string& name) {
  if (!format::orbax::IsUtf8(name)) return "its name is not UTF-8";
  if (format == ArchiveFormat::kSafetensors) {
    return name == format::kSafetensorsMetadata ? "its name is that of safetensors' metadata" : "";
  }
  if (name.find('\0') != std::string::npos) return "its name has a NUL, where zip's names end";
  const bool fits = name.size() + kNpySuffix.size() <= format::kZipNameBytesMax;
  return fits ? "" : "its name is longer than those in a zip file";
}

class Planner {
 public:
  Planner(const format::StepRecord& step, const ArchiveOptions& options)
      : step_(step),
        options_(options),
        translator_(options),
        verdicts_(NameOf(options.format), options.on_unsupported) {}

  Status Add(const LeafRecord& record) {
    STEPWELL_ASSIGN_OR_RETURN(const format::LeafKey key, format::DecodeLeafKey(record.key));
    const std::string path = LeafName(record);
    auto translated = translator_.Translate(record);
    if (!translated.ok()) return translated.status().WithContext(path);
    if (!translated->unsupported.empty()) {
      verdicts_.Unsupported(path, std::move(translated->unsupported));
      return OkStatus();
    }
    if (!translated->array) return OkStatus();
    ArchiveArray& array = *translated->array;
    array.path = PathFor(key);
    array.name = Joined(array.path);
    if (std::string reason = BadName(options_.format, array.name); !reason.empty()) {
      verdicts_.Unsupported(path, std::move(reason));
      return OkStatus();
    }
    if (const std::string* other = Clash(array.name)) {
      verdicts_.Unsupported(path, StrCat("its name would be \"", Printable(array.name),
                                         "\", too near that of ", Printable(*other)));
      return OkStatus();
    }
    names_[array.name] = path;
    if (!translated->widened.empty()) {
      plan_.report.widened.push_back({path, std::move(translated->widened)});
    }
    ++plan_.report.leaves;
    plan_.report.chunks += record.chunks.size();
    for (const auto& chunk : record.chunks) plan_.report.step_bytes += chunk.all_stored_bytes();
    plan_.arrays.push_back(std::move(array));
    return OkStatus();
  }

  Result<ArchivePlan> Finish() {
    AddMetadata();
    STEPWELL_RETURN_IF_ERROR(verdicts_.Finish(&plan_.report.skipped));
    if (plan_.arrays.empty()) return InvalidArgumentError("there is no array to export");
    if (options_.format == ArchiveFormat::kSafetensors) {
      // The library writes the widest elements first, so that all are aligned.
      std::stable_sort(plan_.arrays.begin(), plan_.arrays.end(), [](const auto& a, const auto& b) {
        return format::FindDType(a.dtype)->item_bytes > format::FindDType(b.dtype)->item_bytes;
      });
    }
    return std::move(plan_);
  }

 private:
  std::vector<std::string> PathFor(const format::LeafKey& key) {
    size_t above = 0;
    if (!options_.subtree_key.empty()) {
      if (!subtree_depth_) {
        const auto subtree = format::DecodeLeafKey(options_.subtree_key);
        subtree_depth_ = subtree.ok() ? subtree->path.size() : 0;
      }
      above = std::min(*subtree_depth_, key.path.size());
      if (above == key.path.size()) {  // the leaf itself
        return {key.path.empty() ? key.item : format::Spelling(key.path.back())};
      }
    }
    std::vector<std::string> names;
    if (options_.subtree_key.empty() && (!IsOnlyState(step_) || key.path.empty())) {
      names.push_back(key.item);
    }
    for (size_t i = above; i < key.path.size(); ++i) {
      names.push_back(format::Spelling(key.path[i]));
    }
    return names;
  }

  static std::string Joined(const std::vector<std::string>& names) {
    std::string name;
    for (size_t i = 0; i < names.size(); ++i) name += StrCat(i == 0 ? "" : "/", names[i]);
    return name;
  }

  // numpy.load takes "a.npy" for "a", too.
  const std::string* Clash(const std::string& name) const {
    const auto find = [this](const std::string& other) {
      const auto it = names_.find(other);
      return it == names_.end() ? nullptr : &it->second;
    };
    const std::string* found = find(name);
    if (found != nullptr || options_.format != ArchiveFormat::kNpz) return found;
    if (found = find(name + std::string(kNpySuffix)); found != nullptr) return found;
    if (!name.ends_with(kNpySuffix)) return nullptr;
    return find(name.substr(0, name.size() - kNpySuffix.size()));
  }

  void AddMetadata() {
    if (options_.format != ArchiveFormat::kSafetensors) return;
    std::map<std::string, std::string> texts = {{"stepwell.step", std::to_string(step_.step)}};
    if (!step_.metrics_json.empty()) texts["stepwell.metrics"] = step_.metrics_json;
    const auto parsed = nlohmann::ordered_json::parse(step_.metadata_json, nullptr, false);
    if (parsed.is_object()) {
      for (const auto& [key, value] : parsed.items()) {
        texts[key] = value.is_string() ? value.get<std::string>() : value.dump();
      }
    } else if (!step_.metadata_json.empty()) {  // JSON as Python has it: NaN, lone surrogates
      texts["stepwell.metadata"] = step_.metadata_json;
    }
    for (const auto& [key, text] : texts) {
      if (format::orbax::IsUtf8(key) && format::orbax::IsUtf8(text)) {
        plan_.metadata.emplace_back(key, text);
      } else {
        verdicts_.Unsupported(StrCat("the step's metadata ", Printable(key)), "is not UTF-8");
      }
    }
  }

  const format::StepRecord& step_;
  const ArchiveOptions& options_;
  const Translator translator_;
  std::optional<size_t> subtree_depth_;
  std::map<std::string, std::string> names_;  // to paths
  ExportVerdicts verdicts_;
  ArchivePlan plan_;
};

}  // namespace

Result<ArchivePlan> PlanArchive(const format::StepRecord& step, std::span<const LeafRecord> leaves,
                                const ArchiveOptions& options) {
  Planner planner(step, options);
  for (const LeafRecord& leaf : leaves) STEPWELL_RETURN_IF_ERROR(planner.Add(leaf));
  return planner.Finish();
}

ArrayBoxes::ArrayBoxes(format::Shape shape, format::Shape chunk_shape, uint64_t item_bytes,
                       uint64_t bytes_max)
    : shape_(std::move(shape)), chunk_shape_(std::move(chunk_shape)) {
  done_ = std::find(shape_.begin(), shape_.end(), 0U) != shape_.end();
  if (done_ || shape_.empty()) return;
  // The first axis of which one index has no more than `bytes_max` below it.
  uint64_t below_bytes = item_bytes;
  for (axis_ = shape_.size() - 1; axis_ > 0 && below_bytes * shape_[axis_] <= bytes_max; --axis_) {
    below_bytes *= shape_[axis_];
  }
  count_max_ = std::max<uint64_t>(bytes_max / below_bytes, 1);
  if (count_max_ > chunk_shape_[axis_]) count_max_ -= count_max_ % chunk_shape_[axis_];
  next_.assign(axis_ + 1, 0);
}

std::optional<format::Box> ArrayBoxes::Next() {
  if (done_) return std::nullopt;
  format::Box box = format::WholeArray(shape_);
  if (shape_.empty()) {
    done_ = true;
    return box;
  }
  for (size_t axis = 0; axis < axis_; ++axis) {
    box.start[axis] = next_[axis];
    box.stop[axis] = next_[axis] + 1;
  }
  box.start[axis_] = next_[axis_];
  box.stop[axis_] = std::min(next_[axis_] + count_max_, shape_[axis_]);
  next_[axis_] = box.stop[axis_];
  for (size_t axis = axis_; next_[axis] == shape_[axis]; --axis) {
    if (axis == 0) {
      done_ = true;
      break;
    }
    next_[axis] = 0;
    ++next_[axis - 1];
  }
  return box;
}

}  // namespace stepwell::db
