// SPDX-License-Identifier: Apache-2.0
#include "format/orbax/json.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <vector>

#include "format/orbax/orbax_files.h"

namespace stepwell::format::orbax {
namespace {

// A number of the text, counted from its start, that is not JSON's, or not the parser's: spelled
// NaN, Infinity or -Infinity, or an integer that 64 bits do not hold.
struct PythonNumber {
  uint64_t number = 0;
  Json value;
};

bool IsLetter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool IsDigit(char c) { return c >= '0' && c <= '9'; }
// Stands for itself in a string, as nearly all do.
bool IsPlain(char c) { return c >= ' ' && c <= '~' && c != '"' && c != '\\'; }

size_t StringEnd(std::string_view text, size_t start) {
  size_t i = start + 1;
  while (i < text.size() && text[i] != '"') i += text[i] == '\\' ? 2 : 1;
  return std::min(i + 1, text.size());
}

// An integer with fewer digits fits in 64 bits.
constexpr size_t kDigitsMin = 18;

bool HasManyDigits(std::string_view text) {
  size_t digits = 0;
  for (const char c : text) {
    digits = IsDigit(c) ? digits + 1 : 0;
    if (digits > kDigitsMin) return true;
  }
  return false;
}

// Returns true if `token` is an integer beyond 64 bits, within the bounds of what is read.
bool IsLargeInteger(std::string_view token) {
  if (token.size() <= kDigitsMin || token.size() > kIntegerBytesMax) return false;
  const std::string_view digits = token.substr(token.front() == '-' ? 1 : 0);
  if (digits.front() == '0' || !std::all_of(digits.begin(), digits.end(), IsDigit)) return false;
  int64_t number = 0;
  uint64_t large = 0;
  const char* const end = token.data() + token.size();
  return std::from_chars(token.data(), end, number).ec != std::errc() &&
         std::from_chars(token.data(), end, large).ec != std::errc();
}

// Writes a zero over each such number, with blanks around it so that no neighbours join, and
// says which numbers these were. Other text stays: the parser refuses what is wrong in it.
std::vector<PythonNumber> ReplaceNumbers(std::string* text) {
  std::vector<PythonNumber> found;
  uint64_t numbers = 0;
  const std::string_view all = *text;
  size_t i = 0;
  while (i < all.size()) {
    const size_t start = i;
    if (all[i] == '"') {
      i = StringEnd(all, i);
      continue;
    }
    const bool negative = all[i] == '-' && i + 1 < all.size() && IsLetter(all[i + 1]);
    if (negative) ++i;
    if (IsLetter(all[i])) {
      const size_t word_start = i;
      while (i < all.size() && (IsLetter(all[i]) || IsDigit(all[i]))) ++i;
      const std::string_view word = all.substr(word_start, i - word_start);
      if (word != "Infinity" && (word != "NaN" || negative)) continue;
      const double infinity = std::numeric_limits<double>::infinity();
      found.push_back({numbers++, word == "NaN" ? std::numeric_limits<double>::quiet_NaN()
                                                : (negative ? -infinity : infinity)});
      text->replace(start, i - start, i - start, ' ');
      (*text)[start + 1] = '0';
    } else if (IsDigit(all[i]) || all[i] == '-') {
      while (i < all.size() && (IsDigit(all[i]) || IsLetter(all[i]) || all[i] == '+' ||
                                all[i] == '-' || all[i] == '.')) {
        ++i;
      }
      const std::string_view token = all.substr(start, i - start);
      if (IsLargeInteger(token)) {
        found.push_back({numbers, LargeInteger(token)});
        text->replace(start, i - start, i - start, ' ');
        (*text)[start + 1] = '0';
      }
      ++numbers;
    } else {
      ++i;
    }
  }
  return found;
}

// Builds the value while nlohmann reads it, without recursion.
class Builder : public nlohmann::json_sax<Json> {
 public:
  Builder(std::string_view file, std::vector<PythonNumber> replaced)
      : file_(file), replaced_(std::move(replaced)) {}

  bool null() override { return Add(nullptr); }
  bool boolean(bool value) override { return Add(value); }
  bool number_integer(number_integer_t value) override { return ++numbers_, Add(value); }
  bool number_unsigned(number_unsigned_t value) override {
    // Zeros are written over those numbers, and a zero is unsigned.
    if (next_ < replaced_.size() && replaced_[next_].number == numbers_) {
      ++numbers_;
      return Add(std::move(replaced_[next_++].value));
    }
    return ++numbers_, Add(value);
  }
  bool number_float(number_float_t value, const string_t& text) override {
    ++numbers_;
    if (text.find_first_of(".eE") == std::string::npos) {
      return Fail(TooLarge(text));
    }
    return Add(value);
  }
  bool string(string_t& value) override { return Add(std::move(value)); }
  bool binary(binary_t&) override { return Fail(DataLossError(StrCat(file_, ": not JSON"))); }
  bool start_object(size_t) override { return Open(); }
  bool start_array(size_t) override { return Open(); }
  bool key(string_t& value) override {
    open_.back().keys.push_back(std::move(value));
    return true;
  }
  bool end_object() override {
    Level frame = std::move(open_.back());
    open_.pop_back();
    std::vector<std::string_view> sorted(frame.keys.begin(), frame.keys.end());
    std::sort(sorted.begin(), sorted.end());
    const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
    if (twice != sorted.end()) {
      return Fail(DataLossError(
          StrCat(file_, ": the key \"", Printable(*twice), "\" is in one object twice")));
    }
    Json object = Json::object();
    auto& members = object.get_ref<Json::object_t&>();
    // Keys in it are const, so that growing would copy every member; and its own way to add one
    // looks through all that are there.
    members.reserve(frame.keys.size());
    for (size_t i = 0; i < frame.keys.size(); ++i) {
      members.push_back({std::move(frame.keys[i]), std::move(frame.values[i])});
    }
    return Add(std::move(object));
  }
  bool end_array() override {
    Json array = std::move(open_.back().values);
    open_.pop_back();
    return Add(std::move(array));
  }
  bool parse_error(size_t position, const std::string& last_token,
                   const nlohmann::detail::exception& error) override {
    constexpr int kNumberOverflow = 406;
    if (error.id == kNumberOverflow && last_token.find_first_of(".eE") == std::string::npos) {
      return Fail(TooLarge(last_token));
    }
    const std::string_view what = error.what();
    const size_t detail = what.find(": ");
    return Fail(DataLossError(StrCat(
        file_, ": not JSON at byte ", position, ", near \"", Printable(last_token),
        "\": ", Printable(detail == std::string_view::npos ? what : what.substr(detail + 2)))));
  }

  Result<Json> Take() {
    if (!status_.ok()) return status_;
    return std::move(root_);
  }

 private:
  bool Fail(Status status) {
    status_ = std::move(status);
    return false;
  }
  Status TooLarge(std::string_view integer) const {
    if (integer.size() > kIntegerBytesMax) {
      return UnimplementedError(
          StrCat(file_, ": an integer of more than ", kIntegerBytesMax, " digits"));
    }
    return UnimplementedError(
        StrCat(file_, ": the integer ", Printable(integer), " is beyond 64 bits"));
  }
  template <typename T>
  bool Add(T value) {
    if (open_.empty()) {
      root_ = std::move(value);
    } else {
      open_.back().values.emplace_back(std::move(value));
    }
    return true;
  }
  bool Open() {
    if (open_.size() == kJsonDepthMax) {
      return Fail(
          DataLossError(StrCat(file_, ": JSON is nested deeper than ", kJsonDepthMax, " levels")));
    }
    open_.emplace_back();
    return true;
  }

  // An array or object that has not ended; of an object each value has its key.
  struct Level {
    std::vector<std::string> keys;
    Json::array_t values;
  };

  const std::string_view file_;
  std::vector<PythonNumber> replaced_;
  size_t next_ = 0;  // of replaced_
  uint64_t numbers_ = 0;
  Json root_;
  std::vector<Level> open_;
  Status status_;
};

}  // namespace

Result<Json> ParseJson(std::string_view file, std::string_view text, JsonDialect dialect) {
  if (text.size() > kJsonBytesMax) {
    return UnimplementedError(
        StrCat(file, ": ", text.size(), " bytes of JSON, more than ", kJsonBytesMax));
  }
  // nlohmann takes NUL for the end of the text.
  if (const size_t nul = text.find('\0'); nul != std::string_view::npos) {
    return DataLossError(StrCat(file, ": not JSON at byte ", nul, ": NUL"));
  }
  std::string replaced;
  std::vector<PythonNumber> numbers;
  if (dialect == JsonDialect::kPython &&
      (text.find("NaN") != std::string_view::npos ||
       text.find("Infinity") != std::string_view::npos || HasManyDigits(text))) {
    replaced = text;
    numbers = ReplaceNumbers(&replaced);
    text = replaced;
  }
  Builder builder(file, std::move(numbers));
  Json::sax_parse(text.begin(), text.end(), &builder);
  return builder.Take();
}

Json LargeInteger(std::string_view digits) { return Json::binary({digits.begin(), digits.end()}); }

std::string LargeIntegerText(const Json& value) {
  const auto& bytes = value.get_binary();
  return {bytes.begin(), bytes.end()};
}

void AppendJsonString(std::string_view text, std::string* out) {
  if (std::all_of(text.begin(), text.end(), IsPlain)) {
    out->append(1, '"').append(text).push_back('"');
    return;
  }
  out->append(Json(text).dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace));
}

void AppendJsonStringUtf8(std::string_view text, std::string* out) {
  out->append(CompactJson(Json(text)));
}

void AppendPythonJson(const Json& value, std::string* out) {
  switch (value.type()) {
    case Json::value_t::object: {
      std::string_view separator = "";
      out->push_back('{');
      for (const auto& [key, member] : value.get_ref<const Json::object_t&>()) {
        out->append(separator);
        AppendJsonString(key, out);
        out->append(": ");
        AppendPythonJson(member, out);
        separator = ", ";
      }
      out->push_back('}');
      return;
    }
    case Json::value_t::array: {
      std::string_view separator = "";
      out->push_back('[');
      for (const Json& element : value) {
        out->append(separator);
        AppendPythonJson(element, out);
        separator = ", ";
      }
      out->push_back(']');
      return;
    }
    case Json::value_t::string:
      return AppendJsonString(value.get_ref<const std::string&>(), out);
    case Json::value_t::binary:
      return void(out->append(LargeIntegerText(value)));
    case Json::value_t::number_float:
      return AppendJsonFloat(value.get<double>(), out);
    default:
      out->append(value.dump());  // null, true, false, integers
  }
}

Result<std::string> CheckedUserJson(std::string_view what, std::string_view text) {
  Result<std::string> normal = NormalJson(what, text);
  if (!normal.ok()) return InvalidArgumentError(normal.status().message());
  return normal;
}

void AppendJsonExtents(std::span<const uint64_t> extents, std::string* out) {
  std::string_view separator = "[";
  for (const uint64_t extent : extents) {
    out->append(separator).append(std::to_string(extent));
    separator = ", ";
  }
  out->append(extents.empty() ? "[]" : "]");
}

std::string PythonJson(const Json& value) {
  std::string out;
  AppendPythonJson(value, &out);
  return out;
}

Result<std::string> NormalJson(std::string_view file, std::string_view text) {
  STEPWELL_ASSIGN_OR_RETURN(const Json json, ParseJson(file, text, JsonDialect::kPython));
  return PythonJson(json);
}

Result<std::string> NormalJsonObject(std::string_view file, std::string_view text) {
  STEPWELL_ASSIGN_OR_RETURN(const Json json, ParseJson(file, text, JsonDialect::kPython));
  STEPWELL_RETURN_IF_ERROR(JsonNode(file, json).CheckObject());
  return PythonJson(json);
}

std::string CompactJson(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Result<JsonNode> JsonNode::Member(std::string_view key) const& {
  STEPWELL_RETURN_IF_ERROR(CheckObject());
  const std::optional<JsonNode> member = Find(key);
  if (!member) return Error(StrCat("no \"", key, "\""));
  return *member;
}

std::optional<JsonNode> JsonNode::Find(std::string_view key) const& {
  if (!value_->is_object()) return std::nullopt;
  for (const auto& [name, member] : value_->get_ref<const Json::object_t&>()) {
    if (name == key) return Child(name, member);
  }
  return std::nullopt;
}

std::optional<JsonNode> JsonNode::FindValue(std::string_view key) const& {
  std::optional<JsonNode> node = Find(key);
  return node && !node->value().is_null() ? node : std::nullopt;
}

Status JsonNode::CheckObject() const {
  if (value_->is_object()) return OkStatus();
  return Error(StrCat("an object is expected, not ", value_->type_name()));
}

Status JsonNode::CheckMembers(std::initializer_list<std::string_view> known) const {
  STEPWELL_RETURN_IF_ERROR(CheckObject());
  for (const auto& member : value_->get_ref<const Json::object_t&>()) {
    if (std::find(known.begin(), known.end(), member.first) == known.end()) {
      return Unknown(StrCat("\"", Printable(member.first), "\" is not known here"));
    }
  }
  return OkStatus();
}

JsonNode JsonNode::At(size_t index) const& {
  JsonNode node(file_, (*value_)[index]);
  node.parent_ = this;
  node.index_ = index;
  return node;
}

JsonNode JsonNode::Child(std::string_view key, const Json& value) const& {
  JsonNode node(file_, value);
  node.parent_ = this;
  node.key_ = key;
  return node;
}

Status JsonNode::CheckArray(size_t size_max) const {
  if (!value_->is_array()) {
    return Error(StrCat("a list is expected, not ", value_->type_name()));
  }
  if (value_->size() > size_max) {
    return Error(StrCat("a list of ", value_->size(), ", more than ", size_max));
  }
  return OkStatus();
}

Result<std::string_view> JsonNode::Text() const {
  if (!value_->is_string()) return Error(StrCat("text is expected, not ", value_->type_name()));
  return std::string_view(value_->get_ref<const std::string&>());
}

Result<bool> JsonNode::Bool() const {
  if (!value_->is_boolean()) {
    return Error(StrCat("true or false is expected, not ", value_->type_name()));
  }
  return value_->get<bool>();
}

Result<uint64_t> JsonNode::Unsigned(uint64_t max) const {
  if (!value_->is_number_unsigned()) return Error("an integer that is not negative is expected");
  const auto number = value_->get<uint64_t>();
  if (number > max) return Error(StrCat(number, " is more than ", max));
  return number;
}

Result<int64_t> JsonNode::Signed() const {
  if (value_->is_number_unsigned()) {
    STEPWELL_ASSIGN_OR_RETURN(const uint64_t number, Unsigned(INT64_MAX));
    return static_cast<int64_t>(number);
  }
  if (!value_->is_number_integer()) return Error("an integer is expected");
  return value_->get<int64_t>();
}

Result<Shape> JsonNode::Extents(uint64_t extent_min) const {
  STEPWELL_RETURN_IF_ERROR(CheckArray(kRankMax));
  Shape shape;
  for (size_t i = 0; i < value_->size(); ++i) {
    const JsonNode element = At(i);
    STEPWELL_ASSIGN_OR_RETURN(const uint64_t extent, element.Unsigned(uint64_t{1} << 62));
    if (extent < extent_min) return element.Error(StrCat(extent, " is less than ", extent_min));
    shape.push_back(extent);
  }
  return shape;
}

Result<std::string_view> JsonNode::Text(std::string_view key) const {
  STEPWELL_ASSIGN_OR_RETURN(const JsonNode node, Member(key));
  return node.Text();
}

Result<Shape> JsonNode::Extents(std::string_view key, uint64_t extent_min) const {
  STEPWELL_ASSIGN_OR_RETURN(const JsonNode node, Member(key));
  return node.Extents(extent_min);
}

std::string JsonNode::Place() const {
  std::vector<const JsonNode*> path;
  for (const JsonNode* node = this; node != nullptr; node = node->parent_) path.push_back(node);
  std::string place = StrCat(file_, ": ");
  std::string_view separator = "";
  for (auto node = path.rbegin() + 1; node != path.rend(); ++node) {
    if ((*node)->index_) {
      place.append(StrCat("[", *(*node)->index_, "]"));
    } else {
      place.append(separator).append(Printable((*node)->key_));
    }
    separator = ".";
  }
  return path.size() > 1 ? place.append(": ") : place;
}

}  // namespace stepwell::format::orbax
