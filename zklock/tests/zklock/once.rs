//! Tests of `zklock --once-in`, as cron on several hosts runs it, on a real server.

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, SystemTime};

use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;
use support::clock::Clock;
use support::page;
use support::scene::*;
use support::server::{Server, shared_server};
use support::wire::Proxy;
use tokio::process::Command;
use zk_rwlock::ZooKeeper;
use zk_rwlock::coordinator::{Failure, Kind};
use zk_rwlock::security::{Acl, Permissions};

use crate::{Run, Running, SHORT, commands, ended, run, scratch, server_lock, session_of, typed, zklock, zklock_on};

/// Returns `zklock` as a host of this name starts the job.
fn host(name: &str, path: &str, job: &str) -> Command {
    zklock(&["--once-in", "50m", "--host", name, "--label", "report", path, "-c", job])
}

/// Returns the lines that the runs of the job have written.
fn lines(file: &Path) -> Vec<String> {
    fs::read_to_string(file).unwrap_or_default().lines().map(str::to_owned).collect()
}

async fn recorded(zk: &ZooKeeper, path: &str) -> Option<String> {
    match session(zk).await.data(&format!("{path}.done")).await {
        Ok((data, _)) => Some(String::from_utf8(data).expect("text")),
        Err(Failure::NoNode) => None,
        Err(failure) => panic!("{failure}"),
    }
}

#[track_caller]
fn assert_skipped(run: &Run, path: &str, by: &str) {
    assert_eq!((run.code, &run.stdout[..]), (Some(0), ""), "{run:#?}");
    let begins = format!("zklock: {path}: not run, because it was done at 20");
    let words = format!("Z by {by} pid ");
    assert!(run.stderr.starts_with(&begins) && run.stderr.contains(&words), "{run:#?}");
    assert!(run.stderr.ends_with(" \"report\", less than 50m ago\n"), "{run:#?}");
}

#[support::judged]
async fn exactly_one_of_several_hosts_runs_the_job() {
    let (_zk, lock) = server_lock("/zklock/once/together").await;
    let directory = scratch();
    let done = directory.path().join("done");
    // All hosts queue up behind another holder, so all have started before the first of them runs the job.
    let held = lock.write().await.unwrap();
    let job = format!("echo done >>{}", done.display());
    let hosts: Vec<_> = (0..5).map(|n| tokio::spawn(ended(host(&format!("web-{n}"), lock.path(), &job)))).collect();
    line_becomes(&lock, "W+ W- W- W- W- W-").await;
    held.release().await.unwrap();
    let mut skipped = 0;
    for host in hosts {
        let run = soon("the end of the run", host).await.unwrap();
        assert_eq!(run.code, Some(0), "{run:#?}");
        skipped += usize::from(run.stderr.contains("not run, because it was done"));
    }
    assert_eq!((lines(&done), skipped), (vec!["done".to_owned()], 4));
    line_becomes(&lock, "").await;
}

#[support::judged]
async fn a_done_job_is_skipped_as_the_options_say() {
    let (zk, lock) = server_lock("/zklock/once/skipped").await;
    let path = lock.path();
    let first = ended(host("web-1", path, "echo ran")).await;
    assert_eq!((first.code, &first.stdout[..], &first.stderr[..]), (Some(0), "ran\n", ""));
    let record = recorded(&zk, path).await.expect("the job is recorded");
    assert!(
        record.starts_with("zk-rwlock done 1\nhost=web-1\npid=") && record.ends_with("\nlabel=report\n"),
        "{record}"
    );
    assert_skipped(&ended(host("web-2", path, "echo ran")).await, path, "web-1");
    let no_wait = run(&["-n", "--once-in", "50m", path, "-c", "echo ran"]).await;
    assert!(no_wait.code == Some(0) && no_wait.stderr.contains("not run") && no_wait.stdout.is_empty(), "{no_wait:#?}");
    let quiet = run(&["-q", "--once-in", "50m", "--skipped-exit-code", "10", path, "-c", "echo ran"]).await;
    assert_eq!((quiet.code, &quiet.stdout[..], &quiet.stderr[..]), (Some(10), "", ""));
    let due = run(&["--once-in", "1ms", path, "-c", "echo ran"]).await;
    assert_eq!((due.code, &due.stdout[..]), (Some(0), "ran\n"), "{due:#?}");
}

#[support::judged]
async fn a_failed_or_killed_job_is_run_by_the_next_host() {
    let (zk, lock) = server_lock("/zklock/once/fails").await;
    let path = lock.path();
    let failed = ended(host("web-1", path, "echo failed; exit 3")).await;
    assert_eq!((failed.code, &failed.stdout[..]), (Some(3), "failed\n"), "{failed:#?}");
    let killed = ended(host("web-2", path, "kill -9 $$")).await;
    assert_eq!(killed.code, Some(128 + 9), "{killed:#?}");
    let missing = run(&["--once-in", "50m", path, "/no/such/command"]).await;
    assert_eq!(missing.code, Some(127), "{missing:#?}");
    assert_eq!(recorded(&zk, path).await, None);
    let third = ended(host("web-3", path, "echo done")).await;
    assert_eq!((third.code, &third.stdout[..]), (Some(0), "done\n"), "{third:#?}");
    assert_skipped(&ended(host("web-1", path, "echo done")).await, path, "web-3");
}

#[support::judged]
async fn a_waiting_host_runs_the_job_after_a_killed_run() {
    let (zk, lock) = server_lock("/zklock/once/killed").await;
    let timeout = SHORT.as_secs().to_string();
    let arguments = ["--once-in", "50m", lock.path(), "-c", "echo $$; read line"];
    let mut command = zklock(&[&session_of(&timeout)[..], &arguments].concat());
    command.stdin(Stdio::piped());
    let mut first = Running::start(command);
    let group = Pid::from_raw(first.says().await.parse().expect("a number")).expect("a pid");
    let waits = tokio::spawn(ended(host("web-2", lock.path(), "echo done")));
    line_becomes(&lock, "W+ W-").await;
    first.signal(Signal::KILL);
    kill_process_group(group, Signal::KILL).expect("it runs");
    let second = soon("the end of the run", waits).await.unwrap();
    assert_eq!((second.code, &second.stdout[..]), (Some(0), "done\n"), "{second:#?}");
    assert!(recorded(&zk, lock.path()).await.expect("the job is recorded").contains("\nhost=web-2\n"));
}

#[support::judged]
async fn a_success_after_a_lost_lock_is_not_recorded() {
    let (zk, lock) = server_lock("/zklock/once/lost").await;
    let job = "trap 'exit 0' TERM; echo ready; while :; do sleep 0.01; done";
    let first = Running::start(host("web-1", lock.path(), job)).ready().await;
    let token = lock.queue().await.unwrap().members[0].token.expect("readable");
    lock.evict(token).await.unwrap().expect("there");
    let first = first.ends().await;
    assert_eq!(first.code, Some(75), "{first:#?}");
    assert_eq!(recorded(&zk, lock.path()).await, None);
    let second = ended(host("web-2", lock.path(), "echo done")).await;
    assert_eq!((second.code, &second.stdout[..]), (Some(0), "done\n"), "{second:#?}");
}

#[support::judged]
async fn a_success_that_may_not_be_recorded_exits_with_77() {
    let path = "/zklock/once/denied";
    let acl = Acl::creator().allow("world", "anyone", Permissions::READ);
    let builder = ZooKeeper::builder().digest("owner", "hunter2").acl(acl);
    let owner = builder.connect(&shared_server().address()).await.unwrap();
    let (_zk, lock) = server_lock(path).await;
    lock.write().await.unwrap().release().await.unwrap();
    session(&owner).await.create(&format!("{path}.done"), b"", Kind::Persistent).await.unwrap();
    for name in ["web-1", "web-2"] {
        let run = ended(host(name, path, "echo ran")).await;
        let problem =
            "the command has succeeded, but its success is not recorded in /zklock/once/denied.done: permission denied";
        assert_eq!((run.code, &run.stdout[..]), (Some(77), "ran\n"), "{run:#?}");
        assert!(run.stderr.contains(problem) && run.stderr.contains("the command is run again"), "{run:#?}");
    }
    line_becomes(&lock, "").await;
}

#[support::judged]
async fn harmless_signals_do_not_end_the_wait_for_the_record() {
    let proxy = Proxy::start(shared_server().address());
    let (zk, lock) = server_lock("/zklock/once/resized").await;
    let job = "echo ready; read line; true";
    let mut command = zklock_on(&proxy.address(), &["--once-in", "50m", lock.path(), "-c", job]);
    command.stdin(Stdio::piped());
    let mut first = Running::start(command).ready().await;
    proxy.black_hole_to_client();
    drop(first.child.stdin.take());
    eventually("the success is recorded", || async { recorded(&zk, lock.path()).await.is_some() }).await;
    for signal in [Signal::WINCH, Signal::TSTP, Signal::CONT] {
        first.signal(signal);
        let ended = tokio::time::timeout(Duration::from_millis(200), first.child.wait()).await;
        assert!(ended.is_err(), "{signal:?}: {ended:?}");
    }
    proxy.heal();
    assert_eq!(first.ends().await.code, Some(0));
}

#[support::judged]
async fn an_unconfirmed_record_of_a_success_exits_with_75() {
    for (name, arrives) in [("request", false), ("answer", true), ("all-but-pings", false)] {
        let proxy = Proxy::start(shared_server().address());
        let (zk, lock) = server_lock(&format!("/zklock/once/unconfirmed-{name}")).await;
        // The session lasts so long that zklock sees the end of the command before the loss of the lock.
        let timeout = (2 * SHORT).as_secs().to_string();
        let job = "echo ready; read line; true";
        let arguments = ["--once-in", "50m", lock.path(), "-c", job];
        let mut command = zklock_on(&proxy.address(), &[&session_of(&timeout)[..], &arguments].concat());
        command.stdin(Stdio::piped());
        let mut first = Running::start(command).ready().await;
        match name {
            "answer" => proxy.black_hole_to_client(),
            "request" => proxy.black_hole_to_server(),
            _ => drop(proxy.answer_only_pings()),
        }
        drop(first.child.stdin.take());
        let first = first.ends().await;
        assert_eq!(first.code, Some(75), "{first:#?}");
        assert!(first.stderr.contains("without the record the command is run again"), "{first:#?}");
        assert_eq!(recorded(&zk, lock.path()).await.is_some(), arrives, "{name}");
        let next = ended(host("web-2", lock.path(), "echo done")).await;
        assert_eq!((next.code, next.stdout.is_empty()), (Some(0), arrives), "{next:#?}");
    }
}

#[support::judged]
async fn a_host_that_does_not_wait_exits_with_a_conflict() {
    let (_zk, lock) = server_lock("/zklock/once/taken").await;
    let held = lock.write().await.unwrap();
    let taken = run(&["-n", "-E", "9", "--once-in", "50m", lock.path(), "-c", "echo ran"]).await;
    assert_eq!((taken.code, &taken.stdout[..]), (Some(9), ""), "{taken:#?}");
    let late = run(&["-q", "-w", "0.1", "-E", "9", "--once-in", "50m", lock.path(), "-c", "echo ran"]).await;
    assert_eq!((late.code, &late.stdout[..], &late.stderr[..]), (Some(9), "", ""));
    drop(held);
}

#[support::judged]
async fn wrong_options_are_refused_before_connecting() {
    for (arguments, problem) in [
        (&["--once-in", "0", "/zklock/once/wrong", "true"][..], "--once-in needs a time that is not zero"),
        (&["--once-in", "soon", "/zklock/once/wrong", "true"], "invalid value 'soon'"),
        (&["-s", "--once-in", "5m", "/zklock/once/wrong", "true"], "cannot be used with"),
        (&["--skipped-exit-code", "5", "/zklock/once/wrong", "true"], "--once-in"),
    ] {
        let wrong = ended(zklock_on("127.0.0.1:1", arguments)).await;
        assert!(wrong.code == Some(64) && wrong.stderr.contains(problem), "{wrong:#?}");
    }
}

#[support::judged]
async fn ls_shows_the_last_run_and_forget_makes_it_due() {
    let (_zk, lock) = server_lock("/zklock/once/shown/report").await;
    let path = lock.path();
    assert_eq!(ended(host("web-1", path, "true")).await.code, Some(0));
    let ls = run(&["ls", path]).await;
    let mut said = ls.stdout.lines();
    assert_eq!(said.next(), Some("/zklock/once/shown/report: free"));
    let last = said.next().expect("a line");
    assert!(
        last.starts_with("last done at 20") && last.contains("Z by web-1 pid ") && last.ends_with(" \"report\""),
        "{last}"
    );
    let tree = run(&["ls", "--tree", "/zklock/once/shown"]).await;
    assert_eq!(tree.stdout, format!("{path}: free\n{last}\n"), "{tree:#?}");

    let held = lock.write().await.unwrap();
    let ls = run(&["ls", path]).await;
    assert_eq!((ls.stdout.lines().count(), ls.stdout.lines().last()), (3, Some(last)), "{ls:#?}");
    let json = run(&["ls", "--json", path]).await;
    let json: Value = serde_json::from_str(&json.stdout).unwrap();
    let done = &json["done"];
    assert_eq!((done["host"].as_str(), done["label"].as_str()), (Some("web-1"), Some("report")));
    assert!(done["at"].as_str().is_some_and(|at| at.starts_with("20") && at.ends_with('Z')), "{done}");
    assert!(done["pid"].is_u64() && done["token"].as_i64().is_some_and(|token| token < held.fencing_token()), "{done}");
    held.release().await.unwrap();

    let forgot = run(&["forget", path]).await;
    assert_eq!((forgot.code, forgot.stdout), (Some(0), format!("forgot that it was {}\n", &last["last ".len()..])));
    let again = run(&["forget", path]).await;
    assert_eq!(
        (again.code, &again.stderr[..]),
        (Some(1), &*format!("zklock: {path}: there is no record that it was done\n"))
    );
    let json = run(&["ls", "--json", path]).await;
    assert_eq!(serde_json::from_str::<Value>(&json.stdout).unwrap()["done"], Value::Null);
    assert_eq!(ended(host("web-2", path, "echo done")).await.stdout, "done\n");
}

// ---------------------------------------------------------------------------------------------------- Different clocks

#[support::judged]
async fn hosts_with_different_clocks_agree_on_the_last_run() {
    let (zk, lock) = server_lock("/zklock/once/clocks").await;
    let path = lock.path();
    let on = |ahead: &Clock, arguments: &[&str]| {
        let mut command = zklock(arguments);
        command.envs(ahead.environment());
        command
    };
    let once = |period| ["--once-in", period, "--host", "web-1", "--label", "report", path, "-c", "date +%s"];

    // To show that the clocks differ, each process writes the time of its own clock into its node.
    let mut noted = Vec::new();
    let [late, right, early] = [-3_600, 0, 3_600].map(Clock::ahead_by);
    for ahead in [&early, &late] {
        let mut command = on(ahead, &[path, "-c", "echo ready; read line"]);
        command.stdin(Stdio::piped());
        let holds = Running::start(command).ready().await;
        let node = format!("{path}/{}", lock.queue().await.unwrap().members[0].node);
        let text = String::from_utf8(session(&zk).await.data(&node).await.unwrap().0).unwrap();
        let since = text.lines().find_map(|line| line.strip_prefix("since=")).expect("the node has a line since=");
        noted.push(humantime::parse_rfc3339(since).unwrap());
        holds.signal(Signal::TERM);
        holds.ends().await;
        line_becomes(&lock, "").await;
    }
    let differ = noted[0].duration_since(noted[1]).expect("the first clock is ahead");
    assert!(differ > Duration::from_secs(7_000) && differ < Duration::from_secs(7_200), "{differ:?}");

    for (first, second) in [(&early, &right), (&right, &early), (&late, &early), (&early, &late)] {
        lock.forget().await.unwrap();
        let ran = ended(on(first, &once("50m"))).await;
        assert!(ran.code == Some(0) && !ran.stdout.is_empty(), "{ran:#?}");
        assert_skipped(&ended(on(second, &once("50m"))).await, path, "web-1");
        assert_skipped(&ended(on(first, &once("50m"))).await, path, "web-1");
        let due = ended(on(second, &once("1ms"))).await;
        assert!(due.code == Some(0) && !due.stdout.is_empty(), "{due:#?}");
    }
}

#[support::judged]
async fn the_ensembles_clock_decides_even_when_it_is_set() {
    let hour = 3_600;
    let clock = Clock::ahead_by(24 * hour);
    let server = Server::start_by(&clock);
    let (path, address) = ("/cron/report", server.address());
    let start = || ended(zklock_on(&address, &["--once-in", "50m", "--label", "report", path, "-c", "echo ran"]));
    let ran = |run: Run| {
        assert_eq!(run.code, Some(0), "{run:#?}");
        !run.stdout.is_empty()
    };
    assert!(ran(start().await));
    assert!(!ran(start().await));
    let zk = connect(&address).await;
    let at = lock_at(&zk, path).queue().await.unwrap().done.expect("the job is recorded").at;
    let ahead = at.duration_since(SystemTime::now()).expect("the server's clock is a day ahead");
    assert!(ahead > Duration::from_secs(23 * 3_600), "{ahead:?}");

    clock.set(24 * hour + 40 * 60);
    assert!(!ran(start().await), "40 minutes later the job is not due");
    clock.set(25 * hour);
    assert!(ran(start().await), "an hour later the job is due");
    clock.set(25 * hour - 40 * 60);
    assert!(!ran(start().await), "a clock set back a little makes no job due");
    clock.set(0);
    assert!(ran(start().await), "a clock set back far makes the job due");
    assert!(!ran(start().await));
}

// ------------------------------------------------------------------------- The commands in the guide's chapter on cron

#[support::judged]
async fn the_crontab_of_the_guide_runs_the_job_once() {
    let table = page::blocks(include_str!("../../../docs/guide.md"), "crontab");
    let [table] = table[..] else { panic!("{table:?}") };
    let (settings, jobs): (Vec<&str>, Vec<&str>) = table
        .lines()
        .filter(|line| !line.starts_with('#'))
        .partition(|line| line.contains('=') && !line.contains(" -- "));
    assert_eq!((settings.len(), jobs.len()), (1, 1), "{table}");
    assert!(settings[0].starts_with("ZK_HOSTS="), "the table must set ZK_HOSTS, which the test replaces");
    // A row of a crontab has five fields and the command. cron passes the command to `sh -c`.
    let command = jobs[0].splitn(6, ' ').last().expect("a command");
    assert!(command.starts_with("zklock "), "{command}");
    let path = command.split(' ').find(|word| word.starts_with('/')).expect("the lock's path");
    let commands = commands(&["report"]);
    let hosts: Vec<_> = (0..3).map(|_| tokio::spawn(ended(typed(command, &commands)))).collect();
    let (mut printed, mut told) = (String::new(), String::new());
    for host in hosts {
        let run = soon("the end of the run", host).await.unwrap();
        assert_eq!(run.code, Some(0), "{run:#?}");
        printed.push_str(&run.stdout);
        told.push_str(&run.stderr);
    }
    assert_eq!((&printed[..], &told[..]), ("report [--hourly]\n", ""), "cron must mail the output of one run");
    let ls = run(&["ls", path]).await;
    assert!(ls.stdout.contains("last done at "), "{ls:#?}");
}

#[support::judged]
async fn an_unreachable_ensemble_prints_an_error_for_cron() {
    let away = ended(zklock_on("127.0.0.1:1", &["-q", "--once-in", "50m", "/cron/report", "-c", "echo ran"])).await;
    assert_eq!((away.code, &away.stdout[..]), (Some(69), ""), "{away:#?}");
    assert!(away.stderr.contains("127.0.0.1:1"), "{away:#?}");
}
