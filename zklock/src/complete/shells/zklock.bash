# Completion of zklock(1) for bash. Options, subcommands and paths come from `zklock complete`. The words after the
# lock's path are completed as a command of their own.

_zklock() {
    # bash also breaks words at ':' and '='. This loop joins them again up to the cursor: `words` are the words of
    # zklock, `starts` the index of bash's word at which each begins, and `places` its position in the line.
    local rest=${COMP_LINE:0:COMP_POINT} word at
    local -a words=() starts=() places=()
    for ((at = 0; at <= COMP_CWORD; at++)); do
        word=${rest#"${rest%%[![:space:]]*}"}
        if ((at == 0)) || [[ $word != "$rest" ]]; then
            words+=('') starts+=("$at") places+=("$((COMP_POINT - ${#word}))")
        fi
        rest=$word
        # The last word may continue behind the cursor.
        if ((at < COMP_CWORD)); then
            word=${COMP_WORDS[at]}
        fi
        words[-1]+=$word
        rest=${rest#"$word"}
    done

    # The words go by standard input, because a password among them would show in the list of processes. The last word
    # sent is the text that bash replaces. Candidates come quoted for the quotes that are open there.
    local line
    local -a answer=()
    mapfile -t answer < <(printf '%s\0' "${words[@]}" "$2" | command zklock complete bash 2>/dev/null)
    COMPREPLY=()
    case ${answer[0]-} in
    words)
        for line in "${answer[@]:1}"; do
            COMPREPLY+=("${line%%$'\t'*}")
        done
        if [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == */ ]]; then
            compopt -o nospace
        fi
        ;;
    file) compopt -o default ;;
    command\ *) _zklock_command "${answer[0]#command }" ;;
    esac
}

# Completes the command that begins at word $1 of zklock. The first word is 0.
_zklock_command() {
    local offset=${starts[$1]} place=${places[$1]}
    if declare -F _command_offset >/dev/null; then
        _command_offset "$offset"
        return
    fi
    local COMP_LINE=${COMP_LINE:place} COMP_POINT=$((COMP_POINT - place)) COMP_CWORD=$((COMP_CWORD - offset))
    local -a COMP_WORDS=("${COMP_WORDS[@]:offset}")
    local name=${COMP_WORDS[0]} spec option previous=
    if ((COMP_CWORD == 0)); then
        mapfile -t COMPREPLY < <(compgen -c -- "${name:0:COMP_POINT}")
        compopt -o default
        return
    fi
    spec=$(complete -p -- "$name" 2>/dev/null || complete -p -- "${name##*/}" 2>/dev/null)
    for option in ${spec:-'-o' 'default'}; do
        case $previous in
        -o) compopt -o "$option" ;;
        -F) "$option" "$name" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}" ;;
        esac
        previous=$option
    done
}

complete -F _zklock zklock
