//! Tests of `ls` and `watch` on terminals of different widths, and of `watch` in the background.

use std::future::IntoFuture;

use unicode_width::UnicodeWidthStr;
use zk_rwlock::Semaphore;

use super::*;
use support::wire::Op;

/// Names of hosts as in clusters and clouds.
const HOSTS: [&str; 5] = [
    "orders-api-7d9f8b6c5d-x2k4j",
    "orders-api-7d9f8b6c5d-q8w7e",
    "ip-10-20-30-40.eu-west-1.compute.internal",
    "ip-10-20-30-41.eu-west-1.compute.internal",
    "web-17",
];

/// Returns what a terminal with this number of columns shows until the program ends, as lines without colours.
async fn shown(columns: u16, arguments: &[&str]) -> Vec<String> {
    let mut terminal = OnTerminal::start_sized((columns, 50), binary(), arguments);
    let (text, code) = terminal.rest().await;
    assert_eq!(code, Some(0), "{text}");
    lines_of(&text)
}

/// Returns the lines without escape sequences.
fn lines_of(text: &str) -> Vec<String> {
    let mut plain = String::new();
    let mut pieces = text.split('\x1b');
    plain.extend(pieces.next());
    for piece in pieces {
        plain.push_str(piece.split_once(|c: char| c.is_ascii_alphabetic()).map_or("", |(_, rest)| rest));
    }
    plain.lines().map(str::to_owned).collect()
}

fn assert_fits(lines: &[String], columns: u16, tokens: &[i64]) {
    for line in lines {
        assert!(line.width() <= usize::from(columns), "{columns}: {line:?}");
    }
    for token in tokens {
        let ends = lines.iter().any(|line| line.ends_with(&format!(" {token}")));
        assert!(ends, "{columns}: {token} is not in {lines:#?}");
    }
}

/// Makes readers and waiting writers on every host, with long and wide labels, and one node that its process keeps
/// between uses. Returns the tokens, and the guards and tasks that the caller must keep.
async fn crowd(path: &str) -> (Vec<i64>, Vec<Box<dyn std::any::Any>>) {
    let label = "a label that is longer than a table has room for, 日本語のラベルも長い";
    let (zk, lock) = server_lock(path).await;
    let mut stay: Vec<Box<dyn std::any::Any>> = vec![Box::new(zk.clone())];
    for host in HOSTS {
        let lock = RwLock::builder(&zk, path).host(host).build().unwrap();
        stay.push(Box::new(lock.read().label(label).await.unwrap()));
    }
    let keeps = RwLock::builder(&zk, path).host("keeper").keep(10 * SOON).build().unwrap();
    stay.push(Box::new(keeps.read().await.unwrap()));
    for (many, host) in HOSTS.into_iter().enumerate() {
        let lock = RwLock::builder(&zk, path).host(host).build().unwrap();
        let waits = tokio::spawn(lock.write().label(label).into_future());
        stay.push(Box::new(waits));
        eventually("the waiter is in the queue", || async { line(&lock).await.matches("W-").count() == many + 1 })
            .await;
    }
    let tokens = lock.queue().await.unwrap().members.iter().map(|member| member.token.unwrap()).collect();
    (tokens, stay)
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn ls_fits_its_terminal_and_shows_every_token() {
    let path = "/zklock-screen/ls/a-path-of-some-length";
    let (tokens, _stay) = crowd(path).await;
    assert_eq!(tokens.len(), 11);
    for columns in [60, 80, 132] {
        let lines = shown(columns, &["ls", path]).await;
        assert_fits(&lines, columns, &tokens);
        assert!(!lines[0].contains("SESSION") && lines.iter().any(|line| line.contains("keeps")), "{lines:#?}");
        assert!(columns == 80 || lines[0].contains("PID") == (columns == 132), "{lines:#?}");
        // The table shows the parts in which the names of hosts and labels differ.
        for differs in ["x2k4j ", "q8w7e ", "30-40… ", "30-41… "] {
            let twice = lines.iter().filter(|line| line.contains(differs)).count() == 2;
            assert!(columns == 60 || twice, "{lines:#?}");
        }
    }
    // Off a terminal the table is complete.
    let whole = run(&["ls", path]).await.stdout;
    assert!(HOSTS.iter().all(|host| whole.contains(&format!("  {host} "))), "{whole}");
    assert!(whole.lines().next().unwrap().contains("  SESSION  "), "{whole}");
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn trees_permits_and_dialects_fit_the_terminal() {
    let prefix = "/zklock-screen/tree";
    let zk = connect(&shared_server().address()).await;
    let curator = RwLock::builder(&zk, format!("{prefix}/curator")).host(HOSTS[2]).dialect(Dialect::Curator);
    let curator = curator.build().unwrap().write().label("データベースの移行をしている").await.unwrap();
    let semaphore = Semaphore::builder(&zk, format!("{prefix}/permits"))
        .permits(16)
        .lock(|lock| lock.host(HOSTS[0]))
        .build()
        .unwrap();
    let permit = semaphore.acquire_many(12).await.unwrap();
    let waits = tokio::spawn({
        let semaphore = semaphore.clone();
        async move { semaphore.acquire_many(9).await.map(drop) }
    });
    eventually("the waiter is in the queue", || async { semaphore.queue().await.unwrap().members.len() == 2 }).await;
    let tokens = [curator.fencing_token(), permit.fencing_token()];
    for columns in [60, 80, 132] {
        let lines = shown(columns, &["ls", "--tree", prefix]).await;
        assert_fits(&lines, columns, &tokens);
        assert!(lines.contains(&format!("{prefix}/curator (curator):")), "{lines:#?}");
        let mode = lines.iter().any(|line| line.contains("  12 PERMITS  "));
        let behind = lines.iter().any(|line| line.contains("  holders  ") || line.contains("  the holders  "));
        assert!(columns < 80 || mode && behind, "{lines:#?}");
    }
    waits.abort();
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn watch_fits_its_terminal_and_follows_its_size() {
    let path = "/zklock-screen/watch/a-path-of-some-length/that-a-narrow-terminal-has-no-room-for";
    let (tokens, _stay) = crowd(path).await;
    let mut terminal = OnTerminal::start_sized((80, 50), binary(), &["watch", "--interval", "1h", path]);
    for columns in [80, 60, 132] {
        terminal.resize(columns, 50);
        // A screen that was drawn before the resize may come first.
        let lines = loop {
            terminal.shows("\x1b[H");
            let lines = lines_of(&terminal.before("\x1b[J"));
            if lines.len() > 2 && lines[2].trim_end().len() + 40 > usize::from(columns) {
                break lines;
            }
        };
        assert_fits(&lines, columns, &tokens);
        assert!(lines[0].starts_with("/zklock") && lines[0].ends_with('Z'), "{lines:#?}");
    }
    terminal.press("\x03");
    assert_eq!(terminal.ends().await, None);
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn watch_of_a_missing_path_says_so_until_it_is_used() {
    let path = "/zklock-screen/nowhere/mistyped";
    let (_zk, lock) = server_lock(path).await;
    let mut terminal = OnTerminal::start(&["watch", "--interval", "50ms", path]);
    terminal.shows(&format!("\nfree\x1b[K\r\n{path}: there is no such path: it is mistyped"));
    let held = lock.write().await.unwrap();
    terminal.shows("1      holds");
    terminal.shows("\x1b[H");
    assert!(!terminal.before("\x1b[J").contains("no such path"));
    held.release().await.unwrap();
    terminal.press("\x03");
    terminal.ends().await;
}

/// Waits until `watch` has read the queue `more` more times.
async fn looks(proxy: &Proxy, more: u64) {
    let before = proxy.count(Op::GetChildren2);
    eventually("watch reads the queue", || async { proxy.count(Op::GetChildren2) >= before + more }).await;
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn watch_draws_only_in_the_foreground() {
    let path = "/zklock-screen/background";
    let (_zk, lock) = server_lock(path).await;
    let proxy = Proxy::start(shared_server().address());
    let script = format!(
        "set -m; \"$0\" watch --interval 100ms {path} & echo started; read line; fg %1; echo stopped; read line; bg %1; \
         echo again; read line; echo \"typed $line\"; kill %1; wait"
    );
    let mut terminal = OnTerminal::start_with(&proxy.address(), &[], "bash", &["-c", &script, binary()]);
    terminal.shows("started");
    let held = lock.write().await.unwrap();
    looks(&proxy, 3).await;
    terminal.take();
    assert!(!terminal.seen.contains('\x1b'), "{:?}", terminal.seen);

    terminal.press("\n");
    terminal.shows(&format!("\x1b[H{path}"));
    terminal.shows("1      holds");
    terminal.press("\x1a");
    terminal.shows("stopped");
    terminal.press("\n");
    terminal.shows("again");
    held.release().await.unwrap();
    looks(&proxy, 3).await;
    terminal.take();
    assert!(!terminal.seen.contains('\x1b'), "{:?}", terminal.seen);
    terminal.press("word\n");
    terminal.shows("typed word");
    terminal.ends().await;
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_in_the_background_ends_with_its_terminal() {
    let path = "/zklock-screen/gone";
    let proxy = Proxy::start(shared_server().address());
    // The shell makes `watch` ignore SIGHUP, as nohup(1) does.
    let script = format!("set -m; trap '' HUP; \"$0\" watch --interval 20ms {path} & echo \"started $!.\"; read line");
    let mut terminal = OnTerminal::start_with(&proxy.address(), &[], "bash", &["-c", &script, binary()]);
    terminal.shows("started ");
    let pid = terminal.before(".");
    looks(&proxy, 1).await;
    terminal.press("\n");
    terminal.ends().await;
    drop(terminal);
    let stat = format!("/proc/{pid}/stat");
    let ended = || fs::read_to_string(&stat).map_or(true, |stat| stat.contains(") Z "));
    eventually("watch has ended", || async { ended() }).await;
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn watch_reports_no_outage_between_two_requests() {
    let path = "/zklock-screen/slow";
    let mut terminal = OnTerminal::start(&["watch", "--interval", "1h", path]);
    terminal.shows("free");
    // The screen is drawn each second. After five seconds without a request no outage may be reported.
    for _ in 0..5 {
        terminal.shows("\x1b[H");
        let heading = terminal.before("\n");
        assert!(heading.starts_with(path) && !heading.contains("no answer"), "{heading:?}");
    }
    terminal.press("\x03");
    terminal.ends().await;
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn the_waiting_line_fits_80_columns_with_its_holder() {
    let path = "/zklock-screen/wait/a-path-of-some-length";
    let (zk, _lock) = server_lock(path).await;
    let host = format!("{}.orders.svc.cluster.local", HOSTS[0]);
    let lock = RwLock::builder(&zk, path).host(&host).build().unwrap();
    let held = lock.write().label("nightly export of all customers").await.unwrap();
    let whole = format!(" to write {path}: place 2, held by WRITE {host} pid ");
    for (columns, words) in [(250, whole), (80, "2k4j".to_owned())] {
        let mut terminal = OnTerminal::start_sized((columns, 24), binary(), &[path, "true"]);
        terminal.shows("\r\x1b[Kzklock: waiting ");
        let line = format!("zklock: waiting {}", terminal.before("\r\x1b[K"));
        // The terminal shows Ctrl-C as two characters after the line. They must fit, or the terminal would begin a new
        // line.
        assert!(line.width() + "^C".width() < columns.into() && line.contains(&words), "{line:?}");
        assert!(line.ends_with("s ago"), "the age is cut off: {line:?}");
        for words in [": place 2, held by ", "order", " \"nightly", "\" queued "] {
            assert!(line.contains(words), "{words}: {line:?}");
        }
        terminal.press("\x03");
        terminal.ends().await;
    }
    held.release().await.unwrap();
}
