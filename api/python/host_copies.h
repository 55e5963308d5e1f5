// SPDX-License-Identifier: Apache-2.0
// The shards of a save that are on other devices than the CPU.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "db/store.h"
#include "format/grid.h"

namespace stepwell::python {

// Has an object of Python's (HostCopies of stepwell/_pytree/host_copies.py) make the copies. Takes
// the GIL in every call but the destructor, which may run on a thread that must not.
class HostCopies final : public db::FarSource {
 public:
  // `make`: that class, which outlives the calls of Add. `keeps_error`: for TakeError. Needs the
  // GIL, as Add does.
  HostCopies(nanobind::handle make, bool keeps_error) : make_(make), keeps_error_(keeps_error) {}
  ~HostCopies() override;
  HostCopies(const HostCopies&) = delete;
  HostCopies& operator=(const HostCopies&) = delete;

  // Notes a single-device jax.Array; its box in the engine's words, without origin.
  db::ShardInput Add(nanobind::handle shard);
  bool empty() const { return shapes_.empty(); }

  Status Start(std::span<const uint32_t> boxes) override;
  Status Wait(std::span<const uint32_t> boxes, std::vector<Copy>* copies) override;
  Status Release(std::span<const uint32_t> boxes) override;

  // What was raised in the call that failed, by JAX or a signal's handler; once. Needs the GIL.
  std::optional<nanobind::python_error> TakeError() { return std::exchange(error_, std::nullopt); }

 private:
  // Runs `call` with the GIL.
  template <typename Call>
  Status InPython(const Call& call);

  const nanobind::handle make_;
  nanobind::object copies_;            // null: there are no shards
  std::vector<format::Shape> shapes_;  // of the shards
  const bool keeps_error_;
  std::optional<nanobind::python_error> error_;
};

}  // namespace stepwell::python
