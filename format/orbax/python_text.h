// SPDX-License-Identifier: Apache-2.0
// Text as Python writes it: repr of strings and floats, and strings of json.dumps.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace stepwell::format::orbax {

// Well-formed: no surrogates, nothing overlong, nothing above U+10FFFF.
bool IsUtf8(std::string_view text);
// Takes the first code point off `text`; nothing when it does not begin with a whole one.
std::optional<char32_t> TakeCodePoint(std::string_view* text);

// Text for messages, whatever the bytes: what is not printable ASCII is escaped, long text is cut.
std::string Printable(std::string_view bytes);

// str.isprintable() of one character, as of Unicode 14 (Python 3.11).
bool IsPrintable(char32_t code_point);

// These functions append to `out`. `text` is UTF-8. Callers refuse other text, and here bytes that
// are not UTF-8 become U+FFFD. repr(str): 'a', "it's", '\n', '\u200b'.
void AppendPythonRepr(std::string_view text, std::string* out);
// json.dumps(str), in ASCII.
void AppendJsonString(std::string_view text, std::string* out);
// The same as TensorStore writes it: UTF-8.
void AppendJsonStringUtf8(std::string_view text, std::string* out);
// json.dumps(float): 1.0, 1e-05, 1e+16, NaN, -Infinity.
void AppendJsonFloat(double value, std::string* out);

}  // namespace stepwell::format::orbax
