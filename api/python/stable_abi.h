// SPDX-License-Identifier: Apache-2.0
// In front of each file where the module is built for Python's stable ABI, which has functions in
// the place of these macros. They give borrowed references, too.
#pragma once

#include <Python.h>

#ifdef Py_LIMITED_API
#define Py_INCREF(object) Py_INCREF(reinterpret_cast<PyObject*>(object))
#define PyBytes_AS_STRING PyBytes_AsString
#define PyBytes_GET_SIZE PyBytes_Size
#define PyList_GET_ITEM PyList_GetItem
#define PyList_GET_SIZE PyList_Size
#define PyTuple_GET_ITEM PyTuple_GetItem
#define PyTuple_GET_SIZE PyTuple_Size
#define PyTuple_SET_ITEM PyTuple_SetItem
#endif
