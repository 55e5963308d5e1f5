// SPDX-License-Identifier: Apache-2.0
#include "api/python/transfer.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>

#include <cstring>
#include <tuple>
#include <utility>

#include "api/python/bindings.h"
#include "api/python/errors.h"
#include "api/python/interrupt.h"
#include "api/python/leaves.h"
#include "format/pushed.h"

namespace stepwell::python {

namespace nb = nanobind;

namespace {

ConstBytes BytesOf(const nb::bytes& bytes) {
  return {reinterpret_cast<const std::byte*>(bytes.c_str()), bytes.size()};
}
nb::bytes BytesObject(const std::string& bytes) { return nb::bytes(bytes.data(), bytes.size()); }

format::DataObject MakeObject(const nb::bytes& sha256, uint64_t salt, uint64_t size_bytes) {
  format::DataObject object{{}, salt, size_bytes};
  if (sha256.size() != object.sha256.size()) throw nb::value_error("a SHA-256 has 32 bytes");
  std::memcpy(object.sha256.data(), sha256.c_str(), object.sha256.size());
  return object;
}

nb::bytes Sha256Of(const format::DataObject& object) {
  return nb::bytes(object.sha256.data(), object.sha256.size());
}

// The bytes of a whole list or marker.
uint64_t ListBytes(const nb::bytes& header) {
  return ValueOrThrow(format::DecodePushedHeader(BytesOf(header))).size_bytes();
}

// The bytes of a list or marker that `pushed_head` needs.
uint64_t HeadBytes(const nb::bytes& bytes) {
  const auto header = ValueOrThrow(format::DecodePushedHeader(BytesOf(bytes)));
  return format::kPushedHeaderBytes + header.head_bytes;
}

format::PushedHead Head(const nb::bytes& bytes) {
  const ConstBytes all = BytesOf(bytes);
  return Call([&] { return format::DecodePushedHead(all); });
}

// The step's number, of a list that decodes.
uint64_t Step(const nb::bytes& bytes) {
  const ConstBytes all = BytesOf(bytes);
  return Call([&] { return format::DecodePushedStep(all); }).step->step;
}

nb::bytes Marker(const std::vector<format::DataObject>& objects) {
  return BytesObject(format::EncodePushMarker(objects));
}

Result<std::vector<format::PushedStep>> DecodeLists(const std::vector<ConstBytes>& lists) {
  std::vector<format::PushedStep> steps;
  for (const ConstBytes list : lists) {
    STEPWELL_ASSIGN_OR_RETURN(steps.emplace_back(), format::DecodePushedStep(list));
  }
  return steps;
}

}  // namespace

PushPlan::PushPlan(db::StoreReader* store, const Reader& reader,
                   const std::vector<nb::bytes>& lists)
    : pid_(getpid()) {
  std::vector<ConstBytes> bytes;
  bytes.reserve(lists.size());
  for (const nb::bytes& list : lists) bytes.push_back(BytesOf(list));
  plan_ = std::make_unique<db::PushPlan>(Call([&]() -> Result<db::PushPlan> {
    STEPWELL_ASSIGN_OR_RETURN(auto steps, DecodeLists(bytes));
    return db::PushPlan::Make(*store, reader.reader(), std::move(steps));
  }));
}

PushPlan::~PushPlan() {
  if (pid_ != getpid()) (void)plan_.release();  // it is the parent's
}

std::vector<uint64_t> PushPlan::Sizes() const {
  std::vector<uint64_t> sizes;
  for (size_t i = 0; i < plan_->object_count(); ++i) sizes.push_back(plan_->object_bytes(i));
  return sizes;
}

nb::bytes PushPlan::Read(size_t object) const {
  if (object >= plan_->object_count()) throw nb::index_error("no such object");
  return BytesObject(Call([&] { return plan_->Read(object); }));
}

nb::bytes PushPlan::List(const std::vector<format::DataObject>& made) const {
  if (made.size() != plan_->object_count()) throw nb::value_error("of each object one");
  return BytesObject(Call([&] { return plan_->List(made); }));
}

PullPlan::PullPlan(db::StoreReader* store, const nb::bytes& list, std::vector<std::string> items) {
  const ConstBytes bytes = BytesOf(list);
  plan_ = std::make_unique<db::PullPlan>(Call([&]() -> Result<db::PullPlan> {
    STEPWELL_ASSIGN_OR_RETURN(auto step, format::DecodePushedStep(bytes));
    db::PullOptions options;
    options.items = std::move(items);
    return db::PullPlan::Make(*store, std::move(step), options);
  }));
}

std::vector<std::tuple<size_t, uint64_t, uint64_t>> PullPlan::Ranges() const {
  std::vector<std::tuple<size_t, uint64_t, uint64_t>> ranges;
  for (const db::PullRange& range : plan_->ranges()) {
    ranges.emplace_back(range.object, range.offset_bytes, range.length_bytes);
  }
  return ranges;
}

void PullPlan::Accept(size_t range, const nb::bytes& bytes) {
  if (range >= plan_->ranges().size()) throw nb::index_error("no such range");
  const ConstBytes given = BytesOf(bytes);
  Call([&] { return plan_->Accept(range, given); });
}

db::SaveHandle PullPlan::Save(db::StoreWriter* store, const db::SaveRequest& request) {
  return RunInterruptible([&](const std::function<bool()>& keep_waiting) -> Result<db::SaveHandle> {
    STEPWELL_ASSIGN_OR_RETURN(db::SaveRequest made, plan_->Request());
    made.step = request.step;
    made.if_exists = request.if_exists;
    made.keep_waiting = keep_waiting;
    return store->Save(std::move(made));
  });
}

void BindTransfer(nb::module_& m) {
  using nb::arg;
  nb::class_<format::DataObject>(m, "DataObject")
      .def(
          "__init__",
          [](format::DataObject* self, const nb::bytes& sha256, uint64_t salt,
             uint64_t size_bytes) {
            new (self) format::DataObject(MakeObject(sha256, salt, size_bytes));
          },
          arg("sha256"), arg("salt"), arg("size_bytes"))
      .def_prop_ro("name", &format::DataObjectName)
      .def_prop_ro("sha256", &Sha256Of)
      .def_ro("salt", &format::DataObject::salt)
      .def_ro("size_bytes", &format::DataObject::size_bytes);
  nb::class_<format::PushedHead>(m, "PushedHead")
      .def_prop_ro("step",
                   [](const format::PushedHead& head) {
                     return head.step ? std::optional(head.step->step) : std::nullopt;
                   })
      .def_prop_ro("taint",
                   [](const format::PushedHead& head) {
                     return TextObject(head.step ? head.step->taint : std::string());
                   })
      .def_prop_ro(
          "items",
          [](const format::PushedHead& head) {
            nb::list names;
            if (!head.step) return names;
            for (const auto& item : head.step->items) names.append(TextObject(item.name));
            return names;
          },
          nb::sig("def items(self) -> list[str]"))
      .def_prop_ro(
          "stored_bytes",
          [](const format::PushedHead& head) { return head.step ? head.step->stored_bytes : 0; })
      .def_ro("objects", &format::PushedHead::objects);
  m.attr("PUSHED_HEADER_BYTES") = format::kPushedHeaderBytes;
  m.def("pushed_head_bytes", &HeadBytes, arg("header"));
  m.def("pushed_list_bytes", &ListBytes, arg("header"));
  m.def("pushed_head", &Head, arg("data"));
  m.def("pushed_step", &Step, arg("data"));
  m.def("push_marker", &Marker, arg("objects"));
  nb::class_<PushPlan>(m, "PushPlan")
      .def_prop_ro("sizes", &PushPlan::Sizes)
      .def_prop_ro("referred", &PushPlan::Referred)
      .def("read", &PushPlan::Read, arg("object"))
      .def("list", &PushPlan::List, arg("made"));
  nb::class_<PullPlan>(m, "PullPlan")
      .def_prop_ro("ranges", &PullPlan::Ranges)
      .def("accept", &PullPlan::Accept, arg("range"), arg("data"));
}

}  // namespace stepwell::python
