// SPDX-License-Identifier: Apache-2.0
// The JSON files of an Orbax checkpoint and of zarr: the first byte picks the kind, the rest is the
// file. What decodes survives encoding, whose bytes decode and encode to themselves.
#include "format/orbax/zarr_metadata.h"
#include "fuzz/support/check.h"
#include "fuzz/support/input.h"
#include "fuzz/support/memory.h"
#include "tests/format/support/orbax_examples.h"

namespace stepwell::fuzz {
namespace {

using namespace format::orbax;  // NOLINT(google-build-using-namespace)

void Reencode(const FileKind& kind, std::string_view text) {
  const Result<std::string> first = kind.reencode("FILE", text);
  if (!first.ok()) {
    // kInvalidArgument: read, but of no use to Orbax, such as a tree of no leaves.
    const StatusCode code = first.status().code();
    Check(code == StatusCode::kDataLoss || code == StatusCode::kUnimplemented ||
              code == StatusCode::kInvalidArgument,
          kind.name, ": ", first.status().ToString());
    return;
  }
  const Result<std::string> second = kind.reencode("FILE", *first);
  Check(second.ok(), kind.name, " cannot be read back: ", second.status().ToString());
  Check(*second == *first, kind.name, " has two encodings");
}

void FillElement(const Result<ZarrArray>& array) {
  if (!array.ok()) return;
  const Result<std::string> element = ZarrFillElement("FILE", *array);
  if (!element.ok()) return;
  Check(element->size() == format::FindDType(array->dtype)->item_bytes, "a fill value's size");
}

}  // namespace
}  // namespace stepwell::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace stepwell::fuzz;
  const auto& kinds = stepwell::format::orbax::FileKinds();  // made before memory is counted
  const MemoryLimit limit(size, {size_t{64} << 10, 256}, {size_t{256} << 10, 8192});
  Input input(data, size);
  Reencode(kinds[input.Byte() % kinds.size()], input.rest_text());
  FillElement(stepwell::format::orbax::DecodeZarrJson("FILE", input.rest_text()));
  FillElement(stepwell::format::orbax::DecodeZarray("FILE", input.rest_text()));
  return 0;
}
