# SPDX-License-Identifier: Apache-2.0
# bash completion for stepwell:  source <(stepwell completion bash)
# What commands take, `stepwell help COMMAND` says: this file names no command.

_stepwell_takes() { # of a command: options and arguments, what they take, which may be repeated
  stepwell help "$1" 2>/dev/null | awk '
    /^[A-Z][a-z]*:$/ { part = $1 }
    part == "Positionals:" && /^  [A-Z]/ { print $1, ($2 == "..." ? "again" : "") }
    part == "Options:" && /^  -/ {
      count = split($1, names, ",")
      for (i = 1; i <= count; i++) print names[i], ($0 ~ /^  [^ ]+ [^ ]/ ? $2 : "")
    }'
}

_stepwell() {
  local current=${COMP_WORDS[COMP_CWORD]} command= previous= kind= again= word name value i
  local -A values=()
  local -a options=() arguments=() places=()
  for ((i = 1; i < COMP_CWORD; i++)); do
    word=${COMP_WORDS[i]}
    if [[ -z $command ]]; then
      [[ $word == -* ]] && continue
      command=$word
      while read -r name value; do
        if [[ $name == -* ]]; then
          options+=("$name")
          [[ -n $value ]] && values[$name]=$value
        else
          arguments+=("$name") again=$value
        fi
      done < <(_stepwell_takes "$command")
    elif [[ -n $previous ]]; then
      previous=
    elif [[ -n ${values[$word]:-} ]]; then
      previous=$word
    elif [[ $word != -* ]]; then
      places+=("$word")
    fi
  done
  if [[ -z $command ]]; then
    kind=COMMAND
  elif [[ -n $previous ]]; then
    kind=${values[$previous]}
  elif [[ $current == -* ]]; then
    kind=OPTION
  elif ((${#places[@]} < ${#arguments[@]})); then
    kind=${arguments[${#places[@]}]}
  elif [[ -n $again ]]; then
    kind=${arguments[-1]}
  fi
  [[ $kind == STEP && " ${COMP_WORDS[*]} " == *' --follow '* ]] && kind=URL # of each newest step
  local store=${places[0]/#'~/'/$HOME/} step=${places[1]:-latest}
  COMPREPLY=()
  case $kind in
    COMMAND)
      COMPREPLY=($(compgen -W "--help --version $(stepwell --help |
        awk '/^$/ { on = 0 } on { print $1 } /^Subcommands:/ { on = 1 }')" -- "$current"))
      ;;
    OPTION) COMPREPLY=($(compgen -W "${options[*]}" -- "$current")) ;;
    STORE | DIR | SRC | URL)
      compopt -o filenames
      mapfile -t COMPREPLY < <(compgen -d -- "$current")
      ;;
    FILE)
      compopt -o filenames
      mapfile -t COMPREPLY < <(compgen -f -- "$current")
      ;;
    STEP | A | B)
      COMPREPLY=($(compgen -W "latest $(stepwell ls "$store" 2>/dev/null |
        awk 'NR > 1 { print $1 }')" -- "$current"))
      ;;
    PATH) # to the end of one level
      compopt -o nospace
      mapfile -t COMPREPLY < <(stepwell show "$store" "$step" --paths 2>/dev/null |
        HAVE=$current awk 'index($0, ENVIRON["HAVE"]) == 1 {
          rest = substr($0, length(ENVIRON["HAVE"]) + 1)
          level = index(rest, "/")
          word = ENVIRON["HAVE"] (level ? substr(rest, 1, level) : rest)
          if (!seen[word]++) print word
        }')
      ;;
    CMD) mapfile -t COMPREPLY < <(compgen -c -- "$current" | sort -u) ;;
    SHELL) COMPREPLY=($(compgen -W 'bash fish zsh' -- "$current")) ;;
  esac
}

complete -F _stepwell stepwell
