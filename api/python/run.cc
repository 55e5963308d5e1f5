// SPDX-License-Identifier: Apache-2.0
#include "api/python/run.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <utility>
#include <vector>

#include "api/python/errors.h"
#include "api/python/gil.h"
#include "db/store/run_store.h"

namespace stepwell::python {
namespace {

namespace nb = nanobind;

class PythonObjects final : public db::RunObjects {
 public:
  PythonObjects(nb::object objects, std::string name)
      : objects_(std::move(objects)), name_(std::move(name)) {}
  ~PythonObjects() override {
    const GilHeld acquire;
    objects_.reset();
  }
  PythonObjects(const PythonObjects&) = delete;
  PythonObjects& operator=(const PythonObjects&) = delete;

  const std::string& name() const override { return name_; }

  Result<std::vector<uint64_t>> Steps() override {
    return Ask([this] { return nb::cast<std::vector<uint64_t>>(objects_.attr("steps")()); });
  }
  Result<std::string> ListHead(uint64_t step) override {
    return Ask([&] { return Copy(objects_.attr("list_head")(step)); });
  }
  Result<std::string> List(uint64_t step) override {
    return Ask([&] { return Copy(objects_.attr("list")(step)); });
  }
  Result<size_t> Read(const std::string& object, uint64_t offset_bytes, MutableBytes out) override {
    return Ask([&] {
      const auto data =
          nb::cast<nb::bytes>(objects_.attr("read")(object, offset_bytes, out.size()));
      const size_t count = std::min(data.size(), out.size());
      std::memcpy(out.data(), data.c_str(), count);
      return count;
    });
  }
  void DropCached(const std::string& object) override {
    Ask([&] {
      objects_.attr("drop_cached")(object);
      return true;
    })
        .status()
        .IgnoreError("then it is read as it is kept");
  }

 private:
  static std::string Copy(const nb::object& object) {
    const auto data = nb::cast<nb::bytes>(object);
    return {data.c_str(), data.size()};
  }

  template <typename Function>
  static auto Ask(Function function) -> Result<decltype(function())> {
    const GilHeld acquire;
    try {
      return function();
    } catch (const nb::python_error& error) {
      return StatusOf(error);
    } catch (const nb::cast_error&) {
      return InternalError("an object of another type than run_objects.py says");
    }
  }

  nb::object objects_;
  const std::string name_;
};

}  // namespace

Result<std::unique_ptr<db::Store>> OpenRun(nb::object objects, std::string name,
                                           const db::StoreOptions& options) {
  return db::RunStore::Open(std::make_shared<PythonObjects>(std::move(objects), std::move(name)),
                            options);
}

}  // namespace stepwell::python
