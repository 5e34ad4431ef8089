# Completion of zklock(1) for fish. Options, subcommands and paths come from `zklock complete`. The words after the
# lock's path are completed as a command of their own.

function __zklock_complete
    set -l words (commandline --current-process --tokenize --cut-at-cursor)
    set -l current (commandline --current-token --cut-at-cursor)
    # The words go by standard input, because a password among them would show in the list of processes.
    set -l answer (printf '%s\0' $words "$current" | command zklock complete fish 2>/dev/null)
    switch "$answer[1]"
        case words
            set -e answer[1]
            printf '%s\n' $answer
        case file
            set -l option (string match --regex -- '^--[^=]*=' "$current")
            for file in (__fish_complete_path (string replace -- "$option" '' "$current"))
                echo "$option$file"
            end
        case 'command *'
            # The words of the command up to the cursor, without the words before the command.
            set -l first (math 1 + (string replace 'command ' '' -- $answer[1]))
            set -l line
            if test $first -le (count $words)
                set line (string escape -- $words[$first..-1])
            end
            complete --do-complete (string join ' ' -- $line "$current")
    end
end

complete --command zklock --no-files --arguments '(__zklock_complete)'
