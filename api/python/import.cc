// SPDX-License-Identifier: Apache-2.0
#include "api/python/import.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <map>
#include <optional>
#include <utility>

#include "api/python/bindings.h"
#include "api/python/errors.h"
#include "api/python/gil.h"
#include "api/python/interrupt.h"
#include "db/export/orbax/digests.h"
#include "db/import/import.h"
#include "io/open_disk.h"

namespace stepwell::python {
namespace {

namespace nb = nanobind;

// Directories are read, perhaps of a slow file system.
template <typename Function>
auto WithoutGil(Function&& function) {
  const GilReleased release;
  return function();
}

// Returns the steps in a manager's root, with their directories; none for any other directory.
std::map<uint64_t, std::string> OrbaxSteps(const std::string& path) {
  auto found = WithoutGil([&] { return db::FindOrbaxSteps(io::LocalFileSystem(), path); });
  std::map<uint64_t, std::string> steps;
  for (db::OrbaxStep& step : ValueOrThrow(std::move(found))) {
    steps.emplace(step.step, std::move(step.path));
  }
  return steps;
}

// The step that a checkpoint's directory is named after.
std::optional<uint64_t> OrbaxStepOf(const std::string& path) {
  auto checkpoint =
      WithoutGil([&] { return db::OrbaxCheckpoint::Open(io::LocalFileSystem(), path); });
  return ValueOrThrow(std::move(checkpoint)).step();
}

std::optional<std::string> CarryDigests(const std::string& checkpoint,
                                        const std::vector<std::string>& items, bool is_item,
                                        const std::string& deleted, const std::string& metadata) {
  return Call([&] {
    return db::CarryDigests(io::LocalFileSystem(), checkpoint, items, is_item, deleted, metadata);
  });
}

std::vector<std::string> MissingItems(const std::string& checkpoint) {
  return Call([&] { return db::MissingItems(io::LocalFileSystem(), checkpoint); });
}

}  // namespace

ImportPlan::ImportPlan(const std::string& path, std::vector<std::string> items)
    : plan_(RunInterruptible([&](const std::function<bool()>&) -> Result<db::ImportPlan> {
        STEPWELL_ASSIGN_OR_RETURN(const db::OrbaxCheckpoint checkpoint,
                                  db::OrbaxCheckpoint::Open(io::LocalFileSystem(), path));
        db::ImportOptions options;
        options.items = std::move(items);
        return db::ImportPlan::Make(checkpoint, options);
      })) {}

nb::bytes ImportPlan::Identity() const {
  const std::string identity = ValueOrThrow(WithoutGil([this] { return plan_.Identity(); }));
  return nb::bytes(identity.data(), identity.size());
}

db::SaveHandle ImportPlan::Save(db::StoreWriter* store, const db::SaveRequest& request,
                                const db::ImportShare& share) {
  return RunInterruptible([&](const std::function<bool()>& keep_waiting) -> Result<db::SaveHandle> {
    db::ImportOptions options;
    options.keep_waiting = keep_waiting;
    STEPWELL_ASSIGN_OR_RETURN(db::SaveRequest made, plan_.Read(request.step, share, options));
    made.if_exists = request.if_exists;
    made.keep_waiting = keep_waiting;
    made.group = request.group;
    return store->Save(std::move(made));
  });
}

void BindImport(nb::module_& m) {
  m.def("orbax_steps", &OrbaxSteps, nb::arg("path"));
  m.def("orbax_step_of", &OrbaxStepOf, nb::arg("path"));
  m.def("carry_digests", &CarryDigests, nb::arg("checkpoint"), nb::arg("items"), nb::arg("is_item"),
        nb::arg("deleted"), nb::arg("metadata"));
  m.def("missing_items", &MissingItems, nb::arg("checkpoint"));
  nb::class_<ImportPlan>(m, "ImportPlan")
      .def(nb::init<const std::string&, std::vector<std::string>>(), nb::arg("path"),
           nb::arg("items"))
      .def("identity", &ImportPlan::Identity)
      .def("items", &ImportPlan::Items);
}

}  // namespace stepwell::python
