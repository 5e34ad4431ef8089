#!/bin/bash
# A runner for cargo: runs a program, and says how many descriptors it had open at most, as seen ten times a second.
# Without a job control of its own, bash would have what it starts in the background ignore Ctrl-C.
env --default-signal=INT,QUIT "$@" <&0 &
most=0
while fds=(/proc/$!/fd/*) && [[ -e /proc/$!/fd ]]; do
	most=$((${#fds[@]} > most ? ${#fds[@]} : most))
	sleep 0.1
done
wait $!
code=$?
# Without the hash that cargo puts behind a name; with the file of a chapter, if it is told to run that one alone.
program=${1##*/}
stage=${program%-*}
[[ ${2-} != *:: ]] || stage+=::${2%::}
echo "$stage: at most $most descriptors" >&2
exit $code
