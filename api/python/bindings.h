// SPDX-License-Identifier: Apache-2.0
// The parts of the module, each in the file of its name (BindRows in leaves.cc). Order matters:
// defaults of arguments are made of what is bound by then.
#pragma once

#include <nanobind/nanobind.h>

namespace stepwell::python {

void BindArchive(nanobind::module_& m);
void BindDurable(nanobind::module_& m);
void BindEvents(nanobind::module_& m);
void BindExport(nanobind::module_& m);
void BindFlatten(nanobind::module_& m);
void BindGroup(nanobind::module_& m);
void BindImport(nanobind::module_& m);
void BindMatched(nanobind::module_& m);
void BindOverTime(nanobind::module_& m);
void BindPaths(nanobind::module_& m);
void BindReader(nanobind::module_& m);
void BindRecords(nanobind::module_& m);  // raises when NumPy's C API cannot be used
void BindReports(nanobind::module_& m);
void BindRequests(nanobind::module_& m);
void BindRows(nanobind::module_& m);
void BindSurvey(nanobind::module_& m);
void BindTransfer(nanobind::module_& m);
void BindTree(nanobind::module_& m);
void BindUpdate(nanobind::module_& m);
void BindView(nanobind::module_& m);
void BindWatch(nanobind::module_& m);

}  // namespace stepwell::python
