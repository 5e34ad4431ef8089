//! Listings of a directory that several callers share, so that many contenders cost a session few requests. Contenders
//! call [`list`].
//!
//! If each of n contenders that arrive together listed the directory, a session would read n times n names. But one
//! listing serves every caller that called before the listing was *sent*. So while the allowed number of listings is
//! under way, new callers wait for the next listing, and share it.

use std::iter;
use std::sync::Arc;

use futures_util::future::join_all;

use crate::session::contract::Session;
use crate::session::request::{Children, Failure, Listing, Reply, Stat};
use crate::session::retry::{self, run_until};
use crate::session::store::{ListingAnswer, ListingSender, SessionStore};
use crate::sync::watch;

/// The most concurrent listings of one small directory. With more than one, a caller often need not wait for the
/// listing of another caller.
const UNDER_WAY_MAX: usize = 4;

/// The most names of a small directory. A larger directory has one listing at a time, because several listings would
/// fill memory with copies of the same names.
const MANY: usize = 256;

/// The most listings that are sent after one sync. The next sync is sent when all of them are answered, or one session
/// timeout later. So a heartbeat usually waits behind no more than this number of listings.
const BEHIND_ONE_SYNC: usize = 128;

/// Lists the children of a directory. The answer shows the effect of every request that this session sent before this
/// call. No sync is sent, so the answer may lack recent changes by other sessions.
pub(crate) fn list(session: &Arc<dyn Session>, directory: &Arc<str>) -> Reply<Listing> {
    list_telling_if_sent(session, directory).0
}

/// Does the same as [`list`]. Also returns whether the request was sent now. If not, the caller gets the answer to the
/// next listing.
pub(crate) fn list_telling_if_sent(session: &Arc<dyn Session>, directory: &Arc<str>) -> (Reply<Listing>, bool) {
    let (answer, first) = session.store().join_or_begin_listing(directory);
    let is_sent = first.is_some();
    if let Some(first) = first {
        let reply = session.children_and_stat(directory);
        retry::poll_then_spawn(session, answer_callers(Arc::clone(session), Arc::clone(directory), reply, first));
    }
    (shared_reply(answer), is_sent)
}

impl SessionStore {
    /// Adds a caller that awaits a listing of the directory, and returns the channel on which the caller gets the
    /// names. If the caller must request the listing itself, also returns the sender of that channel. The caller must
    /// then call [`SessionStore::end_listing`] after the answer to the request, or if no answer comes in time.
    fn join_or_begin_listing(&self, directory: &Arc<str>) -> (watch::Receiver<ListingAnswer>, Option<ListingSender>) {
        let mut record = self.record.lock();
        let listings = record.listings.entry(Arc::clone(directory)).or_default();
        if listings.under_way < max_parallel_listings(listings.is_large) {
            listings.under_way += 1;
            let (callers, answer) = watch::channel(None);
            return (answer, Some(callers));
        }
        (listings.next.get_or_insert_with(|| watch::channel(None).0).subscribe(), None)
    }

    /// Records that a listing was answered, or that it was not answered in time. `is_large` says whether the directory
    /// is large. If the next listing must be sent now, returns the sender that gives the answer to that listing's
    /// callers.
    fn end_listing(&self, directory: &Arc<str>, is_large: bool) -> Option<ListingSender> {
        let mut record = self.record.lock();
        let listings = record.listings.get_mut(directory)?;
        listings.is_large = is_large;
        // If the directory has become large, more listings than allowed may be under way. The next listing is then sent
        // once fewer are under way.
        let next = if listings.under_way <= max_parallel_listings(is_large) { listings.next.take() } else { None };
        let next = next.filter(|next| next.receiver_count() > 0);
        if next.is_none() {
            listings.under_way -= 1;
            if listings.under_way == 0 {
                record.listings.remove(directory);
            }
        }
        next
    }

    /// Adds a caller that awaits a listing of the directory after a sync. Returns the channel on which the caller gets
    /// the names, and whether the caller must start the task that sends such listings.
    fn join_synced_listing(&self, directory: &Arc<str>) -> (watch::Receiver<ListingAnswer>, bool) {
        let wanted = &mut self.record.lock().synced_listings;
        let is_first = wanted.is_none();
        let callers = wanted.get_or_insert_default().entry(Arc::clone(directory));
        (callers.or_insert_with(|| watch::channel(None).0).subscribe(), is_first)
    }

    /// Returns the next directories to list after a sync, at most [`BEHIND_ONE_SYNC`], each with the sender that gives
    /// the answer to its callers. If there are none, returns `None`, and the task that sends the listings must end. A
    /// directory that was not returned yet can still get more callers.
    fn take_synced_listings(&self) -> Option<Vec<(Arc<str>, ListingSender)>> {
        let wanted = &mut self.record.lock().synced_listings;
        let taken: Vec<_> = iter::from_fn(|| wanted.as_mut()?.pop_first()).take(BEHIND_ONE_SYNC).collect();
        if taken.is_empty() {
            *wanted = None;
            return None;
        }
        Some(taken)
    }
}

fn max_parallel_listings(is_large: bool) -> usize {
    if is_large { 1 } else { UNDER_WAY_MAX }
}

fn shared_reply(mut answer: watch::Receiver<ListingAnswer>) -> Reply<Listing> {
    Box::pin(async move {
        match answer.wait_for(Option::is_some).await.as_deref() {
            Ok(Some(answer)) => answer.clone(),
            _ => Err(Failure::Unknown("the session's thread has ended".to_owned())),
        }
    })
}

type ChildrenAnswer = Result<(Vec<String>, Option<Stat>), Failure>;

/// Gives the answer of a listing to its callers, and sends the next listing if callers wait for one.
async fn answer_callers(
    session: Arc<dyn Session>,
    directory: Arc<str>,
    mut reply: Reply<(Vec<String>, Option<Stat>)>,
    mut callers: ListingSender,
) {
    loop {
        let answer = run_until(session.sleep(session.timeout()), &mut reply).await;
        let is_large = answer.as_ref().is_some_and(|it| it.as_ref().is_ok_and(|(names, _)| names.len() > MANY));
        let next = session.store().end_listing(&directory, is_large);
        let send = move |answer: ChildrenAnswer| {
            callers.send_replace(Some(answer.map(|(names, directory)| Arc::new(Children { names, directory }))));
        };
        match answer {
            Some(answer) => send(answer),
            // No answer has come within the session timeout, and perhaps none will ever come. A separate task waits for
            // the answer from now on. The next listing is sent now if callers wait for it.
            None => session.spawn(Box::pin(async move { send(reply.await) })),
        }
        let Some(waiting) = next else { return };
        (reply, callers) = (session.children_and_stat(&directory), waiting);
    }
}

/// Lists the children of a directory after a sync. The answer shows every write that was committed before this call,
/// through any server. The listing is sent once the session is connected.
///
/// After a reconnect, thousands of callers may look for the nodes of creates whose answers were lost. One listing
/// serves every caller that called before it was sent, and one sync serves the listings of many directories.
pub(crate) fn list_synced(session: &Arc<dyn Session>, directory: &Arc<str>) -> Reply<Listing> {
    let (answer, is_first) = session.store().join_synced_listing(directory);
    if is_first {
        let on = Arc::clone(session);
        let forget_all = move || {
            // These senders are dropped after the mutex is released, because dropping them calls the wakers of the
            // callers.
            let _unlocked = on.store().record.lock().synced_listings.take();
        };
        // Nothing is sent before the task runs, so that callers who come together share the sync.
        session.spawn(Box::pin(retry::with_panic_handler(send_synced_listings(Arc::clone(session)), forget_all)));
    }
    shared_reply(answer)
}

async fn send_synced_listings(session: Arc<dyn Session>) {
    loop {
        // The result is ignored, because if the session is over, the requests below fail with the reason.
        let _over = session.store().until_connected().await;
        let Some(mut some) = session.store().take_synced_listings() else { return };
        some.retain(|(_, callers)| callers.receiver_count() > 0);
        let Some((first, _)) = some.first() else { continue };
        let (connection, synced) = (session.store().connection_number(), session.sync(first));
        let listings = some.into_iter().map(|(directory, callers)| (session.children(&directory), callers));
        let (listings, on): (Vec<_>, _) = (listings.collect(), Arc::clone(&session));
        let mut answers = Box::pin(async move {
            let synced = &synced.await;
            // If the connection has changed since the sync, a listing may come from a server that lags behind.
            let is_same = || on.store().connection_number() == connection;
            let lost = || Failure::Unknown("the connection broke before the answer".to_owned());
            let answer = async |listing: Reply<Vec<String>>| {
                synced.clone()?;
                let names = listing.await?;
                is_same().then(|| Arc::new(Children { names, directory: None })).ok_or_else(lost)
            };
            let answers =
                listings.into_iter().map(async |(listing, callers)| callers.send_replace(Some(answer(listing).await)));
            join_all(answers).await
        });
        if run_until(session.sleep(session.timeout()), &mut answers).await.is_none() {
            // Some of these listings may never be answered. A separate task waits for their answers, so that the next
            // listings are sent now.
            session.spawn(Box::pin(async move { drop(answers.await) }));
        }
    }
}

#[cfg(test)]
mod tests;
