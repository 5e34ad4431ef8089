//! Tests of wrong settings: the message begins with the option or variable that gave the value.

use super::*;

/// Wrong values: the option and the variable of a setting, the value, and the problem in the message.
const WRONG: [(&str, &str, &str, &str); 19] = [
    ("--tick-time", "ZK_TICK_TIME", "soon", "expected a number of seconds, or a time like 1m30s"),
    ("--tick-time", "ZK_TICK_TIME", "-1", "expected a number of seconds, or a time like 1m30s"),
    ("--tick-time", "ZK_TICK_TIME", "0", "a tick time of 0ns"),
    ("--tick-time", "ZK_TICK_TIME", "1h", "is too long for a session timeout of 10s"),
    ("--zk", "ZK_HOSTS", "::::", "has too many colons"),
    ("--zk", "ZK_HOSTS", "a:1,,b:1", "names no server"),
    ("--zk", "ZK_HOSTS", "http://a:1", "\"http://\" is no scheme of a connect string: write only host and port, or"),
    ("--zk", "ZK_HOSTS", "a:1/zookeeper", "ZooKeeper keeps its own nodes in /zookeeper"),
    ("--zk", "ZK_HOSTS", "tcp+tls://a:1", "needs `tls` to be set"),
    ("--auth", "ZK_AUTH", "nobody", "must be USER:PASSWORD"),
    ("--auth", "ZK_AUTH", "a:b\tc", "digest user \"a\": its password has a control character"),
    ("--sasl", "ZK_SASL", "a\"b:c", "SASL user"),
    ("--sasl", "ZK_SASL", "a:b\tc", "SASL user \"a\": its password has a control character"),
    ("--sasl", "ZK_SASL", "a:p\u{e4}\u{df}", "SASL user \"a\": its password is not ASCII, but ISO 8859-1"),
    ("--auth-file", "ZK_AUTH_FILE", "/nowhere/at/all", "/nowhere/at/all: No such file"),
    ("--sasl-file", "ZK_SASL_FILE", "/nowhere/at/all", "/nowhere/at/all: No such file"),
    ("--tls-ca", "ZK_TLS_CA", "/dev/null", "/dev/null: TLS authorities: no certificate"),
    ("--tls-cert", "ZK_TLS_CERT", "/nowhere", "it needs --tls-key (or ZK_TLS_KEY), too"),
    ("--tls-key", "ZK_TLS_KEY", "/nowhere", "it needs --tls-cert (or ZK_TLS_CERT), too"),
];

/// Runs zklock with a wrong setting. No server listens at the port, so a zklock that tried to connect would exit with
/// 69.
async fn refusal(mut command: Command, option: &str, value: &str, by_option: bool) -> Run {
    if by_option {
        command.arg(format!("{option}={value}"));
    }
    command.args(["-n", "/zklock/settings", "true"]);
    ended(command).await
}

#[support::judged]
async fn an_unknown_subcommand_is_corrected_or_points_to_the_help() {
    for (arguments, advice) in [
        (&["lss"][..], "nor a subcommand; did you mean ls? see zklock --help\n"),
        (&["help"], "nor a subcommand; see zklock --help\n"),
        (&["status", "/l"], "nor a subcommand; see zklock --help\n"),
        (&["man", "status"], "there is no subcommand \"status\": see zklock --help\n"),
    ] {
        let run = ended(zklock_on("127.0.0.1:1", arguments)).await;
        assert!(run.code == Some(64) && run.stderr.ends_with(advice), "{run:#?}");
    }
}

#[support::judged]
async fn a_wrong_setting_is_named_as_it_was_given() {
    for (option, variable, value, problem) in WRONG {
        for by_option in [true, false] {
            let mut command = zklock_on("127.0.0.1:1", &[] as &[&str]);
            // The option overrides the variable.
            command.env(variable, if by_option { "" } else { value });
            let (name, other) = if by_option { (option, variable) } else { (variable, option) };
            let run = refusal(command, option, value, by_option).await;
            assert_eq!(run.code, Some(64), "{run:#?}");
            let said = run.stderr.strip_prefix("zklock: ").unwrap_or_else(|| panic!("{run:#?}"));
            assert!(said.starts_with(name) && !said.starts_with(&format!("{name}-file")), "{run:#?}");
            assert!(said.contains(problem) && !said.contains(other), "{run:#?}");
            assert_eq!(said.lines().count(), 1, "{run:#?}");
        }
    }
}

#[support::judged]
async fn a_variable_that_is_not_utf_8_is_not_shown() {
    use std::os::unix::ffi::OsStrExt;
    for variable in ["ZK_HOSTS", "ZK_TICK_TIME", "ZK_AUTH", "ZK_SASL"] {
        let mut command = zklock(&["/zklock/settings", "true"]);
        command.env(variable, std::ffi::OsStr::from_bytes(b"hunter2:\xff"));
        let run = ended(command).await;
        let expected = format!("zklock: {variable}: the value is not valid UTF-8\n");
        assert_eq!((run.code, run.stderr), (Some(64), expected));
    }
}

#[support::judged]
async fn an_empty_variable_is_unset_and_help_needs_none() {
    let names = WRONG.map(|(_, variable, ..)| variable);
    let mut command = zklock(&["/zklock/settings", "true"]);
    for name in names.iter().filter(|name| **name != "ZK_HOSTS") {
        command.env(name, "");
    }
    assert_eq!(ended(command).await.code, Some(0));
    for arguments in [&["--help"][..], &["man"], &["completions", "bash"]] {
        let mut command = zklock(arguments);
        for name in names {
            command.env(name, "hunter2");
        }
        let run = ended(command).await;
        assert_eq!((run.code, run.stdout.contains("hunter2")), (Some(0), false), "{run:#?}");
    }
}

/// The help of an option names the environment variable of the same setting.
#[support::judged]
async fn the_help_names_the_variable_of_each_setting() {
    let help = run(&["--help"]).await.stdout;
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    for (_, variable, ..) in WRONG {
        assert!(help.contains(&format!("[env: {variable}]")), "{variable}");
    }
}

/// These options have no variable. zklock refuses a session timeout of a millisecond. No server could answer in that
/// time, so the error of the connection would blame a working server.
#[support::judged]
async fn a_timeout_too_short_to_connect_is_refused() {
    for (option, value, problem) in [
        ("--connect-timeout", "0", "'--connect-timeout <TIME>': it must be more than zero"),
        ("--session-timeout", "0s", "'--session-timeout <TIME>': it must be more than zero"),
        ("--session-timeout", "1ms", "a session timeout of 1ms: it must be from 250ms to"),
    ] {
        let run = refusal(zklock_on("127.0.0.1:1", &[] as &[&str]), option, value, true).await;
        assert!(run.code == Some(64) && run.stderr.contains(problem), "{run:?}");
    }
}

#[support::judged]
async fn a_time_of_any_length_is_refused_or_obeyed() {
    for time in ["0", "1ns", "500years", "18446744073709551615s", "18446744073709551615s 1000ms", "1e20"] {
        for option in ["-w", "--once-in", "--grace", "--session-timeout", "--connect-timeout", "--tick-time"] {
            let run = ended(zklock(&[option, time, &format!("/zklock/times/{option}/{time}"), "true"])).await;
            // These are the allowed outcomes: the command ran, the lock was not granted in time, the time was refused,
            // or no server was reached in time.
            assert!(
                matches!(run.code, Some(0 | 1 | 64 | 69)) && !run.stderr.contains("panicked"),
                "{option}: {run:#?}"
            );
            // With 1 ns the command may run, because timers count in milliseconds.
            if matches!((option, time), ("-w" | "--connect-timeout", "1ns")) {
                continue;
            }
            let is_for_ever = ["500years", "18446744073709551615s"].contains(&time);
            let is_bounded = ["--session-timeout", "--tick-time"].contains(&option);
            assert_eq!(run.code == Some(0), (is_for_ever && !is_bounded) || RUNS.contains(&(option, time)), "{run:#?}");
        }
    }
}

/// Options with a short time with which a command runs under a free lock.
const RUNS: [(&str, &str); 4] = [("-w", "0"), ("--grace", "0"), ("--grace", "1ns"), ("--once-in", "1ns")];
