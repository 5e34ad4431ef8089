//! A server that lies may crash the client's process, but never makes the client believe that it holds a lock.
//!
//! Each client runs in a child process, which is this test binary: [`the_child_process_of_other_tests`] reads its task from the
//! environment and reports to its parent in lines. In an ordinary run that test does nothing.

use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use support::fake::{Fake, Lie};
use support::process::test_in;
use support::scene::connect_with;
use zk_rwlock::{RwLock, ZooKeeper};

const SERVER: &str = "ZK_RWLOCK_LIAR";

/// The prefix that marks a child's own lines in the output of the test harness.
const SAYS: &str = "child says ";

const SESSION_TIMEOUT: Duration = Duration::from_secs(1);

/// The limit of a child's address space in kilobytes, so that an allocation of 2 GiB fails in the child.
const MEMORY: u32 = 3_000_000;

#[tokio::test]
async fn the_child_process_of_other_tests() {
    let Ok(server) = std::env::var(SERVER) else { return };
    let connecting = ZooKeeper::builder().session_timeout(SESSION_TIMEOUT).connect_timeout(SESSION_TIMEOUT);
    let end = match connecting.connect(&server).await {
        Ok(zk) => {
            let lock = RwLock::new(&zk, "/lock").unwrap();
            match lock.write().timeout(3 * SESSION_TIMEOUT).await {
                Ok(_) => "granted".to_owned(),
                Err(error) => format!("error {error}"),
            }
        }
        Err(error) => format!("no session {error}"),
    };
    // A single write to standard output, because the harness captures `println!`.
    let mut out = std::io::stdout().lock();
    out.write_all(format!("\n{SAYS}{end}\n").as_bytes()).and_then(|()| out.flush()).unwrap();
    std::process::exit(0);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Granted,
    /// The client got an error instead of a session.
    NoSession,
    Error,
    Panic,
    /// A signal ended the process.
    Death,
}

fn client_of(lie: Lie) -> (End, String) {
    let fake = Fake::start(lie);
    let output = Command::new("sh")
        .args(["-c", &format!("ulimit -v {MEMORY}; exec \"$0\" \"$@\"")])
        .arg(std::env::current_exe().unwrap())
        .args([&test_in(module_path!(), "the_child_process_of_other_tests"), "--exact", "--nocapture"])
        .env(SERVER, fake.address())
        .env("RUST_BACKTRACE", "0")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let said = said.lines().find_map(|line| line.strip_prefix(SAYS)).unwrap_or_default().to_owned();
    let end = match &said {
        said if said == "granted" => End::Granted,
        said if said.starts_with("no session") => End::NoSession,
        said if said.starts_with("error") => End::Error,
        _ if output.status.signal().is_some() => End::Death,
        _ => End::Panic,
    };
    (end, format!("{said} {} {}", output.status, String::from_utf8_lossy(&output.stderr)))
}
/// Each lie, and the end of the client to which it leads. Two lies end in a grant, because the listing shows the session's own
/// node although the reply to the create does not name that node.
const ENDS: [(Lie, End); 24] = [
    (Lie::None, End::Granted),
    (Lie::NoiseForAHandshake, End::NoSession),
    (Lie::EmptyHandshake, End::NoSession),
    (Lie::EndlessPassword, End::NoSession),
    (Lie::NegativeTimeout, End::NoSession),
    (Lie::NoTimeout, End::NoSession),
    (Lie::EndlessFrame, End::Error),
    (Lie::NegativeFrame, End::Error),
    (Lie::ShortFrame, End::Error),
    (Lie::WrongXid, End::Error),
    (Lie::InventedEvents, End::Error),
    (Lie::ShortCreate, End::Granted),
    (Lie::CreatedElsewhere, End::Granted),
    (Lie::CreatedBelowZero, End::Error),
    (Lie::CreatedForAnother, End::Error),
    (Lie::CreatedForNobody, End::Error),
    // The client crate allocates memory for as many names as the frame announces.
    (Lie::EndlessListing, End::Death),
    (Lie::NegativeListing, End::Error),
    (Lie::ShortListing, End::Error),
    (Lie::NoiseForAListing, End::Error),
    (Lie::ListingWithoutMe, End::Error),
    (Lie::ListingWithATwin, End::Error),
    // The client crate panics, and the session survives.
    (Lie::ShortData, End::Error),
    (Lie::FalseDeparture, End::Error),
];

#[support::judged]
fn no_lie_of_a_server_is_taken_for_a_grant() {
    for some in ENDS.chunks(2) {
        thread::scope(|scope| {
            let clients: Vec<_> = some.iter().map(|(lie, end)| (lie, end, scope.spawn(|| client_of(*lie)))).collect();
            for (lie, expected, client) in clients {
                let (end, words) = client.join().unwrap();
                assert_eq!(end, *expected, "{lie:?}: {words}");
            }
        });
    }
}

/// A client could hang only if the reply comes while its request is still being sent. Such replies are rare, so many rounds run
/// concurrently.
#[support::judged]
fn a_reply_of_another_session_hangs_no_client() {
    let rounds = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        for _ in 0..40 {
            let fake = Fake::start(Lie::CreatedForAnother);
            runtime.block_on(async {
                let zk = connect_with(&fake.address(), SESSION_TIMEOUT).await;
                let lock = RwLock::new(&zk, "/lock").unwrap();
                assert!(lock.write().timeout(SESSION_TIMEOUT).await.is_err());
            });
        }
    };
    thread::scope(|scope| (0..6).for_each(|_| drop(scope.spawn(rounds))));
}
