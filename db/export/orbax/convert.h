// SPDX-License-Identifier: Apache-2.0
// Elements as the next wider type that NumPy has: every value of the narrow one is one of it. Pure.
#pragma once

#include "format/dtype.h"
#include "io/bytes.h"

namespace stepwell::db {

// kInvalid for types that NumPy itself has, and for those that nothing wider holds.
format::DType WiderNumpyType(format::DType dtype);

// `from` as stored, with zero high bits; `to` is WiderNumpyType(dtype); `out` has as many elements.
// NaNs keep their sign, not their payload.
void WidenElements(format::DType dtype, ConstBytes from, MutableBytes out);

// The bits of a number that float16 has.
uint16_t Float16Bits(double value);

}  // namespace stepwell::db
