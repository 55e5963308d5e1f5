// SPDX-License-Identifier: Apache-2.0
// Keys: any bytes into every decoder; what decodes encodes back to the same bytes; encodings sort
// as paths do; the text of a path splits back into its components.
#include <stepwell/path.h>

#include "format/key.h"
#include "fuzz/support/check.h"
#include "fuzz/support/input.h"
#include "fuzz/support/memory.h"

namespace stepwell::fuzz {
namespace {

using format::KeyPath;
using format::PathComponent;

void CheckText(const KeyPath& path) {
  const std::string text = PathToText(path);
  const auto parts = Path(text).ToComponents();
  Check(parts.ok(), "the text of a path does not split");
  // "" stands for the item itself, so a single nameless component cannot be told from it.
  if (text.empty()) return;
  Check(parts->size() == path.size(), "the text of a path splits into other components");
  for (size_t i = 0; i < path.size(); ++i) {
    Check(PathToText({(*parts)[i]}) == PathToText({path[i]}),
          "a component's text is another component");
  }
}

void DecodeAll(std::string_view bytes) {
  if (const auto path = format::DecodePath(bytes); path.ok()) {
    const auto again = format::EncodePath(*path);
    Check(again.ok() && *again == bytes, "a path has two encodings");
    CheckText(*path);
  }
  if (const auto key = format::DecodeLeafKey(bytes); key.ok()) {
    const auto again = format::EncodeLeafKey(key->item, key->path);
    Check(again.ok() && *again == bytes, "a leaf key has two encodings");
    Check(bytes.starts_with(format::EncodeItem(key->item)), "an item is no prefix of its leaf");
  }
  if (const auto step = format::DecodeStep(bytes); step.ok()) {
    Check(format::EncodeStep(*step) == bytes, "a step has two encodings");
  }
  const std::string end = format::PrefixEnd(std::string(bytes));
  Check(end.empty() || end > bytes, "a prefix ends before itself");
}

KeyPath TakePath(Input* input) {
  KeyPath path(input->Below(5));
  for (PathComponent& component : path) {
    component.type = static_cast<PathComponent::Type>(1 + input->Below(5));
    const bool number = component.type == PathComponent::Type::kIntKey ||
                        component.type == PathComponent::Type::kIndex;
    if (number) {
      component.number = input->Take<int64_t>();
      if (component.type == PathComponent::Type::kIndex) component.number &= INT64_MAX;
    } else {
      component.name = input->Text(input->Below(6));
    }
  }
  return path;
}

bool IsAbove(const KeyPath& above, const KeyPath& path) {
  return above.size() <= path.size() && std::equal(above.begin(), above.end(), path.begin());
}

// Two paths: encodings compare as the paths do, and one is a prefix only of what lies below it.
void Compare(Input* input) {
  const KeyPath a = TakePath(input);
  const KeyPath b = TakePath(input);
  const auto encoded_a = format::EncodePath(a);
  const auto encoded_b = format::EncodePath(b);
  Check(encoded_a.ok() && encoded_b.ok(), "a small path does not encode");
  const auto decoded = format::DecodePath(*encoded_a);
  Check(decoded.ok() && *decoded == a, "a path comes back as another one");
  Check((a <=> b) == (*encoded_a <=> *encoded_b), "encodings sort differently from paths");
  Check(encoded_b->starts_with(*encoded_a) == IsAbove(a, b), "a prefix that is no ancestor");
  const std::string end = format::PrefixEnd(*encoded_a);
  if (!end.empty()) {
    Check((*encoded_b >= *encoded_a && *encoded_b < end) == IsAbove(a, b),
          "the range of a subtree has something else, or not all");
  }
  CheckText(a);
}

}  // namespace
}  // namespace stepwell::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace stepwell::fuzz;
  const MemoryLimit limit(size, {4096, 256}, {size_t{64} << 10, 4096});
  Input input(data, size);
  if (input.Byte() % 2 == 0) {
    DecodeAll(input.rest_text());
  } else {
    Compare(&input);
  }
  return 0;
}
