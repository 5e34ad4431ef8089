#compdef zklock
# Completion of zklock(1) for zsh. Options, subcommands and paths come from `zklock complete`. The words after the
# lock's path are completed as a command of their own.

_zklock() {
    local line
    local -a answer meant ends goes_on expl
    # The words go by standard input, because a password among them would show in the list of processes.
    answer=("${(@f)$(printf '%s\0' "${(@Q)words[1,CURRENT-1]}" "${(Q)PREFIX}" | command zklock complete zsh 2>/dev/null)}")
    case $answer[1] in
    words)
        for line in "${(@)answer[2,-1]}"; do
            if [[ $line == *$'\t'* ]]; then
                meant+=("${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}")
            elif [[ $line == */ ]]; then
                goes_on+=("$line")
            else
                ends+=("$line")
            fi
        done
        (( $#meant )) && _describe -t words 'zklock' meant
        # compadd takes names as they are. _describe would interpret a backslash.
        (( $#ends )) && _wanted paths expl 'path in the ensemble' compadd -a ends
        (( $#goes_on )) && _wanted paths expl 'path in the ensemble' compadd -S '' -a goes_on
        ;;
    file)
        compset -P '--*='
        _files
        ;;
    command\ *)
        shift ${answer[1]#command } words
        (( CURRENT -= ${answer[1]#command } ))
        _normal
        ;;
    esac
}

if [[ $funcstack[1] == _zklock ]]; then
    _zklock "$@"
else
    compdef _zklock zklock
fi
