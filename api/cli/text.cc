// SPDX-License-Identifier: Apache-2.0
#include "api/cli/text.h"

#include <array>
#include <cstdio>
#include <ctime>

namespace stepwell::cli {
namespace {

std::string FormatTime(const std::tm& time, char between) {
  std::array<char, 64> buffer{};
  std::snprintf(buffer.data(), buffer.size(), "%04d-%02d-%02d%c%02d:%02d:%02d", time.tm_year + 1900,
                time.tm_mon + 1, time.tm_mday, between, time.tm_hour, time.tm_min, time.tm_sec);
  return buffer.data();
}

// Seconds rounded down, so that the rest is never negative.
std::time_t FloorSeconds(Time time) {
  return std::chrono::floor<std::chrono::seconds>(time).time_since_epoch().count();
}

}  // namespace

std::string HumanCount(uint64_t count) {
  const std::string digits = std::to_string(count);
  std::string text;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) text += ',';
    text += digits[i];
  }
  return text;
}

std::string Ratio(uint64_t logical_bytes, uint64_t stored_bytes) {
  if (stored_bytes == 0) return "-";
  std::array<char, 32> buffer{};
  std::snprintf(buffer.data(), buffer.size(), "%.2fx",
                static_cast<double>(logical_bytes) / static_cast<double>(stored_bytes));
  return buffer.data();
}

std::string LocalTime(Time time) {
  const std::time_t seconds = FloorSeconds(time);
  std::tm parts{};
  if (localtime_r(&seconds, &parts) == nullptr) return "-";
  return FormatTime(parts, ' ');
}

std::string UtcTime(Time time) {
  const std::time_t seconds = FloorSeconds(time);
  std::tm parts{};
  if (gmtime_r(&seconds, &parts) == nullptr) return "-";
  std::array<char, 32> fraction{};
  const std::chrono::nanoseconds rest = time.time_since_epoch() - std::chrono::seconds(seconds);
  std::snprintf(fraction.data(), fraction.size(), ".%09lldZ", static_cast<long long>(rest.count()));
  return FormatTime(parts, 'T') + fraction.data();
}

std::string ShapeText(std::span<const uint64_t> shape) {
  std::string text = "[";
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    text += StrCat(axis == 0 ? "" : ", ", shape[axis]);
  }
  return text + "]";
}

std::string Plural(uint64_t count, const std::string& one, const std::string& many) {
  return HumanCount(count) + " " + (count == 1 ? one : many);
}

std::string Printable(const std::string& text) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<uint8_t>(c);
    if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (byte < 0x20 || byte == 0x7F) {
      std::array<char, 8> escape{};
      std::snprintf(escape.data(), escape.size(), "\\x%02x", static_cast<unsigned>(byte));
      out += escape.data();
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace stepwell::cli
