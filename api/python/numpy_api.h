// SPDX-License-Identifier: Apache-2.0
// NumPy's C API, one table for the whole module (records.cc imports it).
#pragma once

#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#define PY_ARRAY_UNIQUE_SYMBOL stepwell_numpy_api
#ifndef STEPWELL_NUMPY_IMPORT
#define NO_IMPORT_ARRAY
#endif

#include <nanobind/nanobind.h>

#include <numpy/arrayobject.h>
