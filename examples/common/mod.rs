//! Code that the examples share: the options for the backend, the start of further processes, and the exit code.

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

/// The exit code for a wrong command line (`EX_USAGE` of `sysexits.h`).
const USAGE: i32 = 64;

/// The client of one process, of either backend. A program with a fixed backend would use a [`Memory`] or a
/// [`ZooKeeper`].
pub(crate) type Client = Arc<dyn Coordinator>;

/// The options that choose the backend.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Backend {
    /// Keep the lock on this ZooKeeper server instead of an ensemble embedded in this process
    #[arg(long, global = true, value_name = "HOST:PORT", value_parser = servers)]
    pub(crate) zookeeper: Option<String>,
    /// The session timeout: how long the servers keep a session of this process without hearing from it
    #[arg(long, global = true, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=60))]
    pub(crate) session_timeout: u64,
    #[arg(skip = Memory::new())]
    memory: Memory,
}

impl Backend {
    /// Opens another client with a session of its own, as another process would.
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

    /// Returns a client of the embedded ensemble, which can expire its own session for a demonstration. `None` on a server.
    pub(crate) fn embedded(&self) -> Option<Memory> {
        self.zookeeper.is_none().then(|| self.memory.connect())
    }
}

/// Parses `HOST:PORT[,HOST:PORT...][/PATH]`.
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

/// Parses the command line. If the command line is wrong, ends the process with code 64.
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

/// Runs this program once for each list of arguments, all at the same time. Fails if one of them fails.
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

/// Waits for all tasks. After the first error the other tasks are aborted.
pub(crate) async fn all(mut tasks: JoinSet<Result<()>>) -> Result<()> {
    while let Some(task) = tasks.join_next().await {
        task??;
    }
    Ok(())
}

/// Prints an error in one line, and returns the exit code.
pub(crate) fn exit(result: Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
