// SPDX-License-Identifier: Apache-2.0
// JSON from disk, for the .cc files of this folder (the headers that others include know no JSON
// library). What nlohmann's parser lacks is here: bounds, duplicate keys, and Python's NaN.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "format/grid.h"
#include "format/orbax/python_text.h"
#include "io/bytes.h"
#include "io/result.h"

namespace stepwell::format::orbax {

// Objects keep their order. They are looked up one member after another: iterate over large ones.
using Json = nlohmann::ordered_json;

inline constexpr size_t kJsonDepthMax = 100;
inline constexpr size_t kJsonBytesMax = size_t{1} << 30;

// Who wrote the text: json.dumps spells non-finite floats NaN, Infinity and -Infinity.
enum class JsonDialect : uint8_t { kStrict, kPython };

// All of `text` as one value. kDataLoss: not JSON, not UTF-8, too deep, a key twice in an object.
// kUnimplemented: integers that 64 bits do not hold (of Python's dialect: of more than
// kIntegerBytesMax digits), and texts above kJsonBytesMax. Strings of the result are UTF-8, its
// depth is at most kJsonDepthMax. `file` is for messages.
Result<Json> ParseJson(std::string_view file, std::string_view text, JsonDialect dialect);

// Integers beyond 64 bits are values of the library's type "binary", which JSON has not: their
// decimal digits. Only kPython gives them, and only AppendPythonJson writes them.
inline constexpr size_t kIntegerBytesMax = 4300;  // what Python reads unless it is told otherwise
Json LargeInteger(std::string_view digits);
std::string LargeIntegerText(const Json& value);

// Writes JSON as json.dumps does, byte for byte.
void AppendPythonJson(const Json& value, std::string* out);
std::string PythonJson(const Json& value);
void AppendJsonExtents(std::span<const uint64_t> extents, std::string* out);  // "[300, 1000]"
// JSON that the caller of an encoder gave, spelled as json.dumps does; kInvalidArgument when it is
// none. `what` names it.
Result<std::string> CheckedUserJson(std::string_view what, std::string_view text);
// Writes JSON as TensorStore does: compact; no non-finite floats.
std::string CompactJson(const Json& value);

// A value and where it is. Nodes refer to the node that they came from: keep that as a variable.
class JsonNode {
 public:
  JsonNode(std::string_view file, const Json& value) : file_(file), value_(&value) {}

  const Json& value() const { return *value_; }

  // kDataLoss with file and place.
  Status Error(std::string_view what) const { return DataLossError(Place().append(what)); }
  // The same for what is right but not known here: kUnimplemented.
  Status Unknown(std::string_view what) const { return UnimplementedError(Place().append(what)); }

  // Members of an object. What is absent, or no object, is an error.
  Result<JsonNode> Member(std::string_view key) const&;
  Result<JsonNode> Member(std::string_view key) && = delete;
  // Nothing when it is absent (or this is not an object).
  std::optional<JsonNode> Find(std::string_view key) const&;
  std::optional<JsonNode> Find(std::string_view key) && = delete;
  // Nor when it is null.
  std::optional<JsonNode> FindValue(std::string_view key) const&;
  std::optional<JsonNode> FindValue(std::string_view key) && = delete;
  Status CheckObject() const;
  // No members but these: kUnimplemented.
  Status CheckMembers(std::initializer_list<std::string_view> known) const;
  // Element of an array, member of an object while iterating.
  JsonNode At(size_t index) const&;
  JsonNode At(size_t index) && = delete;
  JsonNode Child(std::string_view key, const Json& value) const&;
  Status CheckArray(size_t size_max) const;

  Result<std::string_view> Text() const;
  Result<bool> Bool() const;
  // An integer in [min, max].
  Result<uint64_t> Unsigned(uint64_t max) const;
  Result<int64_t> Signed() const;
  // A list of integers, at most kRankMax, each at least `extent_min`.
  Result<Shape> Extents(uint64_t extent_min) const;
  // The same of a member.
  Result<std::string_view> Text(std::string_view key) const;
  Result<Shape> Extents(std::string_view key, uint64_t extent_min) const;

 private:
  std::string Place() const;

  std::string_view file_;
  const Json* value_;
  const JsonNode* parent_ = nullptr;
  std::string_view key_;
  std::optional<size_t> index_;
};

}  // namespace stepwell::format::orbax
