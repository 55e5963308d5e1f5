#compdef stepwell
# SPDX-License-Identifier: Apache-2.0
# zsh completion for stepwell: a file named _stepwell in a directory of $fpath, or
#   source <(stepwell completion zsh)
# What commands take, `stepwell help COMMAND` says: this file names no command.

_stepwell_takes() { # of a command: options and arguments, what they take, what they are
  stepwell help $1 2>/dev/null | awk '
    /^[A-Z][a-z]*:$/ { part = $1 }
    part == "Positionals:" && /^  [A-Z]/ { print $1 "\t" ($2 == "..." ? "again" : "") }
    part == "Options:" && /^  -/ {
      count = split($1, names, ",")
      what = substr($0, 31)
      for (i = 1; i <= count; i++) print names[i] "\t" ($0 ~ /^  [^ ]+ [^ ]/ ? $2 : "") "\t" what
    }'
}

_stepwell() {
  local command previous kind again word line
  local -a options arguments places fields commands
  local -A values
  integer i
  for ((i = 2; i < CURRENT; i++)); do
    word=${words[i]}
    if [[ -z $command ]]; then
      [[ $word == -* ]] && continue
      command=$word
      for line in ${(f)"$(_stepwell_takes $command)"}; do
        fields=("${(@ps:\t:)line}")
        if [[ $line == -* ]]; then
          options+=("${fields[1]}:${fields[3]//:/\\:}")
          [[ -n ${fields[2]} ]] && values[${fields[1]}]=${fields[2]}
        else
          arguments+=(${fields[1]}) again=${fields[2]}
        fi
      done
    elif [[ -n $previous ]]; then
      previous=
    elif [[ -n ${values[$word]} ]]; then
      previous=$word
    elif [[ $word != -* ]]; then
      places+=(${~word})
    fi
  done
  if [[ -z $command ]]; then
    kind=COMMAND
  elif [[ -n $previous ]]; then
    kind=${values[$previous]}
  elif [[ $PREFIX == -* ]]; then
    kind=OPTION
  elif ((${#places} < ${#arguments})); then
    kind=${arguments[${#places} + 1]}
  elif [[ -n $again ]]; then
    kind=${arguments[-1]}
  fi
  [[ $kind == STEP && -n ${words[(r)--follow]} ]] && kind=URL # of each newest step
  case $kind in
    COMMAND)
      commands=(${(f)"$(stepwell --help | awk '/^$/ { on = 0 }
        on { print $1 ":" substr($0, 31) } /^Subcommands:/ { on = 1 }')"})
      _describe command commands
      ;;
    OPTION) _describe -o option options ;;
    STORE | DIR | SRC | URL) _directories ;;
    FILE) _files ;;
    STEP | A | B)
      compadd latest ${(f)"$(stepwell ls "${places[1]}" 2>/dev/null |
        awk 'NR > 1 { print $1 }')"}
      ;;
    PATH) # to the end of one level
      compadd -S '' -- ${(f)"$(
        stepwell show "${places[1]}" "${places[2]:-latest}" --paths 2>/dev/null |
        HAVE=$PREFIX awk 'index($0, ENVIRON["HAVE"]) == 1 {
          rest = substr($0, length(ENVIRON["HAVE"]) + 1)
          level = index(rest, "/")
          word = ENVIRON["HAVE"] (level ? substr(rest, 1, level) : rest)
          if (!seen[word]++) print word
        }')"}
      ;;
    CMD) _command_names ;;
    SHELL) compadd bash fish zsh ;;
  esac
}

# Loaded as a function by compinit, or sourced.
if [[ $funcstack[1] == _stepwell ]]; then
  _stepwell "$@"
else
  compdef _stepwell stepwell
fi
