// SPDX-License-Identifier: Apache-2.0
#include <stepwell/metrics.h>

namespace stepwell {

std::string StrictJson(std::string_view python_json) {
  std::string out;
  bool in_string = false;
  for (size_t i = 0; i < python_json.size(); ++i) {
    if (in_string && python_json[i] == '\\') {
      out += python_json.substr(i++, 2);
      continue;
    }
    if (python_json[i] == '"') in_string = !in_string;
    bool replaced = false;
    for (const std::string_view word : {"NaN", "Infinity", "-Infinity"}) {
      if (in_string || !python_json.substr(i).starts_with(word)) continue;
      out.append("\"").append(word).append("\"");
      i += word.size() - 1;
      replaced = true;
      break;
    }
    if (!replaced) out += python_json[i];
  }
  return out;
}

}  // namespace stepwell
