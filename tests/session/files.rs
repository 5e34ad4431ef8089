//! A process that may open too few files is told so, and can connect once it may open more.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use support::process::{Process, role, say};
use support::server::shared_server;
use zk_rwlock::{Blocking, ZooKeeper};

use support::scene::CALM;

#[test]
fn the_life_of_a_child() {
    let Some(server) = role() else { return };
    let maximum = getrlimit(Resource::Nofile).maximum;
    let mut refusals = 0;
    for files in 3..100 {
        setrlimit(Resource::Nofile, Rlimit { current: Some(files), maximum }).expect("allowed");
        let connected = ZooKeeper::builder().session_timeout(CALM).connect_timeout(CALM).connect(&server).blocking();
        match connected {
            Ok(zk) => {
                zk.close().blocking();
                return say(if refusals > 0 { "it was told" } else { "it had enough" });
            }
            Err(error) => {
                let words = error.to_string().to_lowercase();
                assert!(words.contains("too many open files"), "{files}: {words}");
                refusals += 1;
            }
        }
    }
}

#[support::judged]
async fn a_process_that_may_open_too_few_files_is_told_so_until_it_may_open_more() {
    let mut child = Process::start(module_path!(), &shared_server().address());
    let said = tokio::task::spawn_blocking(move || child.said().last()).await.expect("no panic");
    assert_eq!(said.as_deref(), Some("it was told"));
}
