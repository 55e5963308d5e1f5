// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/support/store_checker.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "tests/sim/support/store_workload.h"

namespace stepwell::sim {
namespace {

std::string Describe(const std::vector<Steps>& legal) {
  std::string text;
  for (const Steps& steps : legal) text += StrCat(text.empty() ? "" : " or ", ToText(steps));
  return text;
}

// Reads the steps that the store holds. Sets `problem` if they are not legal.
Steps Observe(db::Store* store, const std::vector<Steps>& legal, std::string* problem) {
  const auto seen = ReadAll(store);
  if (!seen.ok()) {
    *problem = seen.status().ToString();
    return {};
  }
  if (std::find(legal.begin(), legal.end(), *seen) == legal.end()) {
    *problem = StrCat("found ", ToText(*seen), ", legal is ", Describe(legal));
  }
  return *seen;
}

// Recovers on a machine that stops somewhere in it or soon after, then checks what that leaves.
std::string CrashAgain(const SimWorld& image, std::vector<Steps> legal, const ImageCheck& check) {
  Prng prng(check.seed ^ 0xA6A11);
  const auto world = image.CrashImageProcessKill(prng.Next());  // no process: just a copy
  world->FreezeAt(1 + prng.Below(prng.OneIn(4) ? 200 : 40));
  {
    StoreMachine machine(world, prng.Next());
    const auto store = machine.Open({.with_index = check.with_index, .path = check.path});
    if (store.ok()) {
      // A step that was served once is a promise. (A read-only look at a stopped machine is none.)
      std::string problem;
      const bool running = !world->frozen();
      const Steps seen = Observe(store->get(), legal, &problem);
      if (!problem.empty()) {
        return StrCat("recovery that is cut off later: ", problem, running ? "" : " (stopped)",
                      "\nlog: ", machine.log());
      }
      if (running) legal = {seen};
      const uint64_t step = kNewStep + 1 + prng.Below(1000);
      const uint64_t seed = prng.Below(1000);
      const auto handle = SaveStep(store->get(), step, seed);
      if (handle.ok()) {
        std::vector<Steps> with;
        for (Steps steps : legal) {
          steps[step] = HeldOf(seed);
          with.push_back(std::move(steps));
        }
        if (handle->Wait().ok()) legal.clear();
        legal.insert(legal.end(), with.begin(), with.end());
      }
      if (prng.Coin()) world->FreezeNow();  // else what Close manages to do is in the image too
    }
  }
  const auto next = prng.OneIn(3) ? world->CrashImageProcessKill(prng.Next())
                                  : world->Crash({prng.Next(), {}, {}});
  const std::string problem =
      CheckImage(next, legal, {prng.Next(), check.with_index, check.crashes - 1, check.path});
  return problem.empty() ? problem : StrCat("after another crash: ", problem);
}

// A reader comes before any writer: it sees a legal state too, and changes nothing. What it saw,
// unless there is no store yet.
std::optional<Steps> ReadOnly(StoreMachine* machine, const ImageCheck& check,
                              const std::vector<Steps>& legal, std::string* problem) {
  const auto store =
      machine->Open({.with_index = check.with_index, .read_only = true, .path = check.path});
  if (!store.ok()) {
    const StatusCode code = store.status().code();
    const bool absent = code == StatusCode::kNotFound || code == StatusCode::kUnimplemented;
    if (!absent || !legal.front().empty()) *problem = store.status().ToString();
    return std::nullopt;
  }
  for (const std::string& said : (*store)->recovery().problems) *problem = said;
  return Observe(store->get(), legal, problem);
}

std::string Check(const std::shared_ptr<SimWorld>& image, const std::vector<Steps>& legal,
                  const ImageCheck& check, std::string* log) {
  StoreMachine machine(image, check.seed);
  const OpenSpec spec = {.with_index = check.with_index, .path = check.path};
  std::string problem;
  Steps seen;
  const uint64_t seed = check.seed % 1000;
  image->SetCapacity(kUnlimitedBytes);
  std::optional<Steps> read;
  if (check.seed % 2 == 0) read = ReadOnly(&machine, check, legal, &problem);
  if (!problem.empty()) return StrCat("reading only: ", problem);
  {
    const auto store = machine.Open(spec);
    *log = machine.log();
    if (!store.ok()) return StrCat("does not open: ", store.status().ToString());
    for (const std::string& said : (*store)->recovery().problems) return said;
    seen = Observe(store->get(), legal, &problem);
    if (!problem.empty()) return problem;
    if (read && *read != seen)
      return StrCat("a reader saw ", ToText(*read), ", not ", ToText(seen));
    const auto report = (*store)->Verify({});
    if (!report.ok()) return StrCat("verify: ", report.status().ToString());
    if (!report->problems.empty()) return StrCat("verify: ", report->problems[0].message);
    for (auto& [step, held] : seen) held |= kVerified;
    const auto handle = SaveStep(store->get(), kNewStep, seed);
    if (!handle.ok()) return StrCat("save: ", handle.status().ToString());
    if (!handle->Wait().ok()) return StrCat("save: ", handle->Wait().ToString());
    seen[kNewStep] = HeldOf(seed);
    const Status closed = (*store)->Close();
    if (!closed.ok()) return StrCat("close: ", closed.ToString());
  }
  const auto store = machine.Open(spec);
  *log = machine.log();
  if (!store.ok()) return StrCat("does not open again: ", store.status().ToString());
  if (!(*store)->recovery().clean) return "not clean after a clean close";
  Observe(store->get(), {seen}, &problem);
  return problem.empty() ? problem : StrCat("opened again: ", problem);
}

}  // namespace

ImageCounts& CheckedImages() {
  static ImageCounts counts;
  return counts;
}

std::string CheckImage(const std::shared_ptr<SimWorld>& image, const std::vector<Steps>& legal,
                       const ImageCheck& check) {
  ++CheckedImages().images;
  CheckedImages().with_index += check.with_index ? 1 : 0;
  if (check.crashes > 0) {
    std::string problem = CrashAgain(*image, legal, check);
    if (!problem.empty()) return problem;
  }
  const std::string segments = DescribeSegments(*image, check.path);
  std::string log;
  const std::string problem = Check(image, legal, check, &log);
  return problem.empty() ? problem : StrCat(problem, "\nsegments:", segments, "\nlog: ", log);
}

}  // namespace stepwell::sim
