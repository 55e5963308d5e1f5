// SPDX-License-Identifier: Apache-2.0
// `stepwell doctor [DIR]`: what this machine offers a store in that directory, and what will hurt.
#include <stepwell/doctor.h>

#include "api/cli/command.h"
#include "api/cli/output.h"
#include "api/cli/text.h"

namespace stepwell::cli {
namespace {

Json OrNull(const std::optional<uint64_t>& number) {
  return number ? Json(*number) : Json(nullptr);
}

// Measures how fast the disk writes in the pattern of saves. fio, a tool made for this, does the
// measuring.
std::string FioCommand(const std::string& directory, const FileSystemFacts& files) {
  return StrCat("fio --name=stepwell --directory=", directory,
                " --rw=write --bs=4M --iodepth=8 --ioengine=io_uring --direct=", files.direct_io,
                " --size=2G --end_fsync=1 --unlink=1");
}

Json ReportJson(const std::string& directory, const DoctorReport& report) {
  const MachineFacts& machine = report.machine;
  const FileSystemFacts& files = report.file_system;
  Json warnings = Json::array();
  for (const DoctorWarning& warning : report.warnings) {
    warnings.push_back({{"code", warning.code}, {"message", warning.message}});
  }
  return {{"schema", kJsonSchema},
          {"directory", directory},
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
            {"memory_alignment_bytes", files.memory_alignment_bytes},
            {"offset_alignment_bytes", files.offset_alignment_bytes}}},
          {"fio_command", FioCommand(directory, files)},
          {"warnings", std::move(warnings)}};
}

std::string LimitText(const std::optional<uint64_t>& bytes) {
  return bytes ? HumanBytes(*bytes) : "unlimited";
}

std::string ReportText(const std::string& directory, const DoctorReport& report) {
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
      {"directory", Printable(directory)},
      {"file system", StrCat(files.type, " on ", Printable(files.mount_point), " (",
                             Printable(files.source), "; ", options, ")")},
      {"space", StrCat(HumanBytes(files.free_bytes), " free of ", HumanBytes(files.total_bytes))},
      {"O_DIRECT", files.direct_io ? StrCat("yes: memory aligned to ", files.memory_alignment_bytes,
                                            ", offsets to ", files.offset_alignment_bytes, " bytes")
                                   : std::string("no")},
      {"punch holes", yes(files.punch_hole)},
      {"locks", yes(files.locks)},
      {"write speed", Printable(FioCommand(directory, files))}};
  std::string text = Table(rows, {false, false}) + "\n";
  for (const DoctorWarning& warning : report.warnings) {
    text += StrCat(Emphasize("warning", "1;33"), ": ", Printable(warning.message), "\n");
  }
  if (report.warnings.empty()) text += "nothing here will hurt\n";
  return text;
}

Result<CommandResult> RunDoctor(const std::string& directory, Invocation* invocation) {
  const Result<DoctorReport> report = ExamineMachine(directory);
  if (!report.ok()) {
    invocation->hint = "give the directory that the store is, or will be, in";
    return report.status();
  }
  CommandResult outcome;
  outcome.text =
      invocation->json ? JsonText(ReportJson(directory, *report)) : ReportText(directory, *report);
  return outcome;
}

}  // namespace

void AddDoctor(CLI::App* program, Invocation* invocation) {
  auto directory = std::make_shared<std::string>(".");
  CLI::App* command = AddCommand(program, invocation, "doctor",
                                 "say what this machine offers a store, and what will hurt",
                                 [=] { return RunDoctor(*directory, invocation); });
  command->add_option("DIR", *directory, "the store's directory, or where it will be");
}

}  // namespace stepwell::cli
