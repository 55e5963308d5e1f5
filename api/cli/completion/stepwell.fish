# SPDX-License-Identifier: Apache-2.0
# fish completion for stepwell:  stepwell completion fish | source
# What commands take, `stepwell help COMMAND` says: this file names no command.

function __stepwell_takes # of a command: options and arguments, what they take, what they are
    stepwell help $argv[1] 2>/dev/null | awk '
        /^[A-Z][a-z]*:$/ { part = $1 }
        part == "Positionals:" && /^  [A-Z]/ { print $1 "\t" ($2 == "..." ? "again" : "") }
        part == "Options:" && /^  -/ {
            count = split($1, names, ",")
            for (i = 1; i <= count; i++)
                print names[i] "\t" ($0 ~ /^  [^ ]+ [^ ]/ ? $2 : "") "\t" substr($0, 31)
        }'
end

function __stepwell_complete
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    set -l command
    set -l options
    set -l takers
    set -l values
    set -l arguments
    set -l again
    set -l places
    set -l previous
    for word in $words[2..-1]
        if test -z "$command"
            string match -q -- '-*' $word; and continue
            set command $word
            for line in (__stepwell_takes $command)
                set -l fields (string split \t -- $line)
                if string match -q -- '-*' $line
                    set -a options $fields[1]\t$fields[3]
                    if test -n "$fields[2]"
                        set -a takers $fields[1]
                        set -a values $fields[2]
                    end
                else
                    set -a arguments $fields[1]
                    set again $fields[2]
                end
            end
        else if test -n "$previous"
            set previous
        else if contains -- $word $takers
            set previous $values[(contains -i -- $word $takers)]
        else if not string match -q -- '-*' $word
            set -a places $word
        end
    end
    set -l kind
    set -l index (math (count $places) + 1)
    if test -z "$command"
        set kind COMMAND
    else if test -n "$previous"
        set kind $previous
    else if string match -q -- '-*' $current
        set kind OPTION
    else if test $index -le (count $arguments)
        set kind $arguments[$index]
    else if test -n "$again"
        set kind $arguments[-1]
    end
    test "$kind" = STEP; and contains -- --follow $words; and set kind URL # of each newest step
    switch "$kind"
        case COMMAND
            stepwell --help | awk '/^$/ { on = 0 }
                on { print $1 "\t" substr($0, 31) } /^Subcommands:/ { on = 1 }'
        case OPTION
            string join \n -- $options
        case STORE DIR SRC URL
            __fish_complete_directories $current
        case FILE
            __fish_complete_path $current
        case STEP A B
            echo latest
            stepwell ls $places[1] 2>/dev/null | awk 'NR > 1 { print $1 }'
        case PATH # to the end of one level
            set -a places latest
            set -lx HAVE $current
            stepwell show $places[1] $places[2] --paths 2>/dev/null |
                awk 'index($0, ENVIRON["HAVE"]) == 1 {
                    rest = substr($0, length(ENVIRON["HAVE"]) + 1)
                    level = index(rest, "/")
                    word = ENVIRON["HAVE"] (level ? substr(rest, 1, level) : rest)
                    if (!seen[word]++) print word
                }'
        case CMD
            complete -C "$current"
        case SHELL
            string join \n bash fish zsh
    end
end

complete -c stepwell -f -a '(__stepwell_complete)'
