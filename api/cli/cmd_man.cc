// SPDX-License-Identifier: Apache-2.0
// `stepwell man`: the manual page, made of what --help says; the build runs it. Hidden.
#include <sstream>

#include "api/cli/command.h"
#include "api/cli/describe.h"

namespace stepwell::cli {
namespace {

// Text as roff takes it: dashes stay dashes, no line begins with a request.
std::string Roff(const std::string& text) {
  std::string out;
  for (const char c : text) {
    const bool at_start = out.empty() || out.back() == '\n';
    if (c == '\\') {
      out += "\\e";
    } else if (c == '-') {
      out += "\\-";
    } else if ((c == '.' || c == '\'') && at_start) {
      out += std::string("\\&") + c;
    } else {
      out += c;
    }
  }
  return out;
}

std::string Synopsis(const CommandInfo& command) {
  std::string text = ".B stepwell " + Roff(command.name) + "\n";
  for (const OptionInfo& argument : command.arguments) {
    const std::string name = argument.names[0] + (argument.many ? "..." : "");
    text += argument.required ? ".I " + Roff(name) + "\n" : ".RI [ " + Roff(name) + " ]\n";
  }
  return text + ".RI [ options ]\n";
}

std::string OptionText(const OptionInfo& option) {
  std::string names;
  for (const std::string& name : option.names) {
    names += (names.empty() ? "" : ", ") + std::string("\\fB") + Roff(name) + "\\fR";
  }
  if (!option.value.empty()) names += " \\fI" + Roff(option.value) + "\\fR";
  return ".TP\n" + names + "\n" + Roff(option.what) + "\n";
}

// Blocks of lines; indented ones are examples.
std::string FooterText(const std::string& footer) {
  std::string text = ".SH NOTES\n";
  std::istringstream lines(footer);
  std::string line;
  bool example = false;
  while (std::getline(lines, line)) {
    const bool indented = line.starts_with("  ");
    if (indented != example) text += indented ? ".nf\n" : ".fi\n";
    example = indented;
    text += line.empty() ? ".PP\n" : Roff(line) + "\n";
  }
  return text + (example ? ".fi\n" : "");
}

Result<Outcome> RunMan(const CLI::App& program) {
  std::string text =
      ".\\\" Made by `stepwell man`.\n"
      ".TH STEPWELL 1 \"\" \"stepwell " STEPWELL_VERSION
      "\" \"User Commands\"\n"
      ".SH NAME\nstepwell \\- checkpoint stores of JAX training\n"
      ".SH SYNOPSIS\n.B stepwell\n.I COMMAND\n.RI [ arguments ]\n.RI [ options ]\n"
      ".SH DESCRIPTION\n" +
      Roff(program.get_description()) + "\n.SH COMMANDS\n";
  for (const CommandInfo& command : DescribeCommands(program)) {
    text += ".SS " + Roff(command.name) + "\n" + Synopsis(command) + ".PP\n" + Roff(command.what) +
            "\n";
    for (const OptionInfo& argument : command.arguments) text += OptionText(argument);
    for (const OptionInfo& option : command.options) text += OptionText(option);
  }
  Outcome outcome;
  outcome.text = text + FooterText(program.get_footer()) +
                 ".SH ENVIRONMENT\n.TP\n.B NO_COLOR\nno colours on a terminal\n"
                 ".TP\n.B STEPWELL_PYTHON\nthe Python that has the package stepwell, for push and "
                 "pull; default: the python3 beside this program, or else of $PATH\n"
                 ".TP\n.B STEPWELL_DISK\n\"uring\" or \"posix\": how files are read and written\n";
  return outcome;
}

}  // namespace

void AddMan(CLI::App* program, Invocation* invocation) {
  CLI::App* command = program->add_subcommand("man", "print the manual page");
  command->group("");
  command->callback([=] { invocation->run = [=] { return RunMan(*program); }; });
}

}  // namespace stepwell::cli
