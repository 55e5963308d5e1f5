// SPDX-License-Identifier: Apache-2.0
#include "format/orbax/ocdbt.h"

namespace stepwell::format::orbax {

Status CheckOcdbtPath(std::string_view path) {
  constexpr std::string_view kLock = ".__lock";
  const auto bad = [path](std::string_view what) {
    return InvalidArgumentError(StrCat("OCDBT file name \"", path.substr(0, 200), "\": ", what));
  };
  if (path.size() > kOcdbtPathBytesMax) return bad("longer than 65535 bytes");
  if (path.find('\0') != std::string_view::npos) return bad("has a NUL byte");
  for (std::string_view rest = path;;) {
    const size_t slash = rest.find('/');
    const std::string_view component = rest.substr(0, slash);
    if (component.empty()) return bad("absolute, empty, or with an empty component");
    if (component == "." || component == "..") return bad("has the component . or ..");
    if (component.size() >= kLock.size() &&
        component.substr(component.size() - kLock.size()) == kLock) {
      return bad("TensorStore takes names that end in .__lock for locks");
    }
    if (slash == std::string_view::npos) return OkStatus();
    rest.remove_prefix(slash + 1);
  }
}

}  // namespace stepwell::format::orbax
