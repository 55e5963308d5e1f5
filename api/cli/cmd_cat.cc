// SPDX-License-Identifier: Apache-2.0
// `stepwell cat STORE STEP PATH`: one array or value as text. Of a large array only the corners are
// read, as NumPy would print it.
#include "api/cli/command.h"
#include "api/cli/output.h"
#include "api/cli/select.h"
#include "api/cli/text.h"
#include "api/cli/values.h"

namespace stepwell::cli {
namespace {

// NumPy's own defaults.
constexpr uint64_t kWholeElementsMax = 1000;
constexpr uint64_t kEdgeCount = 3;

// Visits the corners of an array: every combination of the two ends of each shortened axis.
class CornerRequests {
 public:
  CornerRequests(const format::LeafRecord& leaf, ArrayPart* part)
      : leaf_(leaf),
        part_(part),
        strides_(format::CStrides(PartExtents(part->shape, part->edge_counts),
                                  format::FindDType(part->dtype)->item_bytes)) {
    box_ = format::WholeArray(part->shape);
    AddAxis(0, 0);
  }
  const std::vector<db::LoadRequest>& requests() const { return requests_; }

 private:
  void AddAxis(size_t axis, size_t offset_bytes) {
    if (axis == part_->shape.size()) {
      requests_.push_back({&leaf_, box_, part_->bytes.data() + offset_bytes, strides_});
      return;
    }
    const uint64_t edge = part_->edge_counts[axis];
    if (edge == 0) return AddAxis(axis + 1, offset_bytes);
    box_.start[axis] = 0;
    box_.stop[axis] = edge;
    AddAxis(axis + 1, offset_bytes);
    box_.start[axis] = part_->shape[axis] - edge;
    box_.stop[axis] = part_->shape[axis];
    AddAxis(axis + 1, offset_bytes + edge * static_cast<size_t>(strides_[axis]));
  }

  const format::LeafRecord& leaf_;
  ArrayPart* const part_;
  const std::vector<int64_t> strides_;
  format::Box box_;
  std::vector<db::LoadRequest> requests_;
};

Result<ArrayPart> ReadArray(db::StepReader* reader, const format::LeafRecord& leaf, bool full) {
  const format::DTypeInfo* info = format::FindDType(leaf.dtype);
  if (info == nullptr) {
    return UnimplementedError(
        StrCat("dtype ", static_cast<unsigned>(leaf.dtype), " is newer than this program"));
  }
  STEPWELL_ASSIGN_OR_RETURN(uint64_t count, format::ElementCount(leaf.shape, info->item_bytes));
  ArrayPart part{leaf.dtype, leaf.shape, std::vector<uint64_t>(leaf.shape.size(), 0), {}};
  if (!full && count > kWholeElementsMax) {
    for (size_t axis = 0; axis < part.shape.size(); ++axis) {
      if (part.shape[axis] > 2 * kEdgeCount) part.edge_counts[axis] = kEdgeCount;
    }
  }
  STEPWELL_ASSIGN_OR_RETURN(
      uint64_t part_count,
      format::ElementCount(PartExtents(part.shape, part.edge_counts), info->item_bytes));
  part.bytes.resize(part_count * info->item_bytes);
  if (part_count == 0) return part;
  const CornerRequests corners(leaf, &part);
  STEPWELL_ASSIGN_OR_RETURN(db::LoadStats stats, reader->Load(corners.requests()));
  (void)stats;
  return part;
}

Result<std::string> ReadValue(db::StepReader* reader, const format::LeafRecord& leaf) {
  if (leaf.chunks.empty()) return leaf.inline_value;
  std::string bytes(leaf.logical_bytes, '\0');
  db::LoadRequest request;
  request.leaf = &leaf;
  request.out = reinterpret_cast<std::byte*>(bytes.data());
  STEPWELL_ASSIGN_OR_RETURN(db::LoadStats stats, reader->Load({&request, 1}));
  (void)stats;
  return bytes;
}

Result<std::string> ArrayDocument(const ArrayPart& part, Json document) {
  const bool whole = PartExtents(part.shape, part.edge_counts) == part.shape;
  document["kind"] = "array";
  document["dtype"] = format::FindDType(part.dtype)->name;
  document["shape"] = part.shape;
  document["whole"] = whole;
  if (whole) {
    document["value"] = ArrayJson(part);
  } else {
    document["summary"] = ArrayText(part);
  }
  return JsonText(document);
}

// The one leaf at the path, or why there is none.
Result<Entry> OnlyLeaf(const Selection& selection) {
  std::vector<const Entry*> leaves;
  for (size_t i = 0; i < selection.exact_count; ++i) {
    const Entry& entry = selection.entries[i];
    if (entry.record.kind != format::LeafKind::kNode) leaves.push_back(&entry);
  }
  const std::string name = selection.text.empty() ? "the item itself" : selection.text;
  if (leaves.empty()) {
    return InvalidArgumentError(
        StrCat(name, " is a node with ",
               Plural(selection.entries.size() - selection.exact_count, "entry", "entries"),
               " below it, not an array or a value; `stepwell show` "
               "prints its tree"));
  }
  if (leaves.size() > 1) {
    return InvalidArgumentError(
        StrCat(name, " is ambiguous: ", leaves.size(),
               " leaves are spelled so, with components of different types (a number and text)"));
  }
  return *leaves[0];
}

struct Arguments : StoreArguments {
  bool full = false;  // every element
};

Result<Outcome> RunCat(const Arguments& arguments, Invocation* invocation) {
  STEPWELL_ASSIGN_OR_RETURN(auto store, OpenStore(arguments.store, /*read_only=*/true, invocation));
  STEPWELL_ASSIGN_OR_RETURN(std::shared_ptr<db::StepReader> reader,
                            ReadStep(store.get(), arguments.step));
  STEPWELL_ASSIGN_OR_RETURN(Selection selection, Select(reader.get(), arguments.path));
  STEPWELL_ASSIGN_OR_RETURN(Entry entry, OnlyLeaf(selection));
  Json document = {{"schema", kJsonSchema},
                   {"store", arguments.store},
                   {"step", reader->step().step},
                   {"path", entry.text}};
  Outcome outcome;
  if (entry.record.kind == format::LeafKind::kArray) {
    STEPWELL_ASSIGN_OR_RETURN(ArrayPart part,
                              ReadArray(reader.get(), entry.record, arguments.full));
    if (invocation->json) {
      STEPWELL_ASSIGN_OR_RETURN(outcome.text, ArrayDocument(part, std::move(document)));
    } else {
      outcome.text = ArrayText(part) + "\n";
    }
    return outcome;
  }
  STEPWELL_ASSIGN_OR_RETURN(std::string bytes, ReadValue(reader.get(), entry.record));
  if (invocation->json) {
    STEPWELL_ASSIGN_OR_RETURN(document["value"],
                              ValueJson(entry.record.value_type, AsBytes(bytes)));
    document["kind"] = "value";
    outcome.text = JsonText(document);
  } else {
    STEPWELL_ASSIGN_OR_RETURN(std::string text, ValueText(entry.record.value_type, AsBytes(bytes)));
    outcome.text = text + "\n";
  }
  return outcome;
}

}  // namespace

void AddCat(CLI::App* program, Invocation* invocation) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = AddCommand(program, invocation, "cat", "print an array or a value",
                                 [=] { return RunCat(*arguments, invocation); });
  AddStore(command, &arguments->store);
  AddStep(command, &arguments->step)->required();
  AddPath(command, &arguments->path)->required();
  command->add_flag("--full", arguments->full,
                    "every element of a large array, not only its corners");
}

}  // namespace stepwell::cli
