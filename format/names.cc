// SPDX-License-Identifier: Apache-2.0
#include "format/names.h"

#include "io/bytes.h"

namespace stepwell::format {

std::string NameOf(ContainerKind container) {
  switch (container) {
    case ContainerKind::kDict:
      return "dict";
    case ContainerKind::kList:
      return "list";
    case ContainerKind::kTuple:
      return "tuple";
    case ContainerKind::kNamedTuple:
      return "namedtuple";
    case ContainerKind::kObject:
      return "object";
    case ContainerKind::kNotContainer:
      break;
  }
  return "node";
}

std::string NameOf(ValueType type) {
  switch (type) {
    case ValueType::kNone:
      return "None";
    case ValueType::kNumpyArray:
      return "numpy";
    case ValueType::kJaxArray:
      return "jax";
    case ValueType::kNumpyScalar:
      return "numpy scalar";
    case ValueType::kPrngKey:
      return "jax key";
    case ValueType::kInt:
      return "int";
    case ValueType::kFloat:
      return "float";
    case ValueType::kBool:
      return "bool";
    case ValueType::kStr:
      return "str";
    case ValueType::kBytes:
      return "bytes";
    case ValueType::kComplex:
      return "complex";
  }
  return StrCat("type ", static_cast<unsigned>(type));
}

}  // namespace stepwell::format
