//! Observers of the leader: one read of who leads, or a stream of all changes.
//!
//! An observer watches the leader's node, as the first candidate behind the leader does. When nobody leads, the
//! observer watches the directory until the first candidate comes. So candidates that come and go behind a leader wake
//! no observer, and an observer wakes no candidate.

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::task::Poll;
use std::time::SystemTime;

use futures_util::stream::poll_fn;

use crate::call::{self, Call};
use crate::contend::config::LockConfig;
use crate::error::error::Error;
use crate::observe::changes::Changes;
use crate::queue::dialect::Dialect;
use crate::queue::member::write_pid_and_label;
use crate::queue::metadata::Metadata;
use crate::queue::mode::Mode;
use crate::queue::node_name::NodeName;
use crate::queue::turn::{self, Turn};
use crate::session::contract::{Coordinator, Session};
use crate::session::follow::{self, NodeWatcher, PAUSE, watch_across_sessions};
use crate::session::presence::{self, LeaderRecheckTimer, fail_if_session_ended};
use crate::session::request::{Failure, Stat};
use crate::session::retry::{self, RetryBudget};
use crate::sync::Mutex;

/// The present leader. Returned by [`Leadership::leader`](crate::Leadership::leader) and
/// [`Leadership::changes`](crate::Leadership::changes).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leader {
    /// The [number](crate::leadership::Term::number) of the leader's term.
    pub term: i64,
    /// The leader's host name. Empty if the leader gives none.
    pub host: String,
    /// The leader's process id, if the leader gives one.
    pub pid: Option<u32>,
    /// The data that the leader [publishes](crate::leadership::LeadershipBuilder::data).
    pub data: Option<String>,
    /// The id of the session that owns the leader's node.
    pub session: i64,
    /// The time at which the leader became a candidate for this term, on the ensemble's clock.
    pub since: SystemTime,
}

impl Leader {
    pub(crate) fn new(contender: &NodeName, data: &[u8], stat: Stat) -> Leader {
        let Metadata { host, pid, label, .. } = Metadata::new(contender, Some(data));
        let (term, session, since) = (stat.czxid, stat.ephemeral_owner, stat.ctime);
        Leader { term, host, pid, data: label, session, since }
    }
}

/// Writes one line for people.
impl fmt::Display for Leader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.host)?;
        write_pid_and_label(f, self.pid, self.data.as_ref())?;
        write!(f, " in term {}", self.term)
    }
}

/// Returns the leader: the first contender in the queue, if that contender is a writer and the lock is granted to it.
pub(crate) fn find_leader(dialect: Dialect, names: &[String]) -> Option<NodeName> {
    let first = turn::all_turns(dialect, names).into_iter().next();
    first.filter(|(contender, turn)| contender.mode() == Mode::Write && *turn == Turn::Granted).map(|(first, _)| first)
}

/// The name of the operation in errors.
const OPERATION: &str = "read the leader of";

pub(crate) fn read_leader(config: &Arc<LockConfig>) -> Call<Option<Leader>> {
    let lock = Arc::clone(config);
    Call::with_deadline(&config.coordinator, async move {
        let (config, path) = (&lock, &lock.directory);
        let seen = call::retry_on_fresh_session(&lock.coordinator, (OPERATION, path), |session| async move {
            let mut denials = RetryBudget::DENIALS;
            loop {
                let names = call::list_children(&session, path, false).await?;
                let Some(first) = find_leader(config.paths.dialect, &names) else { return Ok((names, None)) };
                let node = format!("{path}/{}", first.as_str());
                let read = call::ask_until_answered(&session, || session.data(&node));
                match read_unless_node_gone(&session, path, &first, read).await {
                    Ok(Some((data, stat))) => return Ok((names, Some(Leader::new(&first, &data, stat)))),
                    Ok(None) => {}
                    Err(Failure::NoNode) => {
                        _ = presence::await_retry_if_leader_has(&session, &node, &mut denials).await?
                    }
                    Err(failure) => return Err(failure),
                }
            }
        });
        let (names, leader) = seen.await?;
        lock.fail_if_foreign(&names)?;
        Ok(leader)
    })
}

/// Returns the output of `read`, which reads the node of the candidate `it`. Returns `None` if the ensemble's leader
/// does not have the node. If this client's server still lists the node then, also connects to another server. If the
/// check fails, or has no answer within a session timeout, the node counts as present.
async fn read_unless_node_gone<T>(
    session: &Arc<dyn Session>,
    path: &str,
    it: &NodeName,
    read: impl Future<Output = Result<T, Failure>>,
) -> Result<Option<T>, Failure> {
    let is_there = presence::exists_at_leader(session, format!("{path}/{}", it.as_str()), None);
    let (read, is_there) = tokio::join!(read, retry::run_until(session.sleep(session.timeout()), is_there));
    if is_there == Some(Ok(false)) {
        presence::leave_server_if_listed(session, path, vec![it.as_str().to_owned()]).await?;
        return Ok(None);
    }
    read.map(Some)
}

/// A stream of the leaders, as they change. Made by [`Leadership::changes`](crate::Leadership::changes).
///
/// The first call of [`next`](Changes::next) returns the present leader. `None` inside the result means that nobody
/// leads. A lost connection, or the end of this client's session, yields no item. If the leader has changed meanwhile,
/// the stream returns the present leader once the client is connected again. If the directory cannot be watched, or has
/// a node of another dialect, the stream returns the error once, and tries again. The stream ends once the coordinator
/// is closed.
///
/// Dropping the stream removes its watch. Nothing is sent while the stream is not polled.
pub type LeaderChanges = Changes<LeaderUpdate>;

type LeaderUpdate = Result<Option<Leader>, Error>;

pub(crate) fn leader_changes(config: &Arc<LockConfig>) -> LeaderChanges {
    let observer = Arc::new(LeaderObserver { config: Arc::clone(config), seen: Mutex::default() });
    let follower = Arc::clone(&observer);
    let mut observing = Box::pin(async move { watch_across_sessions(&*follower).await });
    Changes::new(poll_fn(move |context| match observing.as_mut().poll(context) {
        Poll::Ready(()) => Poll::Ready(None),
        Poll::Pending => observer.take_update().map_or(Poll::Pending, |update| Poll::Ready(Some(update))),
    }))
}

struct LeaderObserver {
    config: Arc<LockConfig>,
    seen: Mutex<LeaderStreamState>,
}

#[derive(Default)]
struct LeaderStreamState {
    update: Option<LeaderUpdate>,
    /// The last item of the stream. An equal item is not yielded again. The whole leader is compared, because an ensemble that
    /// was restored from a backup gives the same term number again. Errors are compared by their text.
    last: Option<Result<Option<Leader>, String>>,
}

impl NodeWatcher for LeaderObserver {
    fn coordinator(&self) -> Option<Arc<dyn Coordinator>> {
        Some(Arc::clone(&self.config.coordinator))
    }

    fn report_failure(&self, failure: Failure) {
        self.report(Err(Error::from_failure(failure, OPERATION, &self.config.directory)));
    }

    async fn watch(&self, session: &Arc<dyn Session>) -> Result<Infallible, Failure> {
        let path = &self.config.directory;
        // The server of this session may lag behind the server that has shown the last item of the stream. Without a
        // sync, the stream could go back to an earlier leader.
        if self.seen.lock().last.is_some() {
            retry::repeat_until_known(session, || session.sync(path)).await?;
        }
        let mut denials = RetryBudget::DENIALS;
        loop {
            let names = match retry::repeat_until_known(session, || session.children(path)).await {
                Ok(names) => names,
                Err(Failure::NoNode) => {
                    self.report(Ok(None));
                    follow::until_node_may_exist(session, path).await?;
                    continue;
                }
                Err(failure) => return Err(failure),
            };
            if let Err(error) = self.config.fail_if_foreign(&names) {
                self.report(Err(error));
                session.sleep(PAUSE).await;
                continue;
            }
            let first = find_leader(self.config.paths.dialect, &names);
            let waited = match &first {
                Some(first) => self.watch_leader(session, first).await,
                None => self.watch_directory(session).await,
            };
            match waited {
                // The watch has fired: the leader's node or the list of the candidates may have changed. The loop lists
                // the candidates again.
                Ok(()) => {}
                // The directory or the leader's node was deleted between the listing and the watch. Or this client's
                // server lags, and denies a node that the ensemble has.
                Err(Failure::NoNode) => {
                    if let Some(it) = first {
                        presence::await_retry_if_leader_has(session, &format!("{path}/{}", it.as_str()), &mut denials)
                            .await?;
                    }
                }
                Err(failure) => return Err(failure),
            }
        }
    }
}

impl LeaderObserver {
    fn report(&self, update: LeaderUpdate) {
        self.seen.lock().update = Some(update);
    }

    /// Takes the newest update, unless it equals the last item of the stream.
    fn take_update(&self) -> Option<LeaderUpdate> {
        let mut seen = self.seen.lock();
        let update = seen.update.take()?;
        let last = update.clone().map_err(|error| error.to_string());
        (seen.last.replace(last.clone()) != Some(last)).then_some(update)
    }

    /// Reports that nobody leads, and waits until the directory changes. Returns immediately if somebody leads already.
    /// While waiting, also lists the queue now and then, because the event of the watch may be lost.
    async fn watch_directory(&self, session: &Arc<dyn Session>) -> Result<(), Failure> {
        let path = &self.config.directory;
        let (names, mut change) = retry::repeat_until_known(session, || session.watch_children(path)).await?;
        if find_leader(self.config.paths.dialect, &names).is_some() {
            return Ok(());
        }
        self.report(Ok(None));
        let mut look = LeaderRecheckTimer::new(session);
        loop {
            if look.until_event_or_recheck(&mut change).await? {
                return Ok(());
            }
            let names = session.children(path).await;
            if !names.is_ok_and(|names| find_leader(self.config.paths.dialect, &names).is_none()) {
                return Ok(());
            }
        }
    }

    /// Reports the leading candidate `first`, and waits for an event of its node. While waiting, also asks the
    /// ensemble's leader now and then whether the node exists, because the event of the watch may be lost. Connects to
    /// another server if this client's server lists the node and the ensemble's leader does not have it.
    async fn watch_leader(&self, session: &Arc<dyn Session>, first: &NodeName) -> Result<(), Failure> {
        let node = format!("{}/{}", self.config.directory, first.as_str());
        let read = retry::watch_and_read(session, &node);
        if let Some((change, (data, stat))) =
            read_unless_node_gone(session, &self.config.directory, first, read).await?
        {
            self.report(Ok(Some(Leader::new(first, &data, stat))));
            let mut look = LeaderRecheckTimer::new(session);
            if let Some(event) = retry::run_until(look.until_leader_confirms(&node, false), change).await {
                return fail_if_session_ended(session, event).await;
            }
            presence::leave_server_if_listed(session, &self.config.directory, vec![first.as_str().to_owned()]).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_writer_leads_unless_tied_or_behind_a_reader() {
        let leading = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
            find_leader(Dialect::Native, &names).map(|leads| leads.as_str().to_owned())
        };
        let [one, two] = ["web-1~aaaaaaaa-WRITE-0000000001", "web-2~bbbbbbbb-WRITE-0000000002"];
        assert_eq!(leading(&[two, "stranger", one]).as_deref(), Some(one));
        assert_eq!(leading(&["web-3~cccccccc-READ-0000000000", one]), None);
        assert_eq!(leading(&[one, "web-3~cccccccc-WRITE-0000000001", two]), None);
        assert_eq!(leading(&[]), None);
    }
}
