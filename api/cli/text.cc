// SPDX-License-Identifier: Apache-2.0
#include "api/cli/text.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <ctime>
#include <numeric>

#include "io/bytes.h"

namespace stepwell::cli {
namespace {

constexpr int64_t kSecondNanos = 1'000'000'000;

std::string FormatTime(const std::tm& time, char between) {
  std::array<char, 64> buffer{};
  std::snprintf(buffer.data(), buffer.size(), "%04d-%02d-%02d%c%02d:%02d:%02d", time.tm_year + 1900,
                time.tm_mon + 1, time.tm_mday, between, time.tm_hour, time.tm_min, time.tm_sec);
  return buffer.data();
}

// Seconds rounded down, so that the rest is never negative.
std::time_t FloorSeconds(int64_t time_ns) {
  return static_cast<std::time_t>((time_ns - (time_ns < 0 ? kSecondNanos - 1 : 0)) / kSecondNanos);
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

std::string LocalTime(int64_t time_ns) {
  const std::time_t seconds = FloorSeconds(time_ns);
  std::tm parts{};
  if (localtime_r(&seconds, &parts) == nullptr) return "-";
  return FormatTime(parts, ' ');
}

std::string UtcTime(int64_t time_ns) {
  const std::time_t seconds = FloorSeconds(time_ns);
  std::tm parts{};
  if (gmtime_r(&seconds, &parts) == nullptr) return "-";
  std::array<char, 32> fraction{};
  std::snprintf(fraction.data(), fraction.size(), ".%09lldZ",
                static_cast<long long>(time_ns - int64_t{seconds} * kSecondNanos));
  return FormatTime(parts, 'T') + fraction.data();
}

std::string ShapeText(const format::Shape& shape) {
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

size_t EditDistance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substituted = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substituted});
    }
  }
  return row[b.size()];
}

}  // namespace stepwell::cli
