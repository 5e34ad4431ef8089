//! `zklock watch`: each change that ZooKeeper tells, several locks, and breaks of the connection.

use support::server::TICK;
use zk_rwlock::Semaphore;
use zk_rwlock::once::Work;

use super::*;

/// Starts `zklock watch --json`, and reads its lines.
struct Watching {
    running: Running,
}

impl Watching {
    /// The interval is so long that no line comes from it.
    fn on(server: &str, arguments: &[&str]) -> Watching {
        let command = zklock_on(server, &[&["watch", "--json", "--interval", "1h"], arguments].concat());
        Watching { running: Running::start(command) }
    }

    async fn line(&mut self) -> Value {
        serde_json::from_str(&self.running.says().await).expect("a line of JSON")
    }

    /// Returns the next line with this event.
    async fn event(&mut self, event: &str) -> Value {
        loop {
            let line = self.line().await;
            if line["event"] == event {
                return line;
            }
        }
    }
}

fn nodes(of: &Value) -> Vec<&str> {
    of.as_array().expect("a list").iter().map(|it| it["node"].as_str().expect("a name")).collect()
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn watch_tells_every_short_hold() {
    let path = "/zklock/short-holds";
    let (_zk, lock) = server_lock(path).await;
    let mut watch = Watching::on(&shared_server().address(), &[path]);
    let first = watch.line().await;
    assert_eq!((&first["path"], first["members"].as_array().map(Vec::len)), (&Value::from(path), Some(0)));
    let (ready, mut last) = (lock.clone(), None);
    let holds = tokio::spawn(async move {
        for _ in 0..10 {
            ready.write().label("short").await.unwrap().release().await.unwrap();
        }
        ready.write().label("last").await.unwrap()
    });
    // Each of ten holds comes and goes, and the last comes. Some of these changes fall together.
    let (mut changes, mut lines) = (0, Vec::new());
    while last.is_none() {
        let line = watch.event("queue").await;
        changes += line["changes"].as_u64().unwrap();
        assert!(line["at"].as_str().unwrap().ends_with('Z'), "{line}");
        last = line["came"].as_array().unwrap().iter().find(|it| it["label"] == "last").cloned();
        lines.push(line);
    }
    assert_eq!(changes, 21, "{lines:#?}");
    assert_eq!(last.unwrap()["token"], holds.await.unwrap().fencing_token());
}

#[support::judged]
async fn watch_says_who_came_who_went_and_who_is_granted() {
    let path = "/zklock/came-and-went";
    let (_zk, lock) = server_lock(path).await;
    let held = lock.write().label("ants").await.unwrap();
    let mut watch = Watching::on(&shared_server().address(), &[path]);
    assert_eq!(watch.line().await["members"][0]["label"], "ants");
    let waits = tokio::spawn(lock.write().label("bees").into_future());
    let line = watch.event("queue").await;
    assert_eq!((nodes(&line["came"]).len(), nodes(&line["went"]).len()), (1, 0), "{line}");
    assert_eq!((&line["came"][0]["label"], &line["changes"]), (&Value::from("bees"), &Value::from(1)));
    held.release().await.unwrap();
    let line = watch.event("queue").await;
    assert_eq!((&line["went"][0]["label"], &line["granted"][0]["label"]), (&Value::from("ants"), &Value::from("bees")));
    assert_eq!(line["members"][0]["state"], "holds");
    waits.await.unwrap().unwrap().release().await.unwrap();
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn watch_tells_a_break_and_what_changed_in_it() {
    let path = "/zklock/broken";
    let (_zk, lock) = server_lock(path).await;
    let proxy = Proxy::start(shared_server().address());
    let tick = format!("{}ms", TICK.as_millis());
    let mut watch = Watching::on(&proxy.address(), &["--tick-time", &tick, path]);
    watch.line().await;
    proxy.cut();
    assert_eq!(watch.event("disconnected").await["path"], path);
    let held = lock.write().label("ants").await.unwrap();
    proxy.heal();
    watch.event("connected").await;
    assert_eq!(watch.event("queue").await["came"][0]["label"], "ants");
    held.release().await.unwrap();
}

#[support::judged]
async fn watch_follows_a_path_that_is_made_later_and_deleted_in_between() {
    let path = "/zklock-later/deep/lock";
    let (zk, lock) = server_lock(path).await;
    let mut watch = Watching::on(&shared_server().address(), &[path]);
    assert_eq!(watch.line().await["members"].as_array().map(Vec::len), Some(0));
    for _ in 0..2 {
        let held = lock.write().await.unwrap();
        let is_held = |line: &Value| line["members"].as_array().is_some_and(|members| members.len() == 1);
        while !is_held(&watch.event("queue").await) {}
        held.release().await.unwrap();
        while is_held(&watch.event("queue").await) {}
        session(&zk).await.delete(path).await.unwrap();
    }
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn watch_shows_all_locks_below_a_path() {
    let (zk, ants) = server_lock("/zklock-fleet/ants").await;
    let bees = RwLock::new(&zk, "/zklock-fleet/deep/bees").unwrap();
    let _held = [ants.write().await.unwrap(), bees.write().await.unwrap()];
    let mut terminal = OnTerminal::start(&["watch", "--tree", "/zklock-fleet"]);
    let _waits = tokio::spawn(bees.write().into_future());
    terminal.shows("2 paths, 2 held, 1 waiting");
    terminal.shows("/zklock-fleet/deep/bees  1 ");
    terminal.shows("/zklock-fleet/ants       0 ");
    terminal.press("\x03");
    assert_eq!(terminal.ends().await, None);
    let mut watch = Running::start(zklock(&["watch", "--json", "--tree", "--interval", "10ms", "/zklock-fleet"]));
    // A lock of another dialect is followed, too.
    let curator = RwLock::builder(&zk, "/zklock-fleet/curator").dialect(Dialect::Curator).build().unwrap();
    let _theirs = curator.write().await.unwrap();
    let mut paths = Vec::new();
    while paths.len() < 3 {
        let line: Value = serde_json::from_str(&watch.says().await).unwrap();
        paths.push(line["path"].as_str().unwrap().to_owned());
        paths.sort();
        paths.dedup();
    }
    assert_eq!(paths, ["/zklock-fleet/ants", "/zklock-fleet/curator", "/zklock-fleet/deep/bees"]);
}

#[support::judged]
async fn watch_says_for_how_long_a_lock_is_held_at_least() {
    let path = "/zklock/held-at-least";
    let (_zk, lock) = server_lock(path).await;
    let _held = lock.write().await.unwrap();
    let mut terminal = OnTerminal::start(&["watch", "--interval", "100ms", path]);
    terminal.shows("held for at least 1s");
    terminal.press("\x03");
    assert_eq!(terminal.ends().await, None);
}

#[support::judged]
async fn ls_and_watch_say_that_a_path_is_that_of_a_value() {
    let path = "/zklock-value";
    let (zk, _) = server_lock("/zklock-beside-a-value").await;
    let value = zk_rwlock::Shared::builder(&zk, path).initial(|| 5_u64).build().unwrap();
    value.write().await.unwrap().commit().await.unwrap();
    let said = format!("{path}: the path of a value that a lock guards; for the lock see zklock ls {path}/lock");
    assert!(run(&["ls", path]).await.stderr.contains(&said));
    let mut watch = Running::start(zklock(&["watch", path]));
    assert_eq!(watch.says().await, format!("{path}: free"));
    watch.signal(Signal::INT);
    assert!(watch.ends().await.stderr.contains(&said));
}

#[support::judged]
async fn ls_and_watch_warn_alike_of_a_path_that_is_not_there() {
    let (_zk, lock) = server_lock("/zklock-there").await;
    let _held = lock.write().await.unwrap();
    let missing = "/zklock-mistyped: there is no such path: it is mistyped, or has not been used for some time";
    for tree in [&[][..], &["--tree"]] {
        let listed = run(&[&["ls"], tree, &["/zklock-mistyped"]].concat()).await;
        assert_eq!(listed.stderr, format!("zklock: {missing}\n"));
        let paths = [&["watch"], tree, &["/zklock-there", "/zklock-mistyped"]].concat();
        let mut watch = Running::start(zklock(&paths));
        let mut warnings = BufReader::new(watch.child.stderr.take().expect("a pipe")).lines();
        let warning = soon("a warning", warnings.next_line()).await.expect("text");
        assert_eq!(warning, Some(format!("zklock: {missing}")), "{paths:?}");
        watch.signal(Signal::INT);
        let mut terminal = OnTerminal::start(&paths);
        terminal.shows("/zklock-mistyped: there is no such path:");
        terminal.press("\x03");
        assert_eq!(terminal.ends().await, None);
    }
}

#[support::judged]
async fn ls_and_watch_say_alike_that_a_path_is_a_semaphore_or_a_job() {
    let (zk, job) = server_lock("/zklock-kinds/job").await;
    let Work::Due(guard) = job.write().once_in(Duration::from_secs(60)).await.unwrap() else {
        panic!("it was not done")
    };
    guard.done().await.unwrap();
    guard.release().await.unwrap();
    let limit = Semaphore::builder(&zk, "/zklock-kinds/limit").build().unwrap();
    limit.set_permits(3).await.unwrap();
    let _permit = limit.acquire().await.unwrap();
    for (path, says) in [("/zklock-kinds/job", "last done "), ("/zklock-kinds/limit", "2 of 3 permits free")] {
        assert!(run(&["ls", path]).await.stdout.contains(says));
        let mut terminal = OnTerminal::start(&["watch", path]);
        terminal.shows(says);
        terminal.press("\x03");
        assert_eq!(terminal.ends().await, None);
    }
    let listed = run(&["ls", "--tree", "/zklock-kinds"]).await.stdout;
    assert!(
        listed.contains("/zklock-kinds/job: free\nlast done ") && listed.contains("limit: 2 of 3 permits free"),
        "{listed}"
    );
    let mut terminal = OnTerminal::start(&["watch", "--tree", "/zklock-kinds"]);
    terminal.shows("free, with a record");
    terminal.shows("2 of 3 permits free: ");
    terminal.press("\x03");
    assert_eq!(terminal.ends().await, None);
}
