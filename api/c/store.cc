// SPDX-License-Identifier: Apache-2.0
// C: opening, closing, keeping house.
#include <chrono>
#include <cstddef>
#include <memory>

#include "api/c/support.h"

namespace stepwell::c {
namespace {

// Trivial to destroy, so that a thread's end needs nothing of it; messages are cut to fit.
constexpr size_t kMessageBytes = 4096;
thread_local char t_message[kMessageBytes] = "";

static_assert(static_cast<int>(StatusCode::kDataLoss) == STEPWELL_DATA_LOSS);
static_assert(static_cast<int>(StatusCode::kOutcomeUnknown) == STEPWELL_OUTCOME_UNKNOWN);
static_assert(static_cast<int>(StatusCode::kIoError) == STEPWELL_IO_ERROR);
static_assert(static_cast<int>(DType::kFloat4E2M1FN) == STEPWELL_FLOAT4_E2M1FN);
static_assert(static_cast<int>(KeepRule::Kind::kLastVerified) == STEPWELL_KEEP_LAST_VERIFIED);
static_assert(static_cast<int>(CodecPolicy::kBlosc) == STEPWELL_CODEC_BLOSC);
static_assert(static_cast<int>(OnNonfinite::kError) == STEPWELL_ON_NONFINITE_ERROR);

Result<KeepRule> RuleOf(const stepwell_keep_rule& in) {
  if (in.kind < STEPWELL_KEEP_LATEST || in.kind > STEPWELL_KEEP_LAST_VERIFIED || in.reserved != 0) {
    return InvalidArgumentError("a keep rule of an unknown kind, or with reserved not 0");
  }
  KeepRule rule;
  rule.kind = static_cast<KeepRule::Kind>(in.kind);
  rule.count = in.count;
  rule.duration = std::chrono::nanoseconds(in.duration_ns);
  rule.metric = TextOf(in.metric);
  rule.larger_is_better = in.larger_is_better != 0;
  return rule;
}

Result<OpenOptions> OptionsOf(const stepwell_open_options& in) {
  OpenOptions options;
  options.read_only = in.read_only != 0;
  options.create = in.no_create == 0;
  options.untrusted = in.untrusted != 0;
  options.private_files = in.shared_files == 0;
  options.through_writer = in.through_writer != 0;
  if (in.codec < STEPWELL_CODEC_AUTO || in.codec > STEPWELL_CODEC_BLOSC) {
    return InvalidArgumentError("an unknown codec");
  }
  options.codec = static_cast<CodecPolicy>(in.codec);
  options.threads = in.threads;
  options.delta = in.delta != 0;
  options.statistics = in.statistics != 0;
  if (in.on_nonfinite < STEPWELL_ON_NONFINITE_IGNORE ||
      in.on_nonfinite > STEPWELL_ON_NONFINITE_ERROR) {
    return InvalidArgumentError("an unknown value of on_nonfinite");
  }
  options.on_nonfinite = static_cast<OnNonfinite>(in.on_nonfinite);
  options.staging_bytes = in.staging_bytes;
  if (in.keep_count > 0 && in.keep == nullptr) return IsNull("keep");
  for (size_t i = 0; i < in.keep_count; ++i) {
    STEPWELL_ASSIGN_OR_RETURN(KeepRule rule, RuleOf(in.keep[i]));
    options.keep.push_back(std::move(rule));
  }
  if (in.log != nullptr) {
    options.log = [log = in.log, context = in.log_context](LogLevel level, std::string_view text) {
      log(context, static_cast<int>(level), std::string(text).c_str());
    };
  }
  options.trace_path = TextOf(in.trace_path);
  return options;
}

// [pointer, pointer + count), which may be null when empty.
template <typename Out, typename In>
Result<std::vector<Out>> ListOf(const In* pointer, size_t count) {
  if (pointer == nullptr && count > 0) return IsNull("the list");
  std::vector<Out> list;
  for (size_t i = 0; i < count; ++i) {
    if constexpr (std::is_pointer_v<In>) {
      if (pointer[i] == nullptr) return IsNull("an entry of the list");
    }
    list.emplace_back(pointer[i]);
  }
  return list;
}

}  // namespace

stepwell_code Report(const Status& status) {
  const bool wordless = !status.ok() && status.message().empty();
  const std::string_view text = wordless ? "out of memory" : std::string_view(status.message());
  const size_t length = std::min(text.size(), kMessageBytes - 1);
  std::memcpy(t_message, text.data(), length);
  t_message[length] = '\0';
  return static_cast<stepwell_code>(status.code());
}

}  // namespace stepwell::c

using stepwell::OkStatus;
using stepwell::Status;
using stepwell::c::Guard;

const char* stepwell_last_error(void) { return stepwell::c::t_message; }
const char* stepwell_code_name(stepwell_code code) {
  return stepwell::StatusCodeName(static_cast<stepwell::StatusCode>(code)).data();
}
const char* stepwell_version(void) { return STEPWELL_VERSION; }

const char* stepwell_dtype_name(stepwell_dtype dtype) {
  const auto* info = stepwell::FindDType(static_cast<stepwell::DType>(dtype));
  return info == nullptr ? nullptr : info->name.data();  // literals
}
stepwell_dtype stepwell_dtype_from_name(const char* name) {
  const auto* info = name == nullptr ? nullptr : stepwell::FindDType(std::string_view(name));
  return info == nullptr ? STEPWELL_DTYPE_INVALID : static_cast<stepwell_dtype>(info->dtype);
}
size_t stepwell_dtype_bytes(stepwell_dtype dtype) {
  const auto* info = stepwell::FindDType(static_cast<stepwell::DType>(dtype));
  return info == nullptr ? 0 : info->item_bytes;
}

stepwell_code stepwell_open(const char* path, const stepwell_open_options* options,
                            stepwell_store** store) {
  return Guard([&]() -> Status {
    STEPWELL_REQUIRE_(store);
    *store = nullptr;
    STEPWELL_REQUIRE_(path);
    stepwell_open_options given;
    STEPWELL_RETURN_IF_ERROR(stepwell::c::CopyStructIn(options, &given));
    STEPWELL_ASSIGN_OR_RETURN(const auto public_options, stepwell::c::OptionsOf(given));
    STEPWELL_ASSIGN_OR_RETURN(auto opened, stepwell::Store::Open(path, public_options));
    *store = new stepwell_store{std::move(opened)};
    return OkStatus();
  });
}

stepwell_code stepwell_close(stepwell_store* store) {
  return Guard([&]() -> Status {
    STEPWELL_REQUIRE_(store);
    return store->store.Close();
  });
}

void stepwell_store_free(stepwell_store* store) { delete store; }

stepwell_code stepwell_wait(stepwell_store* store) {
  return Guard([&]() -> Status {
    STEPWELL_REQUIRE_(store);
    return store->store.Wait();
  });
}

stepwell_code stepwell_delete(stepwell_store* store, const uint64_t* steps, size_t count) {
  return Guard([&]() -> Status {
    STEPWELL_REQUIRE_(store);
    STEPWELL_ASSIGN_OR_RETURN(const auto list, stepwell::c::ListOf<uint64_t>(steps, count));
    return store->store.Delete(list);
  });
}

stepwell_code stepwell_delete_items(stepwell_store* store, uint64_t step, const char* const* items,
                                    size_t count) {
  return Guard([&]() -> Status {
    STEPWELL_REQUIRE_(store);
    STEPWELL_ASSIGN_OR_RETURN(const auto list, stepwell::c::ListOf<std::string>(items, count));
    return store->store.DeleteItems(step, list);
  });
}

stepwell_code stepwell_set_pinned(stepwell_store* store, const uint64_t* steps, size_t count,
                                  int pinned) {
  return Guard([&]() -> Status {
    STEPWELL_REQUIRE_(store);
    STEPWELL_ASSIGN_OR_RETURN(const auto list, stepwell::c::ListOf<uint64_t>(steps, count));
    return store->store.SetPinned(list, pinned != 0);
  });
}

stepwell_code stepwell_set_taint(stepwell_store* store, const uint64_t* steps, size_t count,
                                 const char* why) {
  return Guard([&]() -> Status {
    STEPWELL_REQUIRE_(store);
    STEPWELL_ASSIGN_OR_RETURN(const auto list, stepwell::c::ListOf<uint64_t>(steps, count));
    return store->store.SetTaint(list, why == nullptr ? "" : why);
  });
}

stepwell_code stepwell_roll_back(stepwell_store* store, uint64_t to, const char* taint) {
  return Guard([&]() -> Status {
    STEPWELL_REQUIRE_(store);
    return store->store.RollBack(to, taint == nullptr ? "" : taint).status();
  });
}

stepwell_code stepwell_reclaim(stepwell_store* store, stepwell_reclaim_report* report) {
  return Guard([&]() -> Status {
    STEPWELL_REQUIRE_(store);
    stepwell_reclaim_report out{};
    // A wrong size is told before anything is done.
    if (report != nullptr) STEPWELL_RETURN_IF_ERROR(stepwell::c::CopyStructOut(out, report));
    STEPWELL_ASSIGN_OR_RETURN(const auto done, store->store.Reclaim());
    if (report == nullptr) return OkStatus();
    out.bytes_before = done.bytes_before;
    out.bytes_after = done.bytes_after;
    out.bytes_moved = done.bytes_moved;
    out.bytes_punched = done.bytes_punched;
    return stepwell::c::CopyStructOut(out, report);
  });
}

stepwell_code stepwell_verify(stepwell_store* store, const stepwell_verify_options* options,
                              stepwell_verify_report** report) {
  return Guard([&]() -> Status {
    STEPWELL_REQUIRE_(report);
    *report = nullptr;
    STEPWELL_REQUIRE_(store);
    stepwell_verify_options given;
    STEPWELL_RETURN_IF_ERROR(stepwell::c::CopyStructIn(options, &given));
    stepwell::VerifyOptions verify;
    if (given.one_step != 0) verify.step = given.step;
    if (given.progress != nullptr) {
      verify.progress = [&given](uint64_t done, uint64_t total) {
        return given.progress(given.progress_context, done, total) != 0;
      };
    }
    STEPWELL_ASSIGN_OR_RETURN(auto found, store->store.Verify(verify));
    *report = new stepwell_verify_report{std::move(found)};
    return OkStatus();
  });
}

stepwell_code stepwell_verify_report_get(const stepwell_verify_report* report,
                                         stepwell_verify_info* info) {
  return Guard([&]() -> Status {
    STEPWELL_REQUIRE_(report);
    stepwell_verify_info out{};
    out.steps = report->report.steps;
    out.leaves = report->report.leaves;
    out.chunks = report->report.chunks;
    out.bytes = report->report.bytes;
    out.problem_count = report->report.problems.size();
    return stepwell::c::CopyStructOut(out, info);
  });
}

stepwell_code stepwell_verify_report_problem(const stepwell_verify_report* report, size_t index,
                                             stepwell_problem* problem) {
  return Guard([&]() -> Status {
    STEPWELL_REQUIRE_(report);
    if (index >= report->report.problems.size()) {
      return Status(stepwell::StatusCode::kOutOfRange, "there is no such problem");
    }
    const stepwell::VerifyProblem& found = report->report.problems[index];
    stepwell_problem out{};
    out.has_step = found.step.has_value() ? 1 : 0;
    out.step = found.step.value_or(0);
    out.item = found.item.c_str();
    out.path = found.path.c_str();
    out.file = found.file.c_str();
    out.offset_bytes = found.offset_bytes;
    out.message = found.message.c_str();
    out.unchecked = found.unchecked ? 1 : 0;
    return stepwell::c::CopyStructOut(out, problem, offsetof(stepwell_problem, unchecked));
  });
}

void stepwell_verify_report_free(stepwell_verify_report* report) { delete report; }

stepwell_code stepwell_get_stats(stepwell_store* store, stepwell_stats* stats) {
  return Guard([&]() -> Status {
    STEPWELL_REQUIRE_(store);
    STEPWELL_ASSIGN_OR_RETURN(const auto now, store->store.Stats());
    stepwell_stats out{};
    out.steps = now.steps;
    out.pinned_steps = now.pinned_steps;
    out.segments = now.segments;
    out.total_bytes = now.space.total_bytes;
    out.live_bytes = now.space.live_bytes;
    out.dead_bytes = now.space.dead_bytes;
    out.saves = now.saves;
    out.saves_failed = now.saves_failed;
    out.bytes_saved = now.bytes_saved;
    out.bytes_written = now.bytes_written;
    return stepwell::c::CopyStructOut(out, stats);
  });
}
