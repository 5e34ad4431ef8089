# What became of the tests of one chapter, from what its program printed.
#
#   names   a file with the tests that the program has, as it lists them; empty if the tests have no list (the documentation's)
#   code    what the program ended with
#   late    for how long no test had ended, if it was ended because of that; else nothing
#
# Prints lines of fields, with tabs between them: `passed COUNT`; for each test that failed `red NAME MESSAGE`, and after it, as lines
# that begin with `|`, what the test had printed; for one that could not be judged `unjudged NAME`.

function is_test(name) { return !listed || name in known }

# The first line of what a test that failed says. Its own panic says more than one of a thread that it started.
function message(name) {
    if (name in own) return own[name]
    if (name in error) return error[name]
    if (name in other) return other[name]
    return (name in first) ? first[name] : "it says nothing"
}

# A machine that stood still is no fault of the lock's, so the name of the test would mislead.
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

# The tests that had not ended: those that are known to have begun, if there are any.
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

# The line after this one is the message.
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

# Stands once before what the tests have printed and once before their names. What a test printed may have it as well: so the last one counts.
/^failures:$/ { failed = 0; cut = length_of[section] }

/^    [^ ]/ && is_test(substr($0, 5)) { candidate[++failed] = substr($0, 5) }

# A program that a test has started may have printed such a line, too: but of a part of the tests.
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
