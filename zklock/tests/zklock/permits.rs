//! Tests of `zklock --permits`, and of `ls`, `watch`, `break` and `check` for a semaphore, on a real server.

use std::fs;
use std::future::IntoFuture;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use support::scene::*;
use support::server::{Server, shared_server};
use support::wire::Proxy;
use tokio::io::{AsyncBufReadExt, BufReader};
use zk_rwlock::coordinator::{Coordinator, Kind};
use zk_rwlock::{Semaphore, ZooKeeper};

use crate::{
    Running, SHORT, ended, ended_by, ended_within_minutes, immortal, last_stamp, run, scratch, server_lock, session_of,
    zklock, zklock_on,
};

async fn semaphore(path: &str, permits: u32) -> (ZooKeeper, Semaphore) {
    let zk = connect(&shared_server().address()).await;
    let semaphore =
        Semaphore::builder(&zk, path).permits(permits).lock(|lock| lock.host("here")).build().expect("valid");
    (zk, semaphore)
}

/// Returns how many contenders hold permits, and how many wait.
async fn counts(semaphore: &Semaphore) -> (usize, usize) {
    match semaphore.queue().await {
        Ok(queue) => (queue.holders().count(), queue.waiters().count()),
        Err(error) => panic!("{error}"),
    }
}

async fn becomes(semaphore: &Semaphore, holders: usize, waiters: usize) {
    let what = format!("{holders} hold and {waiters} wait");
    eventually(&what, || async { counts(semaphore).await == (holders, waiters) }).await;
}

#[support::judged]
async fn each_end_under_a_permit_has_its_exit_code() {
    let (_zk, taken) = semaphore("/zklock/permits/taken", 2).await;
    let held = taken.acquire_many(2).await.unwrap();
    let (free, taken) = ("/zklock/permits/free", "/zklock/permits/taken");
    let trials: &[(&[&str], i32)] = &[
        (&["-j", "2", free, "true"], 0),
        (&["--permits", "2", free, "--", "sh", "-c", "exit 42"], 42),
        (&["-j2", free, "-c", "kill -TERM $$"], 143),
        (&["-n", "-j", "2", free, "true"], 0),
        // Other commands hold all permits.
        (&["-n", "-j", "2", taken, "true"], 1),
        (&["-j", "2", "-n", "-E", "75", taken, "true"], 75),
        (&["-j", "2", "-w", "0.2", taken, "true"], 1),
        (&["-q", "-j", "2", "-w", "0", taken, "true"], 1),
        // The arguments are wrong.
        (&["-j", "0", free, "true"], 64),
        (&["-j", "-1", free, "true"], 64),
        (&["-j", "many", free, "true"], 64),
        (&["-j", "3", free, "true"], 64),
        (&["-s", "-j", "2", free, "true"], 64),
        (&["-x", "-j", "2", free, "true"], 64),
        (&["--once-in", "1h", "-j", "2", free, "true"], 64),
        (&["--dialect", "kazoo", "-j", "2", free, "true"], 64),
        (&["-j", "2", "relative", "true"], 64),
        (&["-j", "2", free], 64),
    ];
    for (arguments, code) in trials {
        let run = run(arguments).await;
        assert_eq!(run.code, Some(*code), "{arguments:?}: {run:#?}");
    }
    let other = run(&["-j", "3", free, "true"]).await;
    assert!(
        other.stderr.starts_with("zklock: /zklock/permits/free has 2 permits, and was opened here with 3"),
        "{other:#?}"
    );
    with_time_enough(Duration::from_millis(300), async |limit| {
        let command = zklock(&["-j", "2", "-w", &limit.as_secs_f64().to_string(), taken, "true"]);
        let late = ended_within_minutes(command).await;
        let expected = format!("not granted within {limit:?}: held by 2 PERMITS here pid ");
        if late.stderr.contains(&expected) { Ok(()) } else { Err(format!("{late:#?}")) }
    })
    .await;
    assert!(held.is_held());
}

#[support::judged]
async fn the_command_gets_the_permit_variables() {
    let path = "/zklock/permits/told";
    let script = "echo $ZKLOCK_PATH $ZKLOCK_MODE; test $ZKLOCK_TOKEN -gt 0";
    let told = run(&["--verbose", "-j", "2", path, "-c", script]).await;
    assert_eq!((told.code, &told.stdout[..]), (Some(0), "/zklock/permits/told PERMIT\n"), "{told:#?}");
    assert!(told.stderr.contains("granted /zklock/permits/told after ") && told.stderr.contains("token "), "{told:#?}");
}

#[support::judged]
async fn no_more_commands_run_than_there_are_permits() {
    let (_zk, semaphore) = semaphore("/zklock/permits/many", 3).await;
    let files = scratch();
    let running = files.path().join("running");
    fs::create_dir(&running).unwrap();
    // Each command makes a file that exists while the command runs, and prints the number of these files.
    let dir = running.display();
    let job = format!("touch {dir}/$$; ls {dir} | wc -l; sleep 0.1; rm {dir}/$$");
    let all: Vec<_> =
        (0..12).map(|_| tokio::spawn(ended(zklock(&["-j", "3", semaphore.path(), "-c", &job])))).collect();
    let mut most = 0;
    for one in all {
        let run = soon("the end", one).await.unwrap();
        assert_eq!(run.code, Some(0), "{run:#?}");
        most = most.max(run.stdout.trim().parse::<u32>().unwrap());
    }
    assert!((1..=3).contains(&most), "{most} commands ran at once");
    becomes(&semaphore, 0, 0).await;
}

#[support::judged]
async fn a_permit_waiter_reports_and_leaves_on_a_signal() {
    let (_zk, semaphore) = semaphore("/zklock/permits/waits", 1).await;
    let held = semaphore.acquire().label("slow").await.unwrap();
    for signal in [Signal::TERM, Signal::INT] {
        let mut waits = Running::start(zklock(&["-j", "1", semaphore.path(), "true"]));
        let mut told = BufReader::new(waits.child.stderr.take().unwrap()).lines();
        let said = soon("a message", told.next_line()).await.unwrap().unwrap();
        let words = format!("waiting for a permit of {}: place 1, held by PERMIT here pid ", semaphore.path());
        assert!(said.contains(&words) && said.contains("\"slow\""), "{said}");
        waits.signal(signal);
        assert_eq!(waits.ends().await.code, ended_by(signal));
        becomes(&semaphore, 1, 0).await;
    }
    held.release().await.unwrap();
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_off_command_is_dead_before_its_permit_is_free() {
    for (round, cut) in [Proxy::cut as fn(&Proxy), Proxy::black_hole].into_iter().enumerate() {
        let (_zk, semaphore) = semaphore(&format!("/zklock/permits/cut-{round}"), 1).await;
        let files = scratch();
        let (stamps, start) = (files.path().join("stamps"), files.path().join("start"));
        let proxy = Proxy::start(shared_server().address());
        let timeout = SHORT.as_millis().to_string() + "ms";
        let options = ["--grace", "1h", "-j", "1", semaphore.path(), "-c", &immortal(&stamps)];
        let arguments = [&session_of(&timeout)[..], &options].concat();
        let holder = Running::start(zklock_on(&proxy.address(), &arguments));
        let holder = holder.ready().await;
        let script = format!("date +%s%N > {}", start.display());
        let next = Running::start(zklock(&["-j", "1", semaphore.path(), "-c", &script]));
        becomes(&semaphore, 1, 1).await;
        cut(&proxy);
        let (holder, next) = tokio::join!(holder.ends(), next.ends());
        assert_eq!((holder.code, next.code), (Some(75), Some(0)), "{holder:#?} {next:#?}");
        assert!(holder.stderr.contains("the lock was lost") && holder.stderr.contains("was killed"), "{holder:#?}");
        let (last, first) = (last_stamp(&stamps), last_stamp(&start));
        assert!(last < first, "the old command ran {} ns into the next one", last - first);
    }
}

#[support::judged]
async fn ls_shows_a_semaphore_as_a_table_and_as_json() {
    let (_zk, semaphore) = semaphore("/zklock/permits/shown", 3).await;
    let free = run(&["ls", semaphore.path()]).await;
    assert_eq!(free.stdout, "/zklock/permits/shown: free\n", "the semaphore was never used: {free:#?}");
    let two = semaphore.acquire_many(2).label("import").await.unwrap();
    let wants = tokio::spawn(semaphore.acquire_many(2).into_future());
    becomes(&semaphore, 1, 1).await;
    let last = Running::start(zklock(&["-j", "3", "--host", "web-9", semaphore.path(), "true"]));
    becomes(&semaphore, 1, 2).await;

    let table = run(&["ls", semaphore.path()]).await.stdout;
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(lines[0], "/zklock/permits/shown: 1 of 3 permits free", "{table}");
    let words = |line: usize| lines[line].split_whitespace().collect::<Vec<_>>();
    assert_eq!(words(1)[..4], ["PLACE", "STATE", "MODE", "HOST"]);
    assert_eq!(words(2)[..5], ["1", "holds", "2", "PERMITS", "here"]);
    assert!(
        lines[2].contains("  granted ") && !lines[3].contains("  granted "),
        "only a holder has the time of its grant: {table}"
    );
    assert!(words(2).contains(&"import") && lines[2].ends_with(&two.fencing_token().to_string()));
    assert_eq!(words(3)[..5], ["2", "waits", "2", "PERMITS", "here"]);
    assert!(lines[3].contains("  the holders  ") && lines[4].contains("  2 here  "), "{table}");
    assert_eq!(words(4)[..4], ["3", "waits", "PERMIT", "web-9"]);

    let json: Value = serde_json::from_str(&run(&["ls", "--json", semaphore.path()]).await.stdout).unwrap();
    assert_eq!(json["permits"], serde_json::json!({ "all": 3, "free": 1 }));
    let member = |at: usize| (json["members"][at]["mode"].as_str().unwrap(), json["members"][at]["permits"].as_u64());
    assert_eq!([member(0), member(1), member(2)], [("PERMIT", Some(2)), ("PERMIT", Some(2)), ("PERMIT", Some(1))]);
    assert_eq!((&json["members"][1]["behind"], &json["members"][2]["behind"]), (&Value::Null, &Value::from(2)));
    assert_eq!(json["members"][0]["token"].as_i64(), Some(two.fencing_token()));

    let tree = run(&["ls", "--tree", "/zklock/permits/shown"]).await.stdout;
    // Returns the words without the ages, because the ages change.
    let shown = |text: &str| -> Vec<String> {
        let words = text.split_whitespace().filter(|word| humantime::parse_duration(word).is_err());
        words.map(str::to_owned).collect()
    };
    assert_eq!(shown(&tree), shown(&table), "the tree must show one queue, and not one for each directory");
    drop(two);
    drop(granted(wants).await);
    assert_eq!(last.ends().await.code, Some(0));
    becomes(&semaphore, 0, 0).await;
    let free = run(&["ls", semaphore.path()]).await;
    assert_eq!(free.stdout, "/zklock/permits/shown: 3 of 3 permits free\n");
    let json: Value = serde_json::from_str(&run(&["ls", "--json", semaphore.path()]).await.stdout).unwrap();
    assert_eq!((&json["permits"]["free"], &json["members"]), (&Value::from(3), &Value::Array(vec![])));
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn watch_prints_each_change_of_a_semaphore() {
    let (_zk, semaphore) = semaphore("/zklock/permits/watched", 2).await;
    let mut watch = Running::start(zklock(&["watch", "--json", "--interval", "10ms", semaphore.path()]));
    let seen = |line: String| {
        let json: Value = serde_json::from_str(&line).unwrap();
        (json["permits"]["free"].as_u64(), json["members"].as_array().unwrap().len())
    };
    assert_eq!(seen(watch.says().await), (None, 0));
    let held = semaphore.acquire().await.unwrap();
    let mut last = seen(watch.says().await);
    while last != (Some(1), 1) {
        last = seen(watch.says().await);
    }
    held.release().await.unwrap();
    assert_eq!(seen(watch.says().await), (Some(2), 0));
    assert_eq!(run(&["permits", semaphore.path(), "3"]).await.code, Some(0));
    assert_eq!(seen(watch.says().await), (Some(3), 0));
}

#[support::judged]
async fn j_without_a_number_uses_the_number_that_is_set() {
    let path = "/zklock/permits/set";
    let unset = run(&["-j", path, "true"]).await;
    assert_eq!(unset.code, Some(65), "{unset:#?}");
    assert!(unset.stderr.contains(&format!("{path} has no number of permits yet: set it")), "{unset:#?}");
    let set = run(&["permits", path, "2"]).await;
    assert_eq!((set.code, &set.stdout[..], &set.stderr[..]), (Some(0), "", ""));
    assert_eq!(run(&["-j", path, "-c", "exit 7"]).await.code, Some(7));
    assert_eq!(run(&["-n", "-j", "--", path, "ls", "/"]).await.code, Some(0));
    let other = run(&["-j", "3", path, "true"]).await;
    assert!(
        other.code == Some(64)
            && other.stderr.contains("leave the number out, or change it with set_permits or zklock permits"),
        "{other:#?}"
    );
    assert_eq!(run(&["permits", path, "3"]).await.code, Some(0));
    assert_eq!(run(&["-j", "3", path, "true"]).await.code, Some(0));
    assert_eq!(run(&["ls", path]).await.stdout, format!("{path}: 3 of 3 permits free\n"));
    let (_zk, lock) = server_lock("/zklock/permits/no").await;
    let held = lock.write().await.unwrap();
    let refused = run(&["permits", lock.path(), "3"]).await;
    assert!(refused.code == Some(65) && refused.stderr.contains("/zklock/permits/no is a lock"), "{refused:#?}");
    assert!(held.is_held());
}

#[support::judged]
async fn break_takes_a_permit_away_and_refuses_a_stale_token() {
    let (_zk, semaphore) = semaphore("/zklock/permits/broken", 1).await;
    let script = "trap 'echo told; exit 0' TERM; echo ready; while :; do sleep 0.02; done";
    let hangs = Running::start(zklock(&["-j", "1", "--label", "hangs", semaphore.path(), "-c", script])).ready().await;
    let next = tokio::spawn(semaphore.acquire().into_future());
    becomes(&semaphore, 1, 1).await;
    let token = semaphore.queue().await.unwrap().members[0].token.unwrap().to_string();
    let broken = run(&["break", "--yes", semaphore.path(), &token]).await;
    assert_eq!(broken.code, Some(0), "{broken:#?}");
    assert!(broken.stdout.contains("removed PERMIT") && broken.stdout.contains("hangs"), "{broken:#?}");
    let next = granted(next).await;
    let hung = hangs.ends().await;
    assert_eq!((hung.code, &hung.stdout[..]), (Some(75), "told\n"), "{hung:#?}");
    let stale = run(&["break", "--yes", semaphore.path(), &token]).await;
    assert_eq!(stale.code, Some(1), "{stale:#?}");
    assert!(stale.stderr.contains("0 of 1 permit free") && stale.stderr.contains(&next.fencing_token().to_string()));
    assert!(next.is_held());
}

#[support::judged]
async fn check_reports_each_oddity_of_a_semaphore() {
    let (zk, semaphore) = semaphore("/zklock/permits/odd", 2).await;
    let held = semaphore.acquire_many(2).await.unwrap();
    let wants = tokio::spawn(semaphore.acquire().into_future());
    becomes(&semaphore, 1, 1).await;
    let path = semaphore.path();
    let odd = run(&["check", path]).await;
    crate::check::assert_clean(&odd, path, "on 1 of 1 servers");

    semaphore.set_permits(1).await.unwrap();
    let session = session(&zk).await;
    session.create(&format!("{path}/permits/x"), &[], Kind::Persistent).await.unwrap();
    session.create(&format!("{path}/queue/h-WRITE-0000000009"), &[], Kind::Persistent).await.unwrap();
    let odd = run(&["check", "--json", path]).await;
    assert_eq!(odd.code, Some(1));
    let json: Value = serde_json::from_str(&odd.stdout).unwrap();
    let kinds: Vec<_> = json["odd"].as_array().unwrap().iter().map(|odd| odd["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["persistent", "foreign", "persistent", "overdrawn"]);
    let words = run(&["check", path]).await.stdout;
    assert!(words.contains("/zklock/permits/odd: the permits: 2 of 1 are taken"), "{words}");
    session.delete(&format!("{path}/permits/x")).await.unwrap();
    session.delete(&format!("{path}/queue/h-WRITE-0000000009")).await.unwrap();
    let doubtful = refused(wants).await.to_string();
    assert_eq!(
        doubtful,
        format!("{path} cannot be counted: \"x\" is no permit"),
        "no permit may be granted beside a foreign node"
    );
    assert!(held.is_held());
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn a_path_is_either_a_lock_or_a_semaphore() {
    let (_zk, permits) = semaphore("/zklock/one/permits", 1).await;
    let held = permits.acquire().await.unwrap();
    for refused in [run(&["/zklock/one/permits", "true"]).await, run(&["-n", "/zklock/one/permits", "true"]).await] {
        assert!(refused.code == Some(65) && refused.stderr.contains("is a semaphore"), "{refused:#?}");
    }
    let path = "/zklock/one/lock";
    let (_other, lock) = server_lock(path).await;
    let guard = lock.read().await.unwrap();
    for refused in [run(&["-j", "1", path, "true"]).await, run(&["permits", path, "3"]).await] {
        assert!(refused.code == Some(65) && refused.stderr.contains("is a lock"), "{refused:#?}");
    }
    assert_eq!(run(&["-s", path, "true"]).await.code, Some(0));
    guard.release().await.unwrap();

    // Only a client of an older version creates the node of a lock's contender at a semaphore's path.
    let zk = connect(&shared_server().address()).await;
    let older = "/zklock/one/permits/h~1-WRITE-0000000007";
    session(&zk).await.create(older, b"", Kind::Ephemeral).await.unwrap();
    let odd = run(&["check", "/zklock/one/permits"]).await;
    assert_eq!(odd.code, Some(1), "{odd:#?}");
    assert!(
        odd.stdout.contains("h~1-WRITE-0000000007: holds or waits for a lock at the path of a semaphore"),
        "{odd:#?}"
    );
    let token = session(&zk).await.data(older).await.unwrap().1.czxid.to_string();
    let removed = run(&["break", "--yes", "/zklock/one/permits", &token]).await;
    assert!(removed.code == Some(0) && removed.stdout.contains("removed WRITE h"), "{removed:#?}");
    assert_eq!(run(&["check", "/zklock/one/permits"]).await.code, Some(0));
    assert!(held.is_held());
    held.release().await.unwrap();
}

#[support::judged]
async fn permits_spares_a_path_of_something_else() {
    let (zk, lock) = server_lock("/zklock/spared/lock").await;
    let operator = session(&zk).await;
    for (path, words) in [
        ("/zklock/spared/lock", "may be a lock that is idle now"),
        ("/zklock/spared/cron", "/zklock/spared/cron.done is a part"),
        ("/zklock/spared/empty", "may be a lock that is idle now"),
        ("/zklock/spared", "is a part"),
    ] {
        match path {
            "/zklock/spared/lock" => lock.write().await.unwrap().release().await.unwrap(),
            "/zklock/spared/cron" => {
                assert_eq!(run(&["--once-in", "1h", path, "true"]).await.code, Some(0));
            }
            "/zklock/spared/empty" => drop(operator.create(path, b"", Kind::Persistent).await.unwrap()),
            _ => {}
        }
        for command in [&["permits", path, "3"][..], &["-j", "3", path, "true"], &["-n", "-j3", path, "true"]] {
            let refused = run(command).await;
            assert!(refused.code == Some(65) && refused.stderr.contains(words), "{command:?}: {refused:#?}");
            assert_eq!(operator.data(path).await.unwrap().0, b"", "{command:?}");
        }
    }
    assert_eq!(run(&["--once-in", "1h", "/zklock/spared/cron", "false"]).await.code, Some(0), "the record is there");
    let refused = run(&["permits", "/zklock/spared/lock", "3"]).await;
    assert!(refused.stderr.contains("zklock permits /zklock/spared/lock N --create"), "{refused:#?}");
    for (path, code) in [("/zklock/spared/empty", 0), ("/zklock/spared/cron", 65), ("/zklock/spared", 65)] {
        let created = run(&["permits", "--create", path, "3"]).await;
        assert_eq!(created.code, Some(code), "{path}: {created:#?}");
    }
    assert_eq!(run(&["-j", "/zklock/spared/empty", "-c", "exit 7"]).await.code, Some(7));
}

/// The directory of an idle lock is a container, which servers delete when it was empty for a while.
#[support::judged]
async fn a_number_in_the_directory_of_an_idle_lock_stays() {
    let server = Server::start_with(&[], &["-Dznode.container.checkIntervalMs=100"]);
    let zk = connect(&server.address()).await;
    let operator = Arc::clone(zk.session_slot(0).await.expect("the session is alive").session());
    let succeeds = async |arguments: &[&str]| {
        let run = ended(zklock_on(&server.address(), arguments)).await;
        assert_eq!(run.code, Some(0), "{arguments:?}: {run:#?}");
    };
    // The child keeps the servers from deleting the node before it has its number.
    operator.create("/c", &[], Kind::Container).await.unwrap();
    operator.create("/c/queue", &[], Kind::Persistent).await.unwrap();
    succeeds(&["permits", "/c", "3", "--create"]).await;
    operator.delete("/c/queue").await.unwrap();
    // At least one whole check of the servers lies between the ends of the first and the last of them.
    for used in ["/first", "/second", "/third"] {
        succeeds(&[used, "true"]).await;
        eventually("the empty directory is gone", || async { operator.data(used).await.is_err() }).await;
    }
    succeeds(&["-j", "/c", "true"]).await;
    succeeds(&["permits", "/c", "--remove"]).await;
    succeeds(&["/c", "true"]).await;
}

#[support::judged]
async fn permits_remove_undoes_a_semaphore_or_names_its_users() {
    let path = "/zklock/permits/removed";
    let (_zk, semaphore) = semaphore(path, 2).await;
    let held = semaphore.acquire().label("busy").await.unwrap();
    let refused = run(&["permits", path, "--remove"]).await;
    assert_eq!((refused.code, &refused.stdout[..]), (Some(65), ""), "{refused:#?}");
    assert!(
        refused.stderr.contains("nothing was removed: held by PERMIT here pid ") && refused.stderr.contains("\"busy\""),
        "{refused:#?}"
    );
    held.release().await.unwrap();
    let lock = run(&[path, "true"]).await;
    assert!(lock.code == Some(65) && lock.stderr.contains(&format!("zklock permits {path} --remove")), "{lock:#?}");
    let removed = run(&["permits", path, "--remove"]).await;
    assert_eq!((removed.code, &removed.stderr[..]), (Some(0), ""), "{removed:#?}");
    assert!(removed.stdout.contains(path) && removed.stdout.contains("permits=2"), "{removed:#?}");
    assert_eq!(run(&[path, "true"]).await.code, Some(0), "the path is a lock now");
    let none = run(&["permits", path, "--remove"]).await;
    assert_eq!((none.code, &none.stdout[..]), (Some(1), ""), "{none:#?}");
    for wrong in
        [&["permits", path][..], &["permits", path, "3", "--remove"], &["permits", path, "--create", "--remove"]]
    {
        assert_eq!(run(wrong).await.code, Some(64), "{wrong:?}");
    }
}

#[support::judged]
async fn a_node_made_by_hand_is_named_with_exit_code_65() {
    let path = "/zklock/by-hand";
    let operator = session(&connect(&shared_server().address()).await).await;
    assert_eq!(run(&[path, "true"]).await.code, Some(0), "number 0");
    // Each create takes a number, and each refused command takes another one.
    for next in [2, 4, 6] {
        let by_hand = format!("{path}/foo-WRITE-{next:010}");
        operator.create(&by_hand, b"", Kind::Persistent).await.unwrap();
        let refused = run(&[path, "echo", "ran"]).await;
        assert_eq!((refused.code, &refused.stdout[..]), (Some(65), ""), "{refused:#?}");
        assert!(refused.stderr.contains(&by_hand) && refused.stderr.contains("delete it"), "{refused:#?}");
        assert!(!refused.stderr.contains("removed by somebody"), "{refused:#?}");
        operator.delete(&by_hand).await.unwrap();
    }
    assert_eq!(run(&[path, "true"]).await.code, Some(0));
}
