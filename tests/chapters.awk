# Finds the result of each test of a chapter in the output of the chapter's program.
#
#   names   the file with the program's list of tests; empty for the documentation, which has no list
#   code    the exit code of the program
#   late    for how long no test had ended, if the program was stopped for that; else empty
#
# Prints lines of fields, with tabs between them: `passed COUNT`; for each failed test `red NAME MESSAGE`, followed by
# the test's output in lines that begin with `|`; for a test that could not be judged `unjudged NAME`.

function is_test(name) { return !listed || name in known }

# Returns the first line of a failed test's message. The test's own panic says more than a panic of one of its threads.
function message(name) {
    if (name in own) return own[name]
    if (name in error) return error[name]
    if (name in other) return other[name]
    return (name in first) ? first[name] : "it says nothing"
}

# Prints the result of a failed test. After a standstill of the machine the test's name would mislead.
function tell(name,   text, at) {
    text = message(name)
    if (text ~ /^(called `Result::unwrap\(\)` on an `Err` value: JoinError::Panic\(Id\([0-9]+\), )?"?the machine stood still/) {
        print "unjudged\t" name
        return
    }
    print "red\t" name "\t" text
    for (at = 1; at <= length_of[name] && at <= 60; at++) print "|" line_of[name, at]
    if (length_of[name] > 60) print "|(and " length_of[name] - 60 " lines more)"
}

# Returns the tests that had not ended: only those that are known to have begun, if there are any.
function not_ended(   name, text, count, begun) {
    for (name in slow) begun += !(name in ended)
    for (name in known)
        if (!(name in ended) && (!begun || name in slow) && ++count <= 20) text = text (text == "" ? "" : ", ") name
    return text (count > 20 ? ", and " count - 20 " more" : "")
}

BEGIN {
    FS = "[ ;]+"
    while ((getline line < names) > 0) if (sub(/: test$/, "", line)) { known[line]; listed++ }
}

# The next line is the message.
expected != "" {
    if (expected == "own") own[section] = $0; else other[section] = $0
    expected = ""
}

/^test .* \.\.\. / {
    name = substr($0, 6, index($0, " ... ") - 6)
    sub(/ - should panic$/, "", name)
    if (is_test(name)) ended[name] = $0 ~ /FAILED$/ ? "FAILED" : "ok"
}

/^test .* has been running for over 60 seconds$/ {
    name = substr($0, 6, index($0, " has been running") - 6)
    if (is_test(name)) slow[name]
}

/^---- .* stdout ----$/ && is_test(substr($0, 6, length($0) - 17)) {
    section = substr($0, 6, length($0) - 17)
    length_of[section] = 0
    next
}

# Printed before the output of failed tests and again before their names. A test may print such a line too, so the last
# one counts.
/^failures:$/ { failed = 0; cut = length_of[section] }

/^    [^ ]/ && is_test(substr($0, 5)) { candidate[++failed] = substr($0, 5) }

# A program started by a test may print such a line too, but for a part of the tests.
/^test result: (ok|FAILED)\. [0-9]+ passed; [0-9]+ failed; / && (!listed || $4 + $6 + $8 + $10 == listed && $12 == 0) {
    results++
    passed += $4
    for (at = 1; at <= $6; at++) red[++reds] = at <= failed ? candidate[at] : "(a test without a name)"
    if (section != "" && cut) length_of[section] = cut
    section = ""
    failed = 0
}

section != "" {
    line_of[section, ++length_of[section]] = $0
    if ($0 ~ /^thread '.*'.* panicked at /) {
        owner = substr($0, 9)
        owner = substr(owner, 1, index(owner, "'") - 1)
        expected = owner == section || owner == "main" ? "own" : "other"
    } else if ($0 ~ /^([Ee]rror(\[E[0-9]+\])?: |note: (test did not panic|panic did not contain))/ && !(section in error)) {
        error[section] = $0
        sub(/^Error: /, "", error[section])
    } else if ($0 != "" && !(section in first)) first[section] = $0
}

END {
    if (!results) for (name in ended) if (ended[name] == "ok") passed++
    print "passed\t" passed + 0
    for (at = 1; at <= reds; at++) tell(red[at])
    if (results && (code == 0 || reds)) exit
    if (!results) for (name in ended) if (ended[name] == "FAILED")
        print "red\t" name "\tit failed, and the program ended before it said why"
    why = late ? "it was ended, because no test had ended for " late : "it ended with code " code
    if (code > 128 && !late) why = why " (signal " code - 128 ")"
    if (!results) why = why ", without a result" (listed ? "; not ended: " not_ended() : "")
    print "red\t(the program)\t" why
}
