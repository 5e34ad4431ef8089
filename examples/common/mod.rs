//! What the examples share: how they read where the lock is kept, how they start further processes, and how they end.

#![allow(dead_code, reason = "no example uses all of it")]

pub(crate) mod chart;
pub(crate) mod meter;

use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use tokio::process::Command;
use tokio::task::JoinSet;
use zk_rwlock::coordinator::Coordinator;
use zk_rwlock::{Error, Memory, ZooKeeper};

pub(crate) type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// What a command line that is wrong ends with (`EX_USAGE` of `sysexits.h`).
const USAGE: i32 = 64;

/// One process's client of either backend. With a fixed backend it would be a [`Memory`] or a [`ZooKeeper`].
pub(crate) type Client = Arc<dyn Coordinator>;

/// Where the lock is kept.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Backend {
    /// Keep the lock on this ZooKeeper server, and not in an ensemble embedded in this process
    #[arg(long, global = true, value_name = "HOST:PORT", value_parser = servers)]
    pub(crate) zookeeper: Option<String>,
    /// After how long without a sign of life the servers give up a session of this process
    #[arg(long, global = true, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=60))]
    pub(crate) session_timeout: u64,
    #[arg(skip = Memory::new())]
    memory: Memory,
}

impl Backend {
    /// Another client, with a session of its own, as another process would have.
    pub(crate) async fn connect(&self) -> std::result::Result<Client, Error> {
        match &self.zookeeper {
            None => Ok(Arc::new(self.memory.connect())),
            Some(servers) => {
                let session_timeout = Duration::from_secs(self.session_timeout);
                let connector = ZooKeeper::builder().connect_timeout(Duration::from_secs(3));
                let connector = connector.session_timeout(session_timeout);
                Ok(Arc::new(connector.connect(servers).await?))
            }
        }
    }

    /// A client of the embedded ensemble, which can be made to lose its session; `None` on a server.
    pub(crate) fn embedded(&self) -> Option<Memory> {
        self.zookeeper.is_none().then(|| self.memory.connect())
    }
}

/// Reads `HOST:PORT[,HOST:PORT...][/PATH]`.
pub(crate) fn servers(text: &str) -> std::result::Result<String, String> {
    let (servers, _path) = text.split_once('/').unwrap_or((text, ""));
    for server in servers.split(',') {
        match server.rsplit_once(':') {
            Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port != 0) => {}
            _ => return Err(format!("{server:?} is not HOST:PORT")),
        }
    }
    Ok(text.to_owned())
}

/// The command line; ends the process with 64 when it is wrong.
pub(crate) fn arguments<A: Parser>() -> A {
    A::try_parse().unwrap_or_else(|error| {
        if !error.use_stderr() {
            print!("{error}");
            std::process::exit(0);
        }
        let message = error.to_string();
        eprint!("{message}");
        if !message.contains("Usage:") {
            eprintln!("\n{}", A::command().name(env!("CARGO_BIN_NAME")).render_usage());
        }
        std::process::exit(USAGE);
    })
}

/// Runs this program once more for each list of arguments, all at once; fails if one of them does.
pub(crate) async fn processes(commands: impl IntoIterator<Item = Vec<OsString>>) -> Result<()> {
    let program = std::env::current_exe()?;
    let mut children = JoinSet::new();
    for arguments in commands {
        let mut child = Command::new(&program).args(arguments).kill_on_drop(true).spawn()?;
        children.spawn(async move {
            let status = child.wait().await?;
            if status.success() { Ok(()) } else { Err(format!("a process failed ({status})").into()) }
        });
    }
    all(children).await
}

/// Waits for all tasks; the first that fails ends the others.
pub(crate) async fn all(mut tasks: JoinSet<Result<()>>) -> Result<()> {
    while let Some(task) = tasks.join_next().await {
        task??;
    }
    Ok(())
}

/// Says in one line what went wrong, if something did.
pub(crate) fn exit(result: Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
