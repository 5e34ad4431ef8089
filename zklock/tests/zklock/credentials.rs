//! Tests of the credentials for ZooKeeper: from a variable or a file, and hidden from the command.

use super::*;

/// Writes a file with this text and returns its path.
fn file(files: &tempfile::TempDir, name: &str, text: &str) -> String {
    let file = files.path().join(name);
    fs::write(&file, text).unwrap();
    file.display().to_string()
}

#[support::judged]
async fn the_command_gets_no_credentials_by_default() {
    let files = scratch();
    let mine = file(&files, "mine", "owner:hunter2\n");
    let environment = |options: &[&str]| {
        let mut command = zklock(&[options, &["/zklock-kept-from/command", "env"]].concat());
        // `make test` sets this variable for the tests themselves.
        command.env_remove("ZK_RWLOCK_SERVERS");
        command.env("ZK_AUTH", "owner:hunter2").env("ZK_SASL", "");
        command.env("ZK_SASL_FILE", "").env("ZK_TLS_KEY", "").env("ZK_TLS_CERT", "").env("ZK_TICK_TIME", "2s");
        command
    };
    let (without, with) = (ended(environment(&[])).await, ended(environment(&["--keep-credentials"])).await);
    assert_eq!((without.code, with.code), (Some(0), Some(0)), "{without:#?} {with:#?}");
    let names = |run: &Run| -> Vec<String> {
        let names = run.stdout.lines().filter_map(|line| line.split_once('=')).map(|(name, _)| name.to_owned());
        let mut names: Vec<String> = names.filter(|name| name.starts_with("ZK_")).collect();
        names.sort();
        names
    };
    assert_eq!(names(&without), ["ZK_HOSTS", "ZK_TICK_TIME"]);
    let all = ["ZK_AUTH", "ZK_HOSTS", "ZK_SASL", "ZK_SASL_FILE", "ZK_TICK_TIME", "ZK_TLS_CERT", "ZK_TLS_KEY"];
    assert_eq!(names(&with), all);
    assert!(with.stdout.contains("owner:hunter2") && !without.stdout.contains("hunter2"), "{without:#?}");

    let mut by_file = environment(&[]);
    by_file.env("ZK_AUTH", "").env("ZK_AUTH_FILE", mine);
    assert_eq!(names(&ended(by_file).await), ["ZK_HOSTS", "ZK_TICK_TIME"]);
}

#[support::judged]
async fn credentials_are_read_from_a_file_of_one_line() {
    let (files, path) = (scratch(), "/zklock-by-file/lock");
    let mut owner = zklock(&[path, "true"]);
    owner.env("ZK_AUTH", "owner:hunter2");
    assert_eq!(ended(owner).await.code, Some(0));
    for (name, text) in [("plain", "owner:hunter2"), ("line", "owner:hunter2\n"), ("windows", "owner:hunter2\r\n")] {
        let good = run(&["--auth-file", &file(&files, name, text), path, "true"]).await;
        assert_eq!(good.code, Some(0), "{good:#?}");
    }
    let mut by_variable = zklock(&["ls", path]);
    by_variable.env("ZK_AUTH_FILE", file(&files, "named", "owner:hunter2\n"));
    assert_eq!(ended(by_variable).await.code, Some(0));
    let other = run(&["--auth-file", &file(&files, "other", "owner:guess\n"), path, "true"]).await;
    assert_eq!(other.code, Some(77), "{other:#?}");
}

#[support::judged]
async fn credentials_are_read_from_a_pipe() {
    // `check` also asks each server separately.
    for task in ["/zklock-by-pipe true", "check /zklock-by-pipe"] {
        let script = format!(r#""$0" --auth-file <(printf owner:hunter2) {task}"#);
        let mut command = Command::new("bash");
        prepare(&mut command, &shared_server().address());
        command.args(["-c", &script, binary()]);
        let run = ended(command).await;
        assert_eq!(run.code, Some(0), "{run:#?}");
        assert!(!run.stdout.contains("was not looked at"), "{run:#?}");
    }
}

/// Kubernetes gives a variable the whole content of a file, with its newline.
#[support::judged]
async fn a_files_newline_and_mark_make_no_other_user() {
    let (files, path) = (scratch(), "/zklock-by-content/lock");
    let with = |name: &str, value: &str| {
        let mut command = zklock(&["-n", path, "true"]);
        command.env(name, value);
        ended(command)
    };
    assert_eq!(with("ZK_AUTH", "owner:hunter2").await.code, Some(0));
    assert_eq!(with("ZK_AUTH", "").await.code, Some(77), "the lock is the owner's alone");
    let texts = ["owner:hunter2\n", "owner:hunter2\r\n", "\u{feff}owner:hunter2", "\u{feff}owner:hunter2\r\n"];
    for (number, text) in texts.into_iter().enumerate() {
        let by_variable = with("ZK_AUTH", text).await;
        assert_eq!(by_variable.code, Some(0), "{text:?}: {by_variable:#?}");
        let by_file = with("ZK_AUTH_FILE", &file(&files, &number.to_string(), text)).await;
        assert_eq!(by_file.code, Some(0), "{text:?}: {by_file:#?}");
    }
    let named = format!("{}\n", file(&files, "named", "owner:hunter2\n"));
    assert_eq!(with("ZK_AUTH_FILE", &named).await.code, Some(0));
    let servers = format!("{}\n", shared_server().address());
    let server = ended(zklock_on(&servers, &["/zklock/by-line", "true"])).await;
    assert_eq!(server.code, Some(0), "{server:#?}");
    for (text, problem) in [("owner:hunter2\n\n", "more than one line"), ("owner:hunter2\t", "a control character")] {
        let wrong = file(&files, "wrong", text);
        for (name, value) in [("ZK_AUTH", text), ("ZK_AUTH_FILE", &wrong[..])] {
            let refused = with(name, value).await;
            assert!(refused.code == Some(64) && refused.stderr.contains(problem), "{refused:#?}");
            assert!(refused.stderr.contains(name) && !refused.stderr.contains("hunter2"), "{refused:#?}");
        }
    }
}

#[support::judged]
async fn an_invalid_file_is_refused_and_not_shown() {
    let (files, long) = (scratch(), format!("owner:hunter2{}", "x".repeat(1 << 16)));
    let trials = [
        ("two", "owner:hunter2\nother:hunter2\n", "more than one line"),
        ("after", "owner:hunter2\n\n", "more than one line"),
        ("empty", "", "it is empty"),
        ("blank", "\n", "it is empty"),
        ("alone", "hunter2\n", "must be USER:PASSWORD"),
        ("long", &long[..], "more than 65536 bytes"),
    ];
    for option in ["--auth-file", "--sasl-file"] {
        for (name, text, problem) in trials {
            let file = file(&files, name, text);
            let refused = ended(zklock_on("127.0.0.1:1", &[option, &file, "/zklock/refused", "true"])).await;
            assert_eq!(refused.code, Some(64), "{refused:#?}");
            assert!(refused.stderr.contains(problem) && refused.stderr.contains(&file), "{refused:#?}");
            assert!(refused.stderr.contains(option) && !refused.stderr.contains("hunter2"), "{refused:#?}");
        }
        let nowhere = run(&[option, "/nowhere/at/all", "/zklock/refused", "true"]).await;
        assert!(nowhere.code == Some(64) && nowhere.stderr.contains("/nowhere/at/all: No such file"), "{nowhere:#?}");
    }
    let mut twice = zklock(&["--auth-file", "/dev/null", "/zklock/refused", "true"]);
    twice.env("ZK_AUTH", "owner:hunter2");
    let twice = ended(twice).await;
    assert!(twice.code == Some(64) && twice.stderr.contains("not both"), "{twice:#?}");
    assert!(!twice.stderr.contains("hunter2"), "{twice:#?}");
}
