// SPDX-License-Identifier: Apache-2.0
// `stepwell doctor [DIR]`: what this machine offers a store in that directory, and what will hurt.
#include <algorithm>

#include "api/cli/command.h"
#include "api/cli/disk_test.h"
#include "api/cli/machine.h"
#include "api/cli/output.h"
#include "api/cli/text.h"
#include "api/cli/values.h"
#include "io/open_disk.h"

namespace stepwell::cli {
namespace {

constexpr double kSeconds = 2;
constexpr double kSecondsMax = 600;
constexpr uint64_t kTestBytesMax = uint64_t{16} << 30;
constexpr uint64_t kTestBytesMin = uint64_t{64} << 20;

struct DoctorArguments {
  std::string directory = ".";
  double seconds = kSeconds;
};

struct Report {
  MachineFacts machine;
  FileSystemFacts file_system;
  std::optional<WriteSpeed> ours;
  std::optional<WriteSpeed> fio;
  std::string not_ours;  // why there is no such number
  std::string not_fio;
  std::vector<Warning> warnings;
};

// At most a quarter of the free space is written, and given back.
void TestWrites(const DoctorArguments& arguments, io::File* file, Report* report) {
  const uint64_t bytes_max = std::min(report->file_system.free_bytes / 4, kTestBytesMax);
  if (arguments.seconds == 0 || bytes_max < kTestBytesMin) {
    report->not_ours = report->not_fio =
        arguments.seconds == 0 ? "not asked for" : "too little free space to test writing";
    return;
  }
  Result<WriteSpeed> ours = MeasureWrites(file, arguments.seconds, bytes_max);
  if (ours.ok()) {
    report->ours = *std::move(ours);
  } else {
    report->not_ours = ours.status().message();
    report->warnings.push_back(
        {"write_failed", "the write test failed: " + ours.status().message()});
  }
  Result<WriteSpeed> fio = MeasureWritesByFio(arguments.directory, report->file_system.direct_io,
                                              arguments.seconds, bytes_max);
  if (fio.ok()) {
    report->fio = *std::move(fio);
  } else if (fio.status().code() == StatusCode::kNotFound) {
    report->not_fio = "fio is not installed; to compare: apt install fio";
  } else {
    report->not_fio = fio.status().message();
  }
}

Json OrNull(const std::optional<uint64_t>& number) {
  return number ? Json(*number) : Json(nullptr);
}

Json SpeedJson(const std::optional<WriteSpeed>& speed, const std::string& why_not) {
  if (!speed) return {{"measured", false}, {"reason", why_not}};
  return {{"measured", true},
          {"through", speed->through},
          {"bytes", speed->bytes},
          {"seconds", speed->seconds},
          {"bytes_per_second", speed->BytesPerSecond()},
          {"block_bytes", speed->block_bytes},
          {"depth", speed->depth}};
}

Json ReportJson(const DoctorArguments& arguments, const Report& report) {
  const MachineFacts& machine = report.machine;
  const FileSystemFacts& files = report.file_system;
  Json warnings = Json::array();
  for (const Warning& warning : report.warnings) {
    warnings.push_back({{"code", warning.code}, {"message", warning.message}});
  }
  return {{"schema", kJsonSchema},
          {"directory", arguments.directory},
          {"kernel", machine.kernel},
          {"cores", machine.cores},
          {"memory",
           {{"total_bytes", machine.memory_bytes},
            {"available_bytes", machine.memory_available_bytes},
            {"cgroup_limit_bytes", OrNull(machine.cgroup_memory_bytes)}}},
          {"io_uring",
           {{"available", machine.uring.available},
            {"reason", machine.uring.available ? Json(nullptr) : Json(machine.uring.reason)},
            {"registered_buffers", machine.uring.registered_buffers}}},
          {"limits",
           {{"memlock_bytes", OrNull(machine.limits.memlock_bytes)},
            {"file_bytes", OrNull(machine.limits.file_bytes)},
            {"address_space_bytes", OrNull(machine.limits.address_space_bytes)},
            {"open_files", OrNull(machine.limits.open_files)}}},
          {"file_system",
           {{"type", files.type},
            {"mount_point", files.mount_point},
            {"source", files.source},
            {"options", files.options},
            {"block_bytes", files.block_bytes},
            {"punch_hole", files.punch_hole},
            {"locks", files.locks},
            {"total_bytes", files.total_bytes},
            {"free_bytes", files.free_bytes}}},
          {"direct_io",
           {{"available", files.direct_io},
            {"memory_alignment_bytes", files.alignment.memory_bytes},
            {"offset_alignment_bytes", files.alignment.offset_bytes}}},
          {"write_test", SpeedJson(report.ours, report.not_ours)},
          {"fio", SpeedJson(report.fio, report.not_fio)},
          {"warnings", std::move(warnings)}};
}

std::string LimitText(const std::optional<uint64_t>& bytes) {
  return bytes ? HumanBytes(*bytes) : "unlimited";
}

std::string SpeedText(const std::optional<WriteSpeed>& speed, const std::string& why_not) {
  if (!speed) return why_not;
  return StrCat(NumberText(speed->BytesPerSecond() / 1e6, 4), " MB/s (", HumanBytes(speed->bytes),
                " in ", NumberText(speed->seconds, 3), " s, blocks of ",
                HumanBytes(speed->block_bytes), ", ", speed->depth, " in flight; ",
                Printable(speed->through), ")");
}

std::string ReportText(const DoctorArguments& arguments, const Report& report) {
  const MachineFacts& machine = report.machine;
  const FileSystemFacts& files = report.file_system;
  std::string options;
  for (const std::string& option : files.options) {
    options += (options.empty() ? "" : ",") + Printable(option);
  }
  std::string uring = "available";
  if (!machine.uring.available) uring = "not available: " + machine.uring.reason;
  if (machine.uring.registered_buffers) uring += ", buffers can be registered";
  const auto yes = [](bool is) { return is ? "yes" : "no"; };
  std::vector<std::vector<std::string>> rows = {
      {"kernel", machine.kernel},
      {"cores", std::to_string(machine.cores)},
      {"memory",
       StrCat(HumanBytes(machine.memory_bytes), ", ", HumanBytes(machine.memory_available_bytes),
              " available, control group ", LimitText(machine.cgroup_memory_bytes))},
      {"io_uring", uring},
      {"limits", StrCat("locked memory ", LimitText(machine.limits.memlock_bytes), ", file size ",
                        LimitText(machine.limits.file_bytes), ", address space ",
                        LimitText(machine.limits.address_space_bytes), ", open files ",
                        machine.limits.open_files ? std::to_string(*machine.limits.open_files)
                                                  : std::string("unlimited"))},
      {"directory", Printable(arguments.directory)},
      {"file system", StrCat(files.type, " on ", Printable(files.mount_point), " (",
                             Printable(files.source), "; ", options, ")")},
      {"space", StrCat(HumanBytes(files.free_bytes), " free of ", HumanBytes(files.total_bytes))},
      {"O_DIRECT", files.direct_io ? StrCat("yes: memory aligned to ", files.alignment.memory_bytes,
                                            ", offsets to ", files.alignment.offset_bytes, " bytes")
                                   : std::string("no")},
      {"punch holes", yes(files.punch_hole)},
      {"locks", yes(files.locks)},
      {"write", SpeedText(report.ours, report.not_ours)},
      {"fio", SpeedText(report.fio, report.not_fio)}};
  std::string text = Table(rows, {false, false}) + "\n";
  for (const Warning& warning : report.warnings) {
    text += StrCat(Emphasize("warning", "1;33"), ": ", Printable(warning.message), "\n");
  }
  if (report.warnings.empty()) text += "nothing here will hurt\n";
  return text;
}

Result<Outcome> RunDoctor(const DoctorArguments& arguments, Invocation* invocation) {
  if (!(arguments.seconds >= 0) || arguments.seconds > kSecondsMax) {
    return InvalidArgumentError(StrCat("--seconds must be from 0 to ", kSecondsMax));
  }
  const Result<io::FileInfo> info = io::LocalFileSystem()->Stat(arguments.directory);
  if (!info.ok() || !info->is_directory) {
    invocation->hint = "give the directory that the store is, or will be, in";
    return info.ok() ? InvalidArgumentError(arguments.directory + " is not a directory")
                     : info.status();
  }
  STEPWELL_ASSIGN_OR_RETURN(const std::unique_ptr<io::File> file,
                            OpenNamelessFile(arguments.directory));
  Report report;
  report.machine = LookAtMachine();
  STEPWELL_ASSIGN_OR_RETURN(report.file_system, LookAtFileSystem(arguments.directory, file.get()));
  report.warnings = WarningsAbout(report.machine, report.file_system);
  TestWrites(arguments, file.get(), &report);
  Outcome outcome;
  outcome.text =
      invocation->json ? JsonText(ReportJson(arguments, report)) : ReportText(arguments, report);
  return outcome;
}

}  // namespace

void AddDoctor(CLI::App* program, Invocation* invocation) {
  auto arguments = std::make_shared<DoctorArguments>();
  CLI::App* command = AddCommand(program, invocation, "doctor",
                                 "say what this machine offers a store, and what will hurt",
                                 [=] { return RunDoctor(*arguments, invocation); });
  command->add_option("DIR", arguments->directory, "the store's directory, or where it will be");
  command
      ->add_option("--seconds", arguments->seconds,
                   "how long to write for each of the two numbers; 0: not at all")
      ->type_name("SECONDS");
}

}  // namespace stepwell::cli
