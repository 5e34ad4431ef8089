#compdef zklock
# Completion of zklock(1) for zsh. Options, subcommands and paths of the ensemble come from `zklock complete`; the command
# behind the lock is completed as it would be alone.

_zklock() {
    local line value
    local -a answer ends goes_on
    # The words go by standard input: as arguments, a password among them would show in the list of processes.
    answer=("${(@f)$(printf '%s\0' "${(@Q)words[1,CURRENT-1]}" "${(Q)PREFIX}" | command zklock complete zsh 2>/dev/null)}")
    case $answer[1] in
    words)
        for line in "${(@)answer[2,-1]}"; do
            value=${${line%%$'\t'*}//:/\\:}
            [[ $line == *$'\t'* ]] && value+=:${line#*$'\t'}
            if [[ $value == */ ]]; then goes_on+=("$value"); else ends+=("$value"); fi
        done
        (( $#ends )) && _describe -t words 'zklock' ends
        (( $#goes_on )) && _describe -t paths 'path in the ensemble' goes_on -S ''
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
