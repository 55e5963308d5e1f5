// SPDX-License-Identifier: Apache-2.0
#include "api/cpp/cuda.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "api/cpp/step.h"
#include "db/mesh/staging_plan.h"
#include "format/dtype.h"
#include "io/buffer.h"
#include "io/bytes.h"

namespace stepwell {
namespace {

// While one half is copied to the GPUs the other is filled; of each NUMA node.
constexpr uint64_t kHalfBytes = uint64_t{64} << 20;
constexpr size_t kHalves = 2;

Status StatusOf(cudaError_t error, const char* operation) {
  if (error == cudaSuccess) return OkStatus();
  std::string text = StrCat(operation, ": ", cudaGetErrorString(error));
  if (error == cudaErrorMemoryAllocation) return ResourceExhaustedError(std::move(text));
  return UnavailableError(std::move(text));
}

// Makes a device the calling thread's, as CUDA wants it, and gives back the one before.
class CurrentDevice {
 public:
  CurrentDevice() { ok_ = cudaGetDevice(&before_) == cudaSuccess; }
  ~CurrentDevice() {
    if (ok_) cudaSetDevice(before_);
  }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

  static Status Set(int device) { return StatusOf(cudaSetDevice(device), "cudaSetDevice"); }

 private:
  int before_ = 0;
  bool ok_ = false;
};

// Host memory that GPUs copy from at full speed, on one NUMA node.
class PinnedMemory {
 public:
  PinnedMemory() = default;
  PinnedMemory(PinnedMemory&&) = delete;
  ~PinnedMemory() {
    if (registered_) cudaHostUnregister(memory_.data());
  }

  // `node`: -1 for any.
  Status Make(uint64_t size_bytes, int node) {
    memory_ = io::AlignedBuffer(size_bytes);
    if (!memory_) {
      return ResourceExhaustedError(StrCat("no memory for ", size_bytes, " bytes to copy from"));
    }
    if (node >= 0) {
      io::PreferNumaNode(memory_.bytes(), node).IgnoreError("farther memory is slower, not wrong");
    }
    STEPWELL_RETURN_IF_ERROR(
        StatusOf(cudaHostRegister(memory_.data(), memory_.size(), cudaHostRegisterPortable),
                 "cudaHostRegister"));
    registered_ = true;
    return OkStatus();
  }
  std::byte* data() { return memory_.data(); }

 private:
  io::AlignedBuffer memory_;
  bool registered_ = false;
};

// A GPU that is copied to: copies go in order, and an event follows those of each half.
class Device {
 public:
  explicit Device(int device) : device_(device) {}
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  ~Device() {
    if (stream_ == nullptr) return;
    cudaStreamSynchronize(stream_);  // nothing reads staging memory after this
    for (cudaEvent_t event : copied_) {
      if (event != nullptr) cudaEventDestroy(event);
    }
    cudaStreamDestroy(stream_);
  }

  Status Make() {
    STEPWELL_RETURN_IF_ERROR(CurrentDevice::Set(device_));
    STEPWELL_RETURN_IF_ERROR(StatusOf(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking),
                                      "cudaStreamCreateWithFlags"));
    for (cudaEvent_t& event : copied_) {
      STEPWELL_RETURN_IF_ERROR(StatusOf(cudaEventCreateWithFlags(&event, cudaEventDisableTiming),
                                        "cudaEventCreateWithFlags"));
    }
    int pitch_bytes = 0;
    STEPWELL_RETURN_IF_ERROR(
        StatusOf(cudaDeviceGetAttribute(&pitch_bytes, cudaDevAttrMaxPitch, device_),
                 "cudaDeviceGetAttribute"));
    pitch_bytes_max_ = static_cast<uint64_t>(pitch_bytes);
    return OkStatus();
  }

  // The NUMA node that it is attached to; -1 where it is unknown.
  int NumaNode() const {
    char bus_id[32] = {};
    if (cudaDeviceGetPCIBusId(bus_id, sizeof(bus_id), device_) != cudaSuccess) return -1;
    return io::NumaNodeOfPciDevice(bus_id);
  }

  Status Copy(std::byte* to, const std::byte* from, const db::RowsCopy& copy) {
    STEPWELL_RETURN_IF_ERROR(CurrentDevice::Set(device_));
    to += copy.to_bytes;
    from += copy.from_bytes;
    if (copy.rows == 1 || copy.to_pitch_bytes == copy.row_bytes) {
      return CopyBytes(to, from, copy.row_bytes * copy.rows);
    }
    if (copy.to_pitch_bytes <= pitch_bytes_max_) {
      return StatusOf(cudaMemcpy2DAsync(to, copy.to_pitch_bytes, from, copy.row_bytes,
                                        copy.row_bytes, copy.rows, cudaMemcpyHostToDevice, stream_),
                      "cudaMemcpy2DAsync");
    }
    for (uint64_t row = 0; row < copy.rows; ++row) {
      STEPWELL_RETURN_IF_ERROR(
          CopyBytes(to + row * copy.to_pitch_bytes, from + row * copy.row_bytes, copy.row_bytes));
    }
    return OkStatus();
  }

  // After the copies of a half.
  Status Mark(size_t half) {
    STEPWELL_RETURN_IF_ERROR(CurrentDevice::Set(device_));
    return StatusOf(cudaEventRecord(copied_[half], stream_), "cudaEventRecord");
  }
  // Until the copies of a half are done; one that was never marked has none.
  Status Wait(size_t half) {
    return StatusOf(cudaEventSynchronize(copied_[half]), "copying to a GPU");
  }

 private:
  Status CopyBytes(std::byte* to, const std::byte* from, uint64_t bytes) {
    return StatusOf(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream_),
                    "cudaMemcpyAsync");
  }

  const int device_;
  cudaStream_t stream_ = nullptr;
  std::array<cudaEvent_t, kHalves> copied_{};
  uint64_t pitch_bytes_max_ = 0;
};

class CudaLoad {
 public:
  CudaLoad(db::StepReader* reader, std::span<const db::LoadRequest> requests)
      : reader_(reader), requests_(requests) {}

  Result<LoadStats> Run() {
    STEPWELL_RETURN_IF_ERROR(FindDevices());
    batches_ = db::PlanStaging(targets_, kHalfBytes);
    STEPWELL_RETURN_IF_ERROR(MakeStaging());
    LoadStats total;
    for (size_t i = 0; i < batches_.size(); ++i) {
      const size_t half = i % kHalves;
      STEPWELL_RETURN_IF_ERROR(Wait(half));
      STEPWELL_ASSIGN_OR_RETURN(const LoadStats stats, Fill(batches_[i], half));
      total += stats;
      STEPWELL_RETURN_IF_ERROR(Send(batches_[i], half));
    }
    for (size_t half = 0; half < kHalves; ++half) STEPWELL_RETURN_IF_ERROR(Wait(half));
    return total;
  }

 private:
  Status FindDevices() {
    std::map<int, uint32_t> nears;  // by NUMA node
    for (const db::LoadRequest& request : requests_) {
      cudaPointerAttributes attributes{};
      STEPWELL_RETURN_IF_ERROR(
          StatusOf(cudaPointerGetAttributes(&attributes, request.out), "cudaPointerGetAttributes"));
      if (attributes.type != cudaMemoryTypeDevice && attributes.type != cudaMemoryTypeManaged) {
        return InvalidArgumentError(
            "the memory is not a GPU's, as cudaMalloc gives it; for the host's say kHost");
      }
      const auto [found, is_new] = devices_.try_emplace(attributes.device, attributes.device);
      if (is_new) {
        STEPWELL_RETURN_IF_ERROR(found->second.Make());
        const int node = found->second.NumaNode();
        const auto [near, is_new_node] =
            nears.emplace(node, static_cast<uint32_t>(numa_nodes_.size()));
        if (is_new_node) numa_nodes_.push_back(node);
        near_of_.emplace(attributes.device, near->second);
      }
      device_of_.push_back(&found->second);
      targets_.push_back(
          {.leaf = request.leaf, .box = request.box, .near = near_of_.at(attributes.device)});
    }
    return OkStatus();
  }

  Status MakeStaging() {
    for (auto& half : staging_) half = std::vector<PinnedMemory>(numa_nodes_.size());
    for (size_t near = 0; near < numa_nodes_.size(); ++near) {
      uint64_t bytes = 0;
      for (const db::StagedBatch& batch : batches_) {
        if (near < batch.bytes.size()) bytes = std::max(bytes, batch.bytes[near]);
      }
      if (bytes == 0) continue;
      for (size_t half = 0; half < std::min(kHalves, batches_.size()); ++half) {
        STEPWELL_RETURN_IF_ERROR(staging_[half][near].Make(bytes, numa_nodes_[near]));
      }
    }
    return OkStatus();
  }

  std::byte* MemoryOf(const db::StagedPiece& piece, size_t half) {
    return staging_[half][piece.near].data() + piece.offset_bytes;
  }

  Result<LoadStats> Fill(const db::StagedBatch& batch, size_t half) {
    std::vector<db::LoadRequest> loads;
    loads.reserve(batch.pieces.size());
    for (const db::StagedPiece& piece : batch.pieces) {
      loads.push_back({.leaf = piece.leaf,
                       .box = piece.box,
                       .out = MemoryOf(piece, half),
                       .strides_bytes = {}});
    }
    return reader_->Load(loads);
  }

  Status Send(const db::StagedBatch& batch, size_t half) {
    for (const db::StagedPiece& piece : batch.pieces) {
      const uint64_t item_bytes = format::FindDType(piece.leaf->dtype)->item_bytes;
      for (const uint32_t target : piece.targets) {
        const db::LoadRequest& request = requests_[target];
        for (const db::RowsCopy& copy : db::CopiesInto(piece.box, request.box, item_bytes)) {
          STEPWELL_RETURN_IF_ERROR(
              device_of_[target]->Copy(request.out, MemoryOf(piece, half), copy));
        }
      }
    }
    for (auto& [number, device] : devices_) STEPWELL_RETURN_IF_ERROR(device.Mark(half));
    return OkStatus();
  }

  Status Wait(size_t half) {
    for (auto& [number, device] : devices_) STEPWELL_RETURN_IF_ERROR(device.Wait(half));
    return OkStatus();
  }

  db::StepReader* const reader_;
  const std::span<const db::LoadRequest> requests_;
  const CurrentDevice restore_device_;
  std::vector<db::StagedTarget> targets_;  // as requests_
  std::vector<db::StagedBatch> batches_;
  std::vector<int> numa_nodes_;      // of each staging memory; -1: any
  std::map<int, uint32_t> near_of_;  // GPU to staging memory
  std::array<std::vector<PinnedMemory>, kHalves> staging_;
  std::map<int, Device> devices_;   // by CUDA's number; gone before the memory that they read
  std::vector<Device*> device_of_;  // as requests_
};

}  // namespace

Result<LoadStats> LoadIntoCuda(db::StepReader* reader, std::span<const db::LoadRequest> requests) {
  return CudaLoad(reader, requests).Run();
}

}  // namespace stepwell
