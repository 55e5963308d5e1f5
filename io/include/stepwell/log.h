// SPDX-License-Identifier: Apache-2.0
// The sink of log lines: a callback given at open, silent by default. Any thread may call it. It
// must not call back into the store.
#pragma once

#include <functional>
#include <string_view>

namespace stepwell {

enum class LogLevel { kDebug, kInfo, kWarning, kError };
using LogSink = std::function<void(LogLevel, std::string_view)>;

inline void Log(const LogSink& sink, LogLevel level, std::string_view message) {
  if (sink) sink(level, message);
}

}  // namespace stepwell
