//! Reads the servers' counters (`mntr`) during a measurement, and the memory of this process.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use super::Result;

const READ_TIMEOUT: Duration = Duration::from_secs(10);

/// The servers' counters, summed over `HOST:PORT[,HOST:PORT...]`. Names lack their prefix `zk_`.
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

/// Measures the rise of the servers' counters between two moments. The requests that read the counters are subtracted.
#[derive(Debug)]
pub(crate) struct Meter {
    servers: String,
    once: Counters,
    twice: Counters,
}

impl Meter {
    pub(crate) fn start(servers: &str) -> Result<Meter> {
        let once = Counters::read(servers)?;
        // A server counts the request that reads the counters only a moment after its answer, so the second reading is
        // delayed.
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
    /// Returns how much a counter has risen.
    pub(crate) fn of(&self, name: &str) -> Result<i64> {
        let (once, twice, after) = (self.once.get(name)?, self.twice.get(name)?, self.after.get(name)?);
        Ok(after - twice - (twice - once))
    }
}

/// Waits until the servers are almost idle. They are if, twice in a row, they receive within 200 ms no more requests
/// than the readings of the counters and the pings of `sessions` idle sessions.
pub(crate) async fn quiet(servers: &str, sessions: usize) -> Result<()> {
    let idle = i64::try_from(3 * servers.split(',').count() + sessions / 10)?;
    let mut quiet = 0;
    while quiet < 2 {
        let before = Counters::read(servers)?;
        tokio::time::sleep(Duration::from_millis(200)).await;
        let after = Counters::read(servers)?;
        let rise = |name: &str| -> Result<i64> { Ok(after.get(name)? - before.get(name)?) };
        // The end of a session with many nodes is one request, but on a slow disk the server needs some time to delete the
        // nodes.
        let is_quiet = rise("packets_received")? <= idle && rise("ephemerals_count")? == 0;
        quiet = if is_quiet { quiet + 1 } else { 0 };
    }
    Ok(())
}

/// Returns the size in this line of `/proc/self/status`, in bytes. `VmRSS` is the memory of this process, and `VmHWM` is its
/// maximum so far. `None` on a system without this file.
#[allow(dead_code, reason = "not every program that measures asks for it")]
pub(crate) fn memory(name: &str) -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

/// Returns how many connections every server accepts from one address: the least of the servers' limits. `None` if no
/// server has a limit.
#[allow(dead_code, reason = "not every program that measures opens many")]
pub(crate) fn connections_allowed(servers: &str) -> Result<Option<usize>> {
    /// The default of ZooKeeper's `maxClientCnxns`: the connections that a server accepts from one address.
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
    connection.set_read_timeout(Some(READ_TIMEOUT))?;
    connection.write_all(word.as_bytes())?;
    let mut answer = String::new();
    connection.read_to_string(&mut answer)?;
    Ok(answer)
}
