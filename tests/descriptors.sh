#!/bin/bash
# A runner for cargo: runs a program, and prints the largest number of its open descriptors, sampled ten times a second.
# Without job control, bash makes a background process ignore Ctrl-C; env(1) resets that.
env --default-signal=INT,QUIT "$@" <&0 &
most=0
while fds=(/proc/$!/fd/*) && [[ -e /proc/$!/fd ]]; do
	most=$((${#fds[@]} > most ? ${#fds[@]} : most))
	sleep 0.1
done
wait $!
code=$?
# The name without the hash that cargo appends, and with the module of a chapter if only that module runs.
program=${1##*/}
stage=${program%-*}
[[ ${2-} != *:: ]] || stage+=::${2%::}
echo "$stage: at most $most descriptors" >&2
exit $code
