//! Measures `zklock ls` of a long queue, and processes that queue up and are granted the lock in turn, on a real
//! server.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use nix::sys::resource::{UsageWho, getrusage};
use support::program::program;
use support::server::Server;
use zk_rwlock::{RwLock, ZooKeeper};
use zookeeper_client::{Acls, Client, CreateMode};

use super::meter::Meter;
use super::{Measured, PATH, Result};

/// The maximal number of creates that are in flight at the same time.
const CREATES_IN_FLIGHT: usize = 1_000;

/// The session timeout. It is long, because a thousand processes take a while to start.
const SESSION_TIMEOUT: Duration = Duration::from_secs(40);

fn start() -> Server {
    Server::start_with(&["tickTime=2000", "maxClientCnxns=0"], &["-XX:TieredStopAtLevel=4", "-Xmx1g"])
}

/// Runs `work` and measures the processor time of the child processes that it awaits, and the bytes to and from the
/// server.
fn measured(server: &Server, work: impl FnOnce() -> Result<()>) -> Result<Measured> {
    let processor = || -> Result<Duration> {
        let used = getrusage(UsageWho::RUSAGE_CHILDREN)?;
        let micros = [used.user_time(), used.system_time()].map(|time| 1_000_000 * time.tv_sec() + time.tv_usec());
        Ok(Duration::from_micros(micros.into_iter().sum::<i64>().unsigned_abs()))
    };
    let (meter, before, began) = (Meter::start(&server.address())?, processor()?, Instant::now());
    work()?;
    let (clock, processor, counted) = (began.elapsed(), processor()? - before, meter.stop()?);
    let bytes = counted.of("bytes_received_count")? + counted.of("response_bytes")?;
    Ok(Measured { processor, bytes: Some(bytes.unsigned_abs()), clock: Some(clock) })
}

pub(super) fn list(members: usize) -> Measured {
    let server = start();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let client = runtime.block_on(fill(&server.address(), members)).expect("the server creates the nodes");
    let listing = || {
        let mut ls = Command::new(program("zklock"));
        let output = ls.args(["ls", PATH, "--zk", &server.address()]).stderr(Stdio::inherit()).output()?;
        let lines = output.stdout.iter().filter(|byte| **byte == b'\n').count();
        // The output has one line for each member, and one for the headings.
        if output.status.success() && lines == members + 1 { Ok(()) } else { Err(format!("{lines} lines").into()) }
    };
    let measured = measured(&server, listing).expect("ls lists every member");
    drop(client);
    measured
}

/// Creates nodes of writers and readers with the names that the library gives them.
async fn fill(server: &str, members: usize) -> Result<Client> {
    let client = Client::connector().with_session_timeout(SESSION_TIMEOUT).connect(server).await?;
    client.mkdir(PATH, &CreateMode::Persistent.with_acls(Acls::anyone_all())).await?;
    let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
    for first in (0..members).step_by(CREATES_IN_FLIGHT) {
        let creates = (first..members.min(first + CREATES_IN_FLIGHT)).map(|member| {
            let mode = if member % 2 == 0 { "WRITE" } else { "READ" };
            let (host, pid) = (format!("web-{}.example", member % 1_000), 1_000 + member / 1_000);
            let prefix = format!("{PATH}/{host}~{member:08x}-{mode}-");
            let data = format!("host={host}\npid={pid}\nsince=2026-01-01T00:00:00.000Z\n");
            let (client, options) = (&client, &options);
            async move { client.create(&prefix, data.as_bytes(), options).await }
        });
        try_join_all(creates).await?;
    }
    Ok(client)
}

/// Starts processes that queue up to write behind this one, and waits until all were granted the lock.
pub(super) fn processes(n: usize) -> Measured {
    let server = start();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let (zk, lock) = open(&server.address()).await.expect("the server accepts the session");
        let held = lock.write().await.expect("free");
        let all = || -> Result<()> {
            let this = std::env::current_exe()?;
            let process = |_| Command::new(&this).args(["--process", &server.address()]).stdout(Stdio::null()).spawn();
            let children = (0..n).map(process).collect::<std::io::Result<Vec<Child>>>()?;
            while server.counter("zk_ephemerals_count") < n as u64 + 1 {
                std::thread::sleep(Duration::from_millis(50));
            }
            drop(held);
            children.into_iter().try_for_each(|mut child| match child.wait()?.success() {
                true => Ok(()),
                false => Err("a process failed".into()),
            })
        };
        let measured =
            tokio::task::block_in_place(|| measured(&server, all)).expect("every process is granted the lock");
        zk.close().await;
        measured
    })
}

async fn open(server: &str) -> Result<(ZooKeeper, RwLock)> {
    let zk = ZooKeeper::builder().session_timeout(SESSION_TIMEOUT).connect(server).await?;
    let lock = RwLock::new(&zk, PATH)?;
    Ok((zk, lock))
}

/// Runs one of the processes that queue up.
#[tokio::main]
pub(super) async fn process(server: &str) -> Result<()> {
    let (zk, lock) = open(server).await?;
    lock.write().await?.release().await?;
    zk.close().await;
    Ok(())
}
