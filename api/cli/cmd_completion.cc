// SPDX-License-Identifier: Apache-2.0
// `stepwell completion SHELL`: a script that completes commands, options, directories and steps.
#include <algorithm>

#include "api/cli/command.h"
#include "api/cli/describe.h"
#include "api/cli/output.h"
#include "api/cli/text.h"

namespace stepwell::cli {
namespace {

// What an argument or an option's value is completed with.
std::string Completed(const std::string& name) {
  if (name == "STORE" || name == "DIR" || name == "SRC" || name == "URL") return "directory";
  if (name == "STEP" || name == "A" || name == "B") return "step";
  if (name == "FILE") return "file";
  if (name == "PATH") return "path";
  if (name == "SHELL") return "shell";
  return "nothing";
}

std::string Joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

// In single quotes, for every one of the shells. No text of ours has a backslash or a bracket.
std::string Quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

// What is to follow HAVE in the lines with that beginning, to the end of one level of paths.
constexpr const char* kOneLevel =
    R"SH(index($0, ENVIRON["HAVE"]) == 1 {
          rest = substr($0, length(ENVIRON["HAVE"]) + 1)
          level = index(rest, "/")
          word = ENVIRON["HAVE"] (level ? substr(rest, 1, level) : rest)
          if (!seen[word]++) print word
        })SH";

// The script with kOneLevel in its place.
std::string WithOneLevel(std::string script) {
  constexpr std::string_view kPlace = "@AWK@";
  return script.replace(script.find(kPlace), kPlace.size(), kOneLevel);
}

// ---- bash ---------------------------------------------------------------------------------

constexpr const char* kBashHead =
    R"SH(# bash completion for stepwell:  source <(stepwell completion bash)
_stepwell() {
  local current=${COMP_WORDS[COMP_CWORD]} command= store= step= previous= word kind
  local options= values= arguments= index=0 i
  for ((i = 1; i < COMP_CWORD; i++)); do
    word=${COMP_WORDS[i]}
    if [[ -z $command ]]; then
      [[ $word == -* ]] || command=$word
      _stepwell_command
    elif [[ -n $previous ]]; then
      previous=
    elif [[ " $values " == *" $word="* ]]; then
      previous=$word
    elif [[ $word != -* ]]; then
      ((index++))
      ((index == 2)) && step=$word
      [[ -n $store ]] || store=$word
    fi
  done
  COMPREPLY=()
  if [[ -z $command ]]; then
    kind=command
  elif [[ -n $previous ]]; then
    for word in $values; do [[ $word == "$previous="* ]] && kind=${word#*=}; done
  elif [[ $current == -* ]]; then
    kind=option
  else
    local -a kinds=($arguments)
    kind=${kinds[index]:-}
    # The last argument may be there more than once.
    if ((index >= ${#kinds[@]} && ${#kinds[@]} > 0)); then
      [[ ${kinds[-1]} == *+ ]] && kind=${kinds[-1]}
    fi
  fi
  [[ $store == '~/'* ]] && store=$HOME/${store#'~/'}
  case ${kind%+} in
    option) COMPREPLY=($(compgen -W "$options" -- "$current")) ;;
    directory) compopt -o filenames; mapfile -t COMPREPLY < <(compgen -d -- "$current") ;;
    file) compopt -o filenames; mapfile -t COMPREPLY < <(compgen -f -- "$current") ;;
    shell) COMPREPLY=($(compgen -W 'bash fish zsh' -- "$current")) ;;
    path)
      compopt -o nospace
      mapfile -t COMPREPLY < <(stepwell show "$store" "${step:-latest}" --paths 2>/dev/null |
        HAVE=$current awk '@AWK@')
      ;;
    step)
      COMPREPLY=($(compgen -W "latest $(stepwell ls "$store" 2>/dev/null |
        awk 'NR > 1 { print $1 }')" -- "$current"))
      ;;
)SH";

std::string Bash(const std::vector<CommandInfo>& commands) {
  std::vector<std::string> names;
  std::string cases;
  for (const CommandInfo& command : commands) {
    names.push_back(command.name);
    std::vector<std::string> options, values, arguments;
    for (const OptionInfo& option : command.options) {
      for (const std::string& name : option.names) {
        options.push_back(name);
        if (!option.value.empty()) values.push_back(name + "=" + Completed(option.value));
      }
    }
    for (const OptionInfo& argument : command.arguments) {
      arguments.push_back(Completed(argument.names[0]) + (argument.many ? "+" : ""));
    }
    cases += StrCat("    ", command.name, ") options='", Joined(options), "' values='",
                    Joined(values), "' arguments='", Joined(arguments), "' ;;\n");
  }
  return StrCat(WithOneLevel(kBashHead), "    command) COMPREPLY=($(compgen -W '", Joined(names),
                " --help --version' -- \"$current\")) ;;\n  esac\n}\n\n",
                "_stepwell_command() {\n  case $command in\n", cases,
                "  esac\n}\n\ncomplete -F _stepwell stepwell\n");
}

// ---- zsh ----------------------------------------------------------------------------------

constexpr const char* kZshHead = R"SH(#compdef stepwell
# zsh completion for stepwell: a file named _stepwell in a directory of $fpath, or
#   source <(stepwell completion zsh)
_stepwell_steps() {
  local word store=
  for word in ${words[2,-1]}; do
    [[ $word == -* ]] || { store=${~word}; break; }
  done
  local -a steps
  steps=(latest ${(f)"$(stepwell ls "$store" 2>/dev/null | awk 'NR > 1 { print $1 }')"})
  compadd -a steps
}

_stepwell_paths() {
  local word
  local -a places paths
  for word in ${words[2,$((CURRENT - 1))]}; do [[ $word == -* ]] || places+=(${~word}); done
  paths=(${(f)"$(stepwell show "${places[1]}" "${places[2]:-latest}" --paths 2>/dev/null |
    HAVE=$PREFIX awk '@AWK@')"})
  compadd -S '' -a paths
}

_stepwell() {
  local curcontext=$curcontext state line
  _arguments -C '(- *)--help[print this help]' '(- *)--version[print the version]' \
    '1:command:->command' '*::argument:->argument'
  case $state in
    command)
      local -a commands
)SH";

std::string ZshAction(const std::string& name) {
  const std::string kind = Completed(name);
  if (kind == "directory") return "_directories";
  if (kind == "file") return "_files";
  if (kind == "step") return "_stepwell_steps";
  if (kind == "path") return "_stepwell_paths";
  if (kind == "shell") return "(bash fish zsh)";
  return " ";
}

// Colons divide the parts of a specification.
std::string ZshText(std::string text) {
  for (size_t at = text.find(':'); at != std::string::npos; at = text.find(':', at + 2)) {
    text.insert(at, "\\");
  }
  return text;
}

std::string Zsh(const std::vector<CommandInfo>& commands) {
  std::string names;
  std::string cases;
  for (const CommandInfo& command : commands) {
    names += " \\\n        " + Quoted(command.name + ":" + ZshText(command.what));
    cases += StrCat("        ", command.name, ") _arguments");
    for (const OptionInfo& option : command.options) {
      for (const std::string& name : option.names) {
        std::string spec = (option.many ? "*" : "") + name + "[" + ZshText(option.what) + "]";
        if (!option.value.empty()) spec += ":" + option.value + ":" + ZshAction(option.value);
        cases += " \\\n          " + Quoted(spec);
      }
    }
    for (size_t i = 0; i < command.arguments.size(); ++i) {
      const OptionInfo& argument = command.arguments[i];
      cases += " \\\n          " + Quoted(StrCat(argument.many ? "*" : std::to_string(i + 1),
                                                 argument.required ? ":" : "::", argument.names[0],
                                                 ":", ZshAction(argument.names[0])));
    }
    cases += " ;;\n";
  }
  return StrCat(WithOneLevel(kZshHead), "      commands=(", names,
                ")\n      _describe command commands\n      ;;\n",
                "    argument)\n      case $words[1] in\n", cases,
                "      esac\n      ;;\n  esac\n}\n\n"
                "# Loaded as a function by compinit, or sourced.\n"
                "if [[ $funcstack[1] == _stepwell ]]; then\n  _stepwell \"$@\"\nelse\n"
                "  compdef _stepwell stepwell\nfi\n");
}

// ---- fish ---------------------------------------------------------------------------------

constexpr const char* kFishHead =
    R"SH(# fish completion for stepwell:  stepwell completion fish | source
function __stepwell_arguments
    set -l words (commandline -opc)
    for word in $words[3..-1]
        string match -q -- '-*' $word; or echo $word
    end
end
function __stepwell_has
    test (count (__stepwell_arguments)) $argv
end
function __stepwell_steps
    set -l arguments (__stepwell_arguments)
    echo latest
    stepwell ls $arguments[1] 2>/dev/null | awk 'NR > 1 { print $1 }'
end
function __stepwell_paths
    set -l arguments (__stepwell_arguments) latest
    set -lx HAVE (commandline -ct)
    stepwell show $arguments[1] $arguments[2] --paths 2>/dev/null | awk '@AWK@'
end
complete -c stepwell -f
complete -c stepwell -n __fish_use_subcommand -l help -d 'print this help'
complete -c stepwell -n __fish_use_subcommand -l version -d 'print the version'
)SH";

std::string FishAction(const std::string& name) {
  const std::string kind = Completed(name);
  if (kind == "directory") return "'(__fish_complete_directories)'";
  if (kind == "step") return "'(__stepwell_steps)'";
  if (kind == "path") return "'(__stepwell_paths)'";
  if (kind == "shell") return "'bash fish zsh'";
  return "";
}

std::string Fish(const std::vector<CommandInfo>& commands) {
  std::string text = WithOneLevel(kFishHead);
  for (const CommandInfo& command : commands) {
    text += StrCat("complete -c stepwell -n __fish_use_subcommand -a ", command.name, " -d ",
                   Quoted(command.what), "\n");
    const std::string condition = "__fish_seen_subcommand_from " + command.name;
    for (const OptionInfo& option : command.options) {
      text += StrCat("complete -c stepwell -n ", Quoted(condition));
      for (const std::string& name : option.names) {
        text += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
      }
      if (!option.value.empty()) {
        const std::string action = FishAction(option.value);
        text += option.value == "FILE" ? " -rF" : " -x";
        if (!action.empty()) text += " -a " + action;
      }
      text += StrCat(" -d ", Quoted(option.what), "\n");
    }
    for (size_t i = 0; i < command.arguments.size(); ++i) {
      const std::string action = FishAction(command.arguments[i].names[0]);
      if (action.empty()) continue;
      const std::string place =
          StrCat("; and __stepwell_has -", command.arguments[i].many ? "ge " : "eq ", i);
      text += StrCat("complete -c stepwell -n ", Quoted(condition + place), " -a ", action, "\n");
    }
  }
  return text;
}

Result<Outcome> RunCompletion(const CLI::App& program, const std::string& shell, bool json) {
  const std::vector<CommandInfo> commands = DescribeCommands(program);
  Outcome outcome;
  if (shell == "bash") {
    outcome.text = Bash(commands);
  } else if (shell == "zsh") {
    outcome.text = Zsh(commands);
  } else if (shell == "fish") {
    outcome.text = Fish(commands);
  } else {
    return InvalidArgumentError(StrCat("no completion for ", shell, "; there is bash, fish, zsh"));
  }
  if (json) {
    outcome.text = JsonText({{"schema", kJsonSchema}, {"shell", shell}, {"script", outcome.text}});
  }
  return outcome;
}

}  // namespace

void AddCompletion(CLI::App* program, Invocation* invocation) {
  auto shell = std::make_shared<std::string>();
  CLI::App* command = AddCommand(program, invocation, "completion",
                                 "print a script that completes commands in a shell",
                                 [=] { return RunCompletion(*program, *shell, invocation->json); });
  command->add_option("SHELL", *shell, "bash, fish or zsh")->required();
}

}  // namespace stepwell::cli
