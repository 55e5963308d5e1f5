// SPDX-License-Identifier: Apache-2.0
#include <liburing.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <list>
#include <system_error>
#include <thread>
#include <unordered_map>

#include "io/fork_guard.h"
#include "io/open_disk.h"
#include "io/transfer.h"

namespace stepwell::io {
namespace {

constexpr unsigned kFileSlots = 64;      // open segments and the LOCK of a store
constexpr unsigned kBufferSlots = 1024;  // the kernel allows 16384
constexpr std::chrono::milliseconds kBrokenInterval{1};
constexpr std::chrono::seconds kBrokenWait{10};  // for ops that a broken ring does not give back

// An op on its way, in one of the lists below: moving it from one to another never allocates.
struct PendingOp {
  Transfer transfer;
  std::list<PendingOp>::iterator self;
};
using PendingOps = std::list<PendingOp>;

void MoveToEnd(PendingOp* pending, PendingOps* from, PendingOps* to) {
  to->splice(to->end(), *from, pending->self);
}

// Threads: the ring is made without IORING_SETUP_SINGLE_ISSUER (and so without DEFER_TASKRUN, which
// needs it). Those bind the ring to one thread: after that thread has ended, nothing could reap
// what it left in flight, and a Disk may be made on one thread, used on a second and destroyed on a
// third. With blocks of 1 MiB the lost batching cannot be measured.
class UringDisk final : public Disk {
 public:
  UringDisk() = default;
  ~UringDisk() override;
  Status Start(unsigned depth);

  void Submit(Op* op) override;
  size_t Poll(bool wait) override;
  void Wake() override;
  size_t in_flight() const override {
    return backlog_.size() + in_kernel_.size() + finished_.size();
  }
  size_t depth() const override { return depth_; }
  int RegisterBuffer(MutableBytes buffer) override;
  void RegisterFile(File* file) override;
  void UnregisterFile(File* file) override;
  std::string Describe() const override;

 private:
  void FillQueue();
  void ArmWake();
  bool PrepareOne(PendingOp* pending);
  void Enter(bool wait);
  void Reap();
  void EndBroken();
  size_t RunCompletions();

  io_uring ring_{};
  bool started_ = false;
  int wake_descriptor_ = -1;
  pid_t pid_ = 0;
  size_t depth_ = 0;
  size_t in_kernel_max_ = 0;  // leaves a submission entry for the wake-up

  PendingOps free_;
  PendingOps backlog_;
  PendingOps in_kernel_;
  PendingOps finished_;
  bool wake_armed_ = false;
  bool woken_ = false;
  Status broken_;  // why the ring cannot be entered; OK: it can
  std::chrono::steady_clock::time_point broken_since_;

  bool files_possible_ = false;
  std::unordered_map<const File*, unsigned> file_slots_;
  std::vector<unsigned> free_file_slots_;
  bool buffers_possible_ = false;  // as far as is known
  unsigned buffer_count_ = 0;
};

Status UringError(int os_error) {
  return {StatusCode::kUnimplemented, std::generic_category().message(os_error), os_error};
}

Status UringDisk::Start(unsigned depth) {
  depth_ = std::clamp(depth, 1U, 4096U);
  pid_ = getpid();
  // COOP_TASKRUN: no interruption of this thread for a completion; it looks when it polls.
  constexpr std::array<unsigned, 2> kFlags = {IORING_SETUP_COOP_TASKRUN, 0};
  int result = -EINVAL;
  for (size_t i = 0; i < kFlags.size() && result == -EINVAL; ++i) {
    io_uring_params params{};
    params.flags = kFlags[i];
    result = io_uring_queue_init_params(static_cast<unsigned>(depth_) + 1, &ring_, &params);
  }
  if (result < 0) return UringError(-result);
  started_ = true;
  in_kernel_max_ = ring_.sq.ring_entries - 1;
  CloseInForkedChild(this, ring_.ring_fd);
  if ((ring_.features & IORING_FEAT_NODROP) == 0) return UringError(ENOSYS);
  result = io_uring_ring_dontfork(&ring_);
  if (result < 0) return UringError(-result);
  wake_descriptor_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake_descriptor_ < 0) return UringError(errno);
  CloseInForkedChild(this, wake_descriptor_);
  // Both are only faster ways: without them everything works.
  files_possible_ = io_uring_register_files_sparse(&ring_, kFileSlots) == 0;
  for (unsigned i = kFileSlots; files_possible_ && i > 0; --i) free_file_slots_.push_back(i - 1);
  buffers_possible_ = io_uring_register_buffers_sparse(&ring_, kBufferSlots) == 0;
  return OkStatus();
}

UringDisk::~UringDisk() {
  // In a forked child the ring's memory is not there and its descriptors are closed.
  if (!started_ || getpid() != pid_) return;
  while (!in_kernel_.empty() || !backlog_.empty()) {
    FillQueue();
    if (!in_kernel_.empty()) Enter(/*wait=*/true);
    Reap();
  }
  // The kernel frees a closed ring in its own time; the files' locks must end now.
  if (files_possible_) io_uring_unregister_files(&ring_);
  ForgetForkDescriptors(this);
  io_uring_queue_exit(&ring_);
  if (wake_descriptor_ >= 0) close(wake_descriptor_);
}

void UringDisk::Submit(Op* op) {
  if (free_.empty()) {  // only here is anything allocated
    free_.emplace_back();
    free_.back().self = std::prev(free_.end());
  }
  free_.back().transfer = Transfer(op);
  MoveToEnd(&free_.back(), &free_, &backlog_);
}

size_t UringDisk::Poll(bool wait) {
  for (;;) {
    FillQueue();
    const bool block = wait && finished_.empty() && !woken_;
    if (block || !in_kernel_.empty()) Enter(block);
    Reap();
    if (!wait || woken_ || !finished_.empty()) break;
  }
  if (wait) woken_ = false;
  const size_t count = RunCompletions();
  // Ops that the completions submitted start now, not at the next call.
  if (!backlog_.empty()) {
    FillQueue();
    Enter(/*wait=*/false);
  }
  return count;
}

void UringDisk::Wake() {
  const uint64_t one = 1;
  // Fails only when the counter is full of earlier calls, and then the poll returns anyway.
  [[maybe_unused]] const ssize_t written = write(wake_descriptor_, &one, sizeof(one));
}

void UringDisk::ArmWake() {
  io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
  if (sqe == nullptr) return;
  io_uring_prep_poll_add(sqe, wake_descriptor_, POLLIN);
  io_uring_sqe_set_data(sqe, nullptr);
  wake_armed_ = true;
}

void UringDisk::FillQueue() {
  if (!broken_.ok()) return EndBroken();
  if (!wake_armed_) ArmWake();
  while (!backlog_.empty() && in_kernel_.size() < in_kernel_max_) {
    PendingOp* const pending = &backlog_.front();
    if (pending->transfer.EndBeforeCall()) {
      MoveToEnd(pending, &backlog_, &finished_);
      continue;
    }
    if (!PrepareOne(pending)) {
      Enter(/*wait=*/false);  // empties the submission queue
      if (!PrepareOne(pending)) return;
    }
    if (!broken_.ok()) return;
    MoveToEnd(pending, &backlog_, &in_kernel_);
  }
}

bool UringDisk::PrepareOne(PendingOp* pending) {
  io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
  if (sqe == nullptr) return false;
  const Transfer& transfer = pending->transfer;
  const Op& op = *transfer.op();
  const auto file_slot = file_slots_.find(op.file);
  const bool fixed_file = file_slot != file_slots_.end();
  const int file = fixed_file ? static_cast<int>(file_slot->second) : op.file->descriptor();
  if (op.kind == Op::Kind::kSync) {
    io_uring_prep_fsync(sqe, file, IORING_FSYNC_DATASYNC);
  } else {
    const std::span<const iovec> vectors = transfer.vectors();
    const uint64_t offset = transfer.offset_bytes();
    const bool is_read = op.kind == Op::Kind::kRead;
    if (op.buffer_index >= 0 && vectors.size() == 1) {
      const iovec& vector = vectors.front();
      // A longer transfer does not fit the 32-bit length, and goes on as a short one.
      constexpr size_t kLengthMax = size_t{1} << 30;
      const auto length = static_cast<unsigned>(std::min(vector.iov_len, kLengthMax));
      if (is_read) {
        io_uring_prep_read_fixed(sqe, file, vector.iov_base, length, offset, op.buffer_index);
      } else {
        io_uring_prep_write_fixed(sqe, file, vector.iov_base, length, offset, op.buffer_index);
      }
    } else if (is_read) {
      io_uring_prep_readv(sqe, file, vectors.data(), static_cast<unsigned>(vectors.size()), offset);
    } else {
      io_uring_prep_writev(sqe, file, vectors.data(), static_cast<unsigned>(vectors.size()),
                           offset);
    }
  }
  if (fixed_file) sqe->flags |= IOSQE_FIXED_FILE;
  io_uring_sqe_set_data(sqe, pending);
  return true;
}

// Hands the submission queue to the kernel and lets it post completions; with `wait`, sleeps until
// there is one.
void UringDisk::Enter(bool wait) {
  if (!broken_.ok()) {
    if (wait) std::this_thread::sleep_for(kBrokenInterval);
    return;
  }
  const int result =
      wait ? io_uring_submit_and_wait(&ring_, 1) : io_uring_submit_and_get_events(&ring_);
  // EINTR: a signal. EAGAIN, ENOMEM: the kernel is short of memory now. EBUSY: reap first. What was
  // not taken stays in the queue, and every caller comes back.
  const bool passing =
      result == -EINTR || result == -EAGAIN || result == -EBUSY || result == -ENOMEM;
  if (result >= 0 || passing) return;
  // The ring is of no use any more (its descriptor was closed by others, say). What the kernel has
  // taken comes back through the ring's memory, or never; the rest ends with this error.
  broken_ = ErrnoStatus(-result, "io_uring_enter");
  broken_since_ = std::chrono::steady_clock::now();
}

// Ends what the kernel has not taken; after a while also what it does not give back.
void UringDisk::EndBroken() {
  const auto end = [this](PendingOp* pending, PendingOps* list) {
    pending->transfer.Abandon(broken_);
    MoveToEnd(pending, list, &finished_);
  };
  // These are still in the submission queue, so the kernel has not taken them.
  for (unsigned i = io_uring_smp_load_acquire(ring_.sq.khead); i != ring_.sq.sqe_tail; ++i) {
    const io_uring_sqe& sqe = ring_.sq.sqes[i & ring_.sq.ring_mask];
    PendingOp* const pending = reinterpret_cast<PendingOp*>(static_cast<uintptr_t>(sqe.user_data));
    // Those that an earlier call has ended are not in the list any more.
    if (std::any_of(in_kernel_.begin(), in_kernel_.end(),
                    [pending](const PendingOp& taken) { return &taken == pending; })) {
      end(pending, &in_kernel_);
    }
  }
  if (std::chrono::steady_clock::now() > broken_since_ + kBrokenWait) {
    while (!in_kernel_.empty()) end(&in_kernel_.front(), &in_kernel_);
  }
  while (!backlog_.empty()) end(&backlog_.front(), &backlog_);
  uint64_t ignored = 0;
  if (read(wake_descriptor_, &ignored, sizeof(ignored)) > 0) woken_ = true;
}

void UringDisk::Reap() {
  io_uring_cqe* cqe = nullptr;
  while (io_uring_peek_cqe(&ring_, &cqe) == 0) {
    auto* pending = static_cast<PendingOp*>(io_uring_cqe_get_data(cqe));
    const int result = cqe->res;
    io_uring_cqe_seen(&ring_, cqe);
    if (pending == nullptr) {  // the wake-up
      uint64_t ignored = 0;
      wake_armed_ = false;
      if (read(wake_descriptor_, &ignored, sizeof(ignored)) > 0) woken_ = true;
      continue;
    }
    if (result == -ECANCELED) {
      // Queued work that was never begun: the kernel has no worker thread for it and may start none
      // (RLIMIT_NPROC, a container's pids limit), and would say so again; or the thread that queued
      // it has ended.
      RunBlocking(pending->transfer.op());
      MoveToEnd(pending, &in_kernel_, &finished_);
    } else if (pending->transfer.Step(result)) {
      MoveToEnd(pending, &in_kernel_, &finished_);
    } else {
      backlog_.splice(backlog_.begin(), in_kernel_, pending->self);
    }
  }
}

size_t UringDisk::RunCompletions() {
  // Those that finish meanwhile come next time; so do the rest when a call throws.
  const size_t count = finished_.size();
  for (size_t i = 0; i < count; ++i) {
    PendingOp* const pending = &finished_.front();
    MoveToEnd(pending, &finished_, &free_);  // before the call, which may submit
    pending->transfer.op()->OnComplete();
  }
  return count;
}

int UringDisk::RegisterBuffer(MutableBytes buffer) {
  if (!buffers_possible_ || buffer_count_ == kBufferSlots) return -1;
  const iovec vector{buffer.data(), buffer.size()};
  const __u64 tag = 0;
  if (io_uring_register_buffers_update_tag(&ring_, buffer_count_, &vector, &tag, 1) != 1) {
    buffers_possible_ = false;  // RLIMIT_MEMLOCK: the next one will not fit either
    return -1;
  }
  return static_cast<int>(buffer_count_++);
}

void UringDisk::RegisterFile(File* file) {
  if (free_file_slots_.empty() || file->descriptor() < 0 || file_slots_.contains(file)) return;
  const unsigned slot = free_file_slots_.back();
  const int descriptor = file->descriptor();
  if (io_uring_register_files_update(&ring_, slot, &descriptor, 1) != 1) return;
  free_file_slots_.pop_back();
  file_slots_[file] = slot;
}

void UringDisk::UnregisterFile(File* file) {
  const auto found = file_slots_.find(file);
  if (found == file_slots_.end()) return;
  // The kernel may look the slot up as late as in a worker thread of its own.
  const auto uses_file = [file](const PendingOp& pending) {
    return pending.transfer.op()->file == file;
  };
  while (std::any_of(in_kernel_.begin(), in_kernel_.end(), uses_file)) {
    Enter(/*wait=*/true);
    Reap();
    if (!broken_.ok()) EndBroken();
  }
  const int none = -1;
  if (io_uring_register_files_update(&ring_, found->second, &none, 1) == 1) {
    free_file_slots_.push_back(found->second);
  }
  file_slots_.erase(found);
}

std::string UringDisk::Describe() const {
  std::string text = "io_uring";
  if (buffer_count_ != 0) text += ", registered buffers";
  if (!buffers_possible_) text += ", not all buffers could be registered";
  if (!files_possible_) text += ", unregistered files";
  return text;
}

}  // namespace

Result<std::unique_ptr<Disk>> MakeUringDisk(unsigned depth) {
  auto disk = std::make_unique<UringDisk>();
  STEPWELL_RETURN_IF_ERROR(disk->Start(depth));
  return std::unique_ptr<Disk>(std::move(disk));
}

}  // namespace stepwell::io
