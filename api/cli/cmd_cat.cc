// SPDX-License-Identifier: Apache-2.0
// `stepwell cat STORE STEP PATH`: one array or value, or a slice of an array, as text or as a .npy
// file. Of a large array only the corners are read, as NumPy would print it.
#include <unistd.h>

#include <optional>

#include "api/cli/array_read.h"
#include "api/cli/command.h"
#include "api/cli/npy.h"
#include "api/cli/output.h"
#include "api/cli/select.h"
#include "api/cli/slice.h"
#include "api/cli/text.h"
#include "api/cli/values.h"

namespace stepwell::cli {
namespace {

// NumPy's own defaults.
constexpr uint64_t kWholeElementsMax = 1000;
constexpr uint64_t kEdgeCount = 3;

// The elements that `ranges` select; of many only the corners, unless `full`.
Result<ArrayPart> ReadArray(db::StepReader* reader, const format::LeafRecord& leaf,
                            const Ranges& ranges, bool full) {
  STEPWELL_ASSIGN_OR_RETURN(const format::DTypeInfo* info, DTypeOf(leaf));
  ArrayPart part;
  part.dtype = leaf.dtype;
  part.shape = ResultShape(ranges);
  part.edge_counts.assign(part.shape.size(), 0);
  STEPWELL_ASSIGN_OR_RETURN(uint64_t count, format::ElementCount(part.shape, info->item_bytes));
  const bool corners = !full && count > kWholeElementsMax;
  std::vector<Ranges> by_axis;
  size_t shown_axis = 0;
  for (const AxisRange& range : ranges) {
    by_axis.push_back({range});
    if (range.dropped) continue;
    if (corners && range.count > 2 * kEdgeCount) {
      part.edge_counts[shown_axis] = kEdgeCount;
      by_axis.back() = {range.Part(0, kEdgeCount),
                        range.Part(range.count - kEdgeCount, kEdgeCount)};
    }
    ++shown_axis;
  }
  STEPWELL_ASSIGN_OR_RETURN(
      uint64_t part_count,
      format::ElementCount(PartExtents(part.shape, part.edge_counts), info->item_bytes));
  part.bytes.resize(part_count * info->item_bytes);
  STEPWELL_RETURN_IF_ERROR(corners ? LoadRanges(reader, leaf, by_axis, part.bytes.data())
                                   : LoadSelection(reader, leaf, ranges, part.bytes.data()));
  return part;
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

struct CatArguments : StoreArguments {
  bool full = false;  // every element
  std::optional<std::string> slice;
  bool npy = false;
  bool bits = false;   // npy: types that NumPy lacks as unsigned integers
  std::string output;  // npy: a file; empty: stdout
};

Status CheckArguments(const CatArguments& arguments, bool json) {
  if (!arguments.npy) {
    if (!arguments.output.empty() || arguments.bits) {
      return InvalidArgumentError("--output and --bits are for --npy");
    }
    return OkStatus();
  }
  if (arguments.output.empty() && json) {
    return InvalidArgumentError("--npy and --json both print to standard output; add -o FILE");
  }
  if (arguments.output.empty() && isatty(STDOUT_FILENO) == 1) {
    return InvalidArgumentError("--npy is not for a terminal; add -o FILE, or use a pipe");
  }
  return OkStatus();
}

Result<Outcome> CatNpy(db::StepReader* reader, const Entry& entry, const Ranges& ranges,
                       const CatArguments& arguments, Json document, bool json) {
  const bool to_file = !arguments.output.empty() && arguments.output != "-";
  STEPWELL_ASSIGN_OR_RETURN(const NpyHeader header,
                            MakeNpyHeader(entry.record, entry.text, ranges, arguments.bits));
  STEPWELL_ASSIGN_OR_RETURN(std::unique_ptr<OutputFile> file,
                            OutputFile::Open(to_file ? arguments.output : ""));
  STEPWELL_RETURN_IF_ERROR(WriteNpy(reader, entry.record, ranges, header, file.get()));
  STEPWELL_RETURN_IF_ERROR(file->Close());
  Outcome outcome;
  if (!to_file) return outcome;
  if (json) {
    document["file"] = arguments.output;
    document["kind"] = "npy";
    document["dtype"] = format::FindDType(entry.record.dtype)->name;
    document["descr"] = header.descr;
    document["shape"] = header.shape;
    document["bytes"] = file->bytes_written();
    outcome.text = JsonText(document);
  } else {
    outcome.text = StrCat("wrote ", arguments.output, ": ", header.descr, ShapeText(header.shape),
                          ", ", HumanBytes(file->bytes_written()), "\n");
  }
  return outcome;
}

Result<Outcome> CatArray(db::StepReader* reader, const Entry& entry, const CatArguments& arguments,
                         Json document, bool json) {
  Ranges ranges = WholeRanges(entry.record.shape);
  if (arguments.slice) {
    STEPWELL_ASSIGN_OR_RETURN(ranges, ParseSlice(*arguments.slice, entry.record.shape));
    document["slice"] = *arguments.slice;
  }
  if (arguments.npy) return CatNpy(reader, entry, ranges, arguments, std::move(document), json);
  STEPWELL_ASSIGN_OR_RETURN(ArrayPart part,
                            ReadArray(reader, entry.record, ranges, arguments.full));
  Outcome outcome;
  if (json) {
    STEPWELL_ASSIGN_OR_RETURN(outcome.text, ArrayDocument(part, std::move(document)));
  } else {
    outcome.text = ArrayText(part) + "\n";
  }
  return outcome;
}

Result<Outcome> CatValue(db::StepReader* reader, const Entry& entry, const CatArguments& arguments,
                         Json document, bool json) {
  if (arguments.slice || arguments.npy) {
    return InvalidArgumentError(
        StrCat(entry.text, " is a value, not an array; --slice and --npy are for arrays"));
  }
  STEPWELL_ASSIGN_OR_RETURN(std::string bytes, ReadValue(reader, entry.record));
  Outcome outcome;
  if (json) {
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

Result<Outcome> RunCat(const CatArguments& arguments, Invocation* invocation) {
  STEPWELL_RETURN_IF_ERROR(CheckArguments(arguments, invocation->json));
  STEPWELL_ASSIGN_OR_RETURN(auto store, OpenStore(arguments.store, /*read_only=*/true, invocation));
  STEPWELL_ASSIGN_OR_RETURN(std::shared_ptr<db::StepReader> reader,
                            ReadStep(store.get(), arguments.step));
  STEPWELL_ASSIGN_OR_RETURN(Selection selection, Select(reader.get(), arguments.path));
  STEPWELL_ASSIGN_OR_RETURN(Entry entry, OnlyLeaf(selection));
  Json document = {{"schema", kJsonSchema},
                   {"store", arguments.store},
                   {"step", reader->step().step},
                   {"path", entry.text}};
  const auto cat = entry.record.kind == format::LeafKind::kArray ? CatArray : CatValue;
  return cat(reader.get(), entry, arguments, std::move(document), invocation->json);
}

}  // namespace

void AddCat(CLI::App* program, Invocation* invocation) {
  auto arguments = std::make_shared<CatArguments>();
  CLI::App* command = AddCommand(program, invocation, "cat", "print an array or a value",
                                 [=] { return RunCat(*arguments, invocation); });
  AddStore(command, &arguments->store);
  AddStep(command, &arguments->step)->required();
  AddPath(command, &arguments->path)->required()->description("of the array or value");
  command->add_flag("--full", arguments->full,
                    "every element of a large array, not only its corners");
  command
      ->add_option("--slice", arguments->slice,
                   "only these elements, as NumPy's basic slices, e.g. \"0:16,:,-1\"; reads just "
                   "the chunks that have them")
      ->type_name("SLICE");
  command->add_flag("--npy", arguments->npy, "write a NumPy .npy file");
  command->add_option("-o,--output", arguments->output, "--npy: the file to write, not stdout")
      ->type_name("FILE");
  command->add_flag("--bits", arguments->bits,
                    "--npy: write types that NumPy itself lacks (bfloat16, float8, int4, ...) as "
                    "unsigned integers of their size");
}

}  // namespace stepwell::cli
