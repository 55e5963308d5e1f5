// SPDX-License-Identifier: Apache-2.0
// `stepwell cat STORE STEP PATH`: an array or value, or those that a glob names, as text; a slice
// of an array; a .npy file. Of a large array only the corners are read, as NumPy would print it.
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "api/cli/array_read.h"
#include "api/cli/command.h"
#include "api/cli/npy.h"
#include "api/cli/output.h"
#include "api/cli/slice.h"
#include "api/cli/text.h"
#include "api/cli/tree.h"
#include "api/cli/values.h"

namespace stepwell::cli {
namespace {

// NumPy's own defaults.
constexpr uint64_t kWholeElementsMax = 1000;
constexpr uint64_t kEdgeCount = 3;
// Elements that are text at one time: in these, columns are set right.
constexpr size_t kPrintedElements = size_t{1} << 16;

// The elements that `ranges` select; of many only the corners, unless `full`.
Result<ArrayPart> ReadArray(const Step& step, const LeafInfo& leaf, const Ranges& ranges,
                            bool full) {
  STEPWELL_ASSIGN_OR_RETURN(const DTypeInfo* info, ElementType(leaf));
  ArrayPart part{.dtype = leaf.dtype, .shape = ResultShape(ranges), .edge_counts = {}, .bytes = {}};
  part.edge_counts.assign(part.shape.size(), 0);
  uint64_t count = 1;  // a part of an array whose bytes 64 bits count
  for (const uint64_t extent : part.shape) count *= extent;
  if (full || count <= kWholeElementsMax) {
    SelectionBoxes boxes(ranges, leaf.chunk_shape, info->item_bytes, kBoxBytesMax);
    std::vector<std::byte> bytes;
    while (const std::optional<Ranges> box = boxes.Next()) {
      STEPWELL_RETURN_IF_ERROR(LoadBox(step, leaf, *box, &bytes));
      part.bytes.insert(part.bytes.end(), bytes.begin(), bytes.end());
    }
    return part;
  }
  std::vector<Ranges> by_axis;
  size_t shown_axis = 0;
  for (const AxisRange& range : ranges) {
    by_axis.push_back({range});
    if (range.dropped) continue;
    if (range.count > 2 * kEdgeCount) {
      part.edge_counts[shown_axis] = kEdgeCount;
      by_axis.back() = {range.Part(0, kEdgeCount),
                        range.Part(range.count - kEdgeCount, kEdgeCount)};
    }
    ++shown_axis;
  }
  uint64_t bytes = info->item_bytes;
  for (const uint64_t extent : PartExtents(part.shape, part.edge_counts)) bytes *= extent;
  part.bytes.resize(bytes);
  STEPWELL_RETURN_IF_ERROR(LoadRanges(step, leaf, by_axis, part.bytes.data()));
  return part;
}

// Every element as text on stdout, in memory of a box, until the end or until none reads it.
Status PrintWhole(const Step& step, const LeafInfo& leaf, const Ranges& ranges) {
  STEPWELL_ASSIGN_OR_RETURN(const DTypeInfo* info, ElementType(leaf));
  STEPWELL_ASSIGN_OR_RETURN(const std::unique_ptr<OutputFile> out, OutputFile::Open(""));
  const auto print = [&](const std::string& text) {
    return out->Write(std::as_bytes(std::span(text)));
  };
  const Shape shape = ResultShape(ranges);
  ArrayPrinter printer(leaf.dtype, shape, std::vector<uint64_t>(shape.size(), 0));
  SelectionBoxes boxes(ranges, leaf.chunk_shape, info->item_bytes, kBoxBytesMax);
  std::vector<std::byte> bytes;
  while (const std::optional<Ranges> box = boxes.Next()) {
    STEPWELL_RETURN_IF_ERROR(LoadBox(step, leaf, *box, &bytes));
    for (std::span<const std::byte> rest(bytes); !rest.empty() && !out->ended();) {
      const size_t batch = std::min(rest.size(), kPrintedElements * info->item_bytes);
      STEPWELL_RETURN_IF_ERROR(print(printer.Print(rest.first(batch))));
      rest = rest.subspan(batch);
    }
    if (out->ended()) return OkStatus();
  }
  return print(printer.End() + "\n");
}

// One leaf, for people or for programs.
struct Printed {
  std::string text;
  Json document;
};

Json ArrayDocument(const ArrayPart& part, Json document) {
  const bool whole = PartExtents(part.shape, part.edge_counts) == part.shape;
  document["kind"] = "array";
  document["dtype"] = DTypeName(part.dtype);
  document["shape"] = part.shape;
  document["whole"] = whole;
  if (whole) {
    document["value"] = ArrayJson(part);
  } else {
    document["summary"] = ArrayText(part);
  }
  return document;
}

// A selection without nodes is a leaf, or what a glob names.
Status CheckLeaves(const Selection& selection) {
  const size_t count = selection.entries.size();
  const auto is_node = [](const Entry& entry) { return entry.info.type == LeafType::kNode; };
  if (count > 0 && std::none_of(selection.entries.begin(), selection.entries.end(), is_node)) {
    return OkStatus();
  }
  const std::string text = selection.text.empty() ? "the item itself" : selection.text;
  return InvalidArgumentError(
      StrCat(text, " is a node with ", Plural(count == 0 ? 0 : count - 1, "entry", "entries"),
             " below it, not an array or a value; `stepwell show` prints its tree, and \"",
             selection.text.empty() ? "" : selection.text + "/", "**\" names its leaves"));
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

Result<Printed> CatNpy(const Step& step, const Entry& entry, const Ranges& ranges,
                       const CatArguments& arguments, Json document) {
  const bool to_file = !arguments.output.empty() && arguments.output != "-";
  STEPWELL_ASSIGN_OR_RETURN(const NpyHeader header,
                            MakeNpyHeader(entry.info, entry.text, ranges, arguments.bits));
  STEPWELL_ASSIGN_OR_RETURN(std::unique_ptr<OutputFile> file,
                            OutputFile::Open(to_file ? arguments.output : ""));
  STEPWELL_RETURN_IF_ERROR(WriteNpy(step, entry.info, ranges, header, file.get()));
  STEPWELL_RETURN_IF_ERROR(file->Close());
  if (!to_file) return Printed{};
  document["file"] = arguments.output;
  document["kind"] = "npy";
  document["dtype"] = DTypeName(entry.info.dtype);
  document["descr"] = header.descr;
  document["shape"] = header.shape;
  document["bytes"] = file->bytes_written();
  return Printed{StrCat("wrote ", arguments.output, ": ", header.descr, ShapeText(header.shape),
                        ", ", HumanBytes(file->bytes_written())),
                 std::move(document)};
}

Result<Printed> CatArray(const Step& step, const Entry& entry, const CatArguments& arguments,
                         Json document, bool json) {
  Ranges ranges = WholeRanges(entry.info.shape);
  if (arguments.slice) {
    STEPWELL_ASSIGN_OR_RETURN(ranges, ParseSlice(*arguments.slice, entry.info.shape));
    document["slice"] = *arguments.slice;
  }
  if (arguments.npy) return CatNpy(step, entry, ranges, arguments, std::move(document));
  if (arguments.full && !json) {
    STEPWELL_RETURN_IF_ERROR(PrintWhole(step, entry.info, ranges));
    return Printed{};
  }
  STEPWELL_ASSIGN_OR_RETURN(const ArrayPart part,
                            ReadArray(step, entry.info, ranges, arguments.full));
  if (json) return Printed{{}, ArrayDocument(part, std::move(document))};
  return Printed{ArrayText(part), {}};
}

Result<Printed> CatValue(const Step& step, const Entry& entry, const CatArguments& arguments,
                         Json document, bool json) {
  if (arguments.slice || arguments.npy) {
    return InvalidArgumentError(
        StrCat(entry.text, " is a value, not an array; --slice and --npy are for arrays"));
  }
  STEPWELL_ASSIGN_OR_RETURN(const Value value, step.ReadValue(entry.info.path));
  if (!json) return Printed{ValueText(value), {}};
  document["value"] = ValueJson(value);
  document["kind"] = "value";
  return Printed{{}, std::move(document)};
}

Result<Outcome> RunCat(const CatArguments& arguments, Invocation* invocation) {
  STEPWELL_RETURN_IF_ERROR(CheckArguments(arguments, invocation->json));
  STEPWELL_ASSIGN_OR_RETURN(auto store, OpenStore(arguments.store, /*read_only=*/true, invocation));
  STEPWELL_ASSIGN_OR_RETURN(const Step step, ReadStep(&store, arguments.step));
  STEPWELL_ASSIGN_OR_RETURN(const Selection selection, Select(step, arguments.path));
  STEPWELL_RETURN_IF_ERROR(CheckLeaves(selection));
  const bool several = selection.entries.size() > 1;
  if (several && arguments.npy) {
    return InvalidArgumentError(StrCat(arguments.path, " names ", selection.entries.size(),
                                       " leaves; --npy writes one array"));
  }
  Json document = {{"schema", kJsonSchema}, {"store", arguments.store}, {"step", step.info().step}};
  Json leaves = Json::array();
  Outcome outcome;
  for (const Entry& entry : selection.entries) {
    if (several) {
      outcome.text += StrCat(Printable(entry.text), entry.info.shape.empty() ? ": " : ":\n");
    }
    if (arguments.full && !invocation->json) {  // large arrays are printed while they are read
      STEPWELL_RETURN_IF_ERROR(WriteStdout(std::exchange(outcome.text, {})));
    }
    const auto cat = entry.info.type == LeafType::kArray ? CatArray : CatValue;
    STEPWELL_ASSIGN_OR_RETURN(
        Printed printed, cat(step, entry, arguments, {{"path", entry.text}}, invocation->json));
    if (!printed.text.empty()) outcome.text += printed.text + "\n";
    leaves.push_back(std::move(printed.document));
  }
  if (!invocation->json) return outcome;
  if (several) {
    document["leaves"] = std::move(leaves);
  } else {
    document.update(leaves.front());
  }
  outcome.text = JsonText(document);
  return outcome;
}

}  // namespace

void AddCat(CLI::App* program, Invocation* invocation) {
  auto arguments = std::make_shared<CatArguments>();
  CLI::App* command = AddCommand(program, invocation, "cat", "print arrays and values",
                                 [=] { return RunCat(*arguments, invocation); });
  AddStore(command, &arguments->store);
  AddStep(command, &arguments->step)->required();
  AddPath(command, &arguments->path)
      ->required()
      ->description("of an array or value; a glob prints each that it names");
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
