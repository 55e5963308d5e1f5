// SPDX-License-Identifier: Apache-2.0
// Slices into the memory of GPUs. Built with STEPWELL_CUDA; fails where there is no GPU.
#include <cuda_runtime_api.h>

#include "tests/api/support/api_support.h"

namespace stepwell {
namespace {

// Memory of the GPU `device`, all ones.
class GpuMemory {
 public:
  GpuMemory(int device, size_t size_bytes) : size_bytes_(size_bytes) {
    EXPECT_EQ(cudaSetDevice(device), cudaSuccess);
    EXPECT_EQ(cudaMalloc(&data_, size_bytes), cudaSuccess);
    EXPECT_EQ(cudaMemset(data_, 0xFF, size_bytes), cudaSuccess);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }
  GpuMemory(GpuMemory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_bytes_(other.size_bytes_) {}
  ~GpuMemory() { cudaFree(data_); }

  void* data() { return data_; }
  size_t size_bytes() const { return size_bytes_; }
  std::vector<int32_t> Elements() const {
    std::vector<int32_t> elements(size_bytes_ / sizeof(int32_t));
    EXPECT_EQ(cudaMemcpy(elements.data(), data_, size_bytes_, cudaMemcpyDeviceToHost), cudaSuccess);
    return elements;
  }

 private:
  void* data_ = nullptr;
  size_t size_bytes_ = 0;
};

class CudaTest : public ApiTest {
 protected:
  static constexpr uint64_t kRows = 6000;
  static constexpr uint64_t kColumns = 8000;  // 192 MB: more than the staging memory

  void SetUp() override {
    ApiTest::SetUp();
    ASSERT_EQ(cudaGetDeviceCount(&gpus_), cudaSuccess);
    ASSERT_GT(gpus_, 0);
    store_.emplace(Open());
    SaveRequest request(1);
    request.Put("kernel", ArrayView::Of(numbers_.data(), {kRows, kColumns}));
    ASSERT_OK(SaveAndWait(*store_, std::move(request)));
  }
  void TearDown() override {
    store_.reset();
    ApiTest::TearDown();
  }

  const std::vector<int32_t> numbers_ = Numbers<int32_t>(kRows * kColumns);
  std::optional<Store> store_;
  int gpus_ = 0;
};

TEST_F(CudaTest, EachDeviceGetsItsSliceAndEachChunkIsReadOnce) {
  const Step step = store_->Read(1).value();
  for (const char* spec : {"(x, y)", "(None, y)", "((x, y), None)", "()"}) {
    SCOPED_TRACE(spec);
    const LoadPlan plan = step.PlanLoad(Mesh::Parse("x=2,y=2").value(),
                                        {{"kernel", PartitionSpec::Parse(spec).value()}})
                              .value();
    const auto slices =
        Shards(plan.leaves[0].shape, plan.mesh, PartitionSpec::Parse(spec).value()).value();
    std::vector<GpuMemory> memory;
    std::vector<ShardMemory> shards;
    for (uint64_t device = 0; device < 4; ++device) {
      const Slice& slice = slices[device];
      const uint64_t count = (slice.stop[0] - slice.start[0]) * (slice.stop[1] - slice.start[1]);
      memory.emplace_back(static_cast<int>(device) % gpus_, count * sizeof(int32_t));
      shards.push_back({.device = device,
                        .path = "kernel",
                        .dtype = DType::kInt32,
                        .out = memory.back().data(),
                        .out_bytes = memory.back().size_bytes(),
                        .memory = MemoryKind::kCuda});
    }
    const auto stats = step.ReadShards(plan, shards);
    ASSERT_OK(stats);
    EXPECT_EQ(stats->chunks, plan.total.chunks);
    for (uint64_t device = 0; device < 4; ++device) {
      const Slice& slice = slices[device];
      const std::vector<int32_t> got = memory[device].Elements();
      size_t n = 0;
      for (uint64_t row = slice.start[0]; row < slice.stop[0]; ++row) {
        for (uint64_t column = slice.start[1]; column < slice.stop[1]; ++column) {
          ASSERT_EQ(got[n++], numbers_[row * kColumns + column]) << device << ": " << row;
        }
      }
    }
  }
}

TEST_F(CudaTest, MemoryOfTheHostIsRefused) {
  const Step step = store_->Read(1).value();
  const LoadPlan plan = step.PlanLoad(Mesh{}).value();
  std::vector<int32_t> host(numbers_.size());
  const ShardMemory shard{.path = "kernel",
                          .out = host.data(),
                          .out_bytes = host.size() * sizeof(int32_t),
                          .memory = MemoryKind::kCuda};
  EXPECT_EQ(step.ReadShards(plan, {&shard, 1}).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace stepwell
