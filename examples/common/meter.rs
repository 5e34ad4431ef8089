//! What servers count while something is measured, as their `mntr` says, and what memory this process has.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use super::Result;

const PATIENCE: Duration = Duration::from_secs(10);

/// The sums of what the servers count, over `HOST:PORT[,HOST:PORT...]`, under names without their `zk_`.
#[derive(Clone, Debug)]
struct Counters(Vec<(String, i64)>);

impl Counters {
    fn read(servers: &str) -> Result<Counters> {
        let mut sums: Vec<(String, i64)> = Vec::new();
        for server in servers.split(',') {
            let answer = four_letter(server, "mntr")?;
            let lines = answer.lines().filter_map(|line| line.strip_prefix("zk_")?.split_once('\t'));
            let mut read = lines.filter_map(|(name, value)| Some((name, value.parse::<i64>().ok()?))).peekable();
            if read.peek().is_none() {
                return Err(format!("{server} does not answer mntr; allow it with 4lw.commands.whitelist=*").into());
            }
            for (name, value) in read {
                match sums.iter_mut().find(|(known, _)| known == name) {
                    Some((_, sum)) => *sum += value,
                    None => sums.push((name.to_owned(), value)),
                }
            }
        }
        Ok(Counters(sums))
    }

    fn get(&self, name: &str) -> Result<i64> {
        let found = self.0.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| *value).ok_or_else(|| format!("this server does not count {name}").into())
    }
}

/// What the servers counted between two moments, without what the asking itself adds.
#[derive(Debug)]
pub(crate) struct Meter {
    servers: String,
    once: Counters,
    twice: Counters,
}

impl Meter {
    pub(crate) fn start(servers: &str) -> Result<Meter> {
        let once = Counters::read(servers)?;
        // A server counts the asking itself a moment after it has answered.
        std::thread::sleep(Duration::from_millis(20));
        let twice = Counters::read(servers)?;
        Ok(Meter { servers: servers.to_owned(), once, twice })
    }

    pub(crate) fn stop(self) -> Result<Counted> {
        let after = Counters::read(&self.servers)?;
        Ok(Counted { once: self.once, twice: self.twice, after })
    }
}

/// The readings of a [`Meter`].
#[derive(Debug)]
pub(crate) struct Counted {
    once: Counters,
    twice: Counters,
    after: Counters,
}

impl Counted {
    /// By how much a counter has risen.
    pub(crate) fn of(&self, name: &str) -> Result<i64> {
        let (once, twice, after) = (self.once.get(name)?, self.twice.get(name)?, self.after.get(name)?);
        Ok(after - twice - (twice - once))
    }
}

/// Waits until next to nothing reaches the servers any more: twice in a row, no more in 200 ms than the asking itself
/// and what `sessions` idle sessions send.
pub(crate) async fn quiet(servers: &str, sessions: usize) -> Result<()> {
    let idle = i64::try_from(3 * servers.split(',').count() + sessions / 10)?;
    let mut quiet = 0;
    while quiet < 2 {
        let before = Counters::read(servers)?;
        tokio::time::sleep(Duration::from_millis(200)).await;
        let after = Counters::read(servers)?;
        let rise = |name: &str| -> Result<i64> { Ok(after.get(name)? - before.get(name)?) };
        // The end of a session with many nodes is one request, and takes a while on a slow disk.
        let is_quiet = rise("packets_received")? <= idle && rise("ephemerals_count")? == 0;
        quiet = if is_quiet { quiet + 1 } else { 0 };
    }
    Ok(())
}

/// A line of what the system says of this process, in bytes: `VmRSS` is the memory that it has, `VmHWM` the most that
/// it ever had. `None` on a system that does not say.
#[allow(dead_code, reason = "not every program that measures asks for it")]
pub(crate) fn memory(name: &str) -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

/// How many connections each server takes from one address; `None` if it sets no limit.
#[allow(dead_code, reason = "not every program that measures opens many")]
pub(crate) fn connections_allowed(servers: &str) -> Result<Option<usize>> {
    /// What a server takes that does not say.
    const USUAL: usize = 60;
    let mut least = None;
    for server in servers.split(',') {
        let answer = four_letter(server, "conf")?;
        let limit = answer.lines().find_map(|line| line.strip_prefix("maxClientCnxns=")?.trim().parse().ok());
        let limit = Some(limit.unwrap_or(USUAL)).filter(|limit| *limit != 0);
        least = [least, limit].into_iter().flatten().min();
    }
    Ok(least)
}

fn four_letter(server: &str, word: &str) -> Result<String> {
    let mut connection = TcpStream::connect(server)?;
    connection.set_read_timeout(Some(PATIENCE))?;
    connection.write_all(word.as_bytes())?;
    let mut answer = String::new();
    connection.read_to_string(&mut answer)?;
    Ok(answer)
}
