//! Which contenders are in the way of an acquisition, for errors and warnings; decides nothing.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tracing::Instrument;

use crate::acquisition::limit::Wanted;
use crate::acquisition::options::Options;
use crate::acquisition::request::Acquisition;
use crate::acquisition::waiting::{Waiting, Waits};
use crate::call;
use crate::hold::hold::Hold;
use crate::hold::trace::Holding;
use crate::queue::contender::Contender;
use crate::queue::member::Blockers;
use crate::queue::turn::{self, Turn};
use crate::session::contract::Session;

/// How long before its timeout an acquisition looks up which contenders are in its way, at most.
pub(crate) const LOOK_UP_AHEAD: Duration = Duration::from_millis(200);

impl Acquisition {
    pub(crate) fn warn(&self, limit: Duration, blockers: &Blockers) {
        let (path, label) = (&**self.handle.shown(), self.label());
        tracing::warn!(path, mode = %self.aim(), label, waited = ?limit, %blockers, "it takes long to acquire a lock");
    }

    /// Lets a background task of the session warn if the acquisition takes long. An acquisition that is not polled
    /// cannot warn by itself. Once its turn has come, it blocks all contenders behind it.
    pub(crate) fn warn_in_background(&self, held: &Hold, waiting: &Arc<Waiting>) {
        let Some(limit) = self.handle.warn_waiting.filter(|_| waiting.takes_warning_on()) else {
            return;
        };
        let options = Options { label: self.options.label.clone(), ..Options::default() };
        let mut acquisition = Acquisition::new(Arc::clone(&self.handle), self.mode, options);
        acquisition.wanted = self.wanted.as_ref().map(|wanted| Box::new(Wanted::new(wanted.count)));
        let (session, own_node, me) =
            (Arc::clone(held.ticket().session()), Arc::clone(held.own_node()), held.contender().clone());
        let (left, its_own) = (limit.saturating_sub(waiting.began.elapsed()), Arc::downgrade(waiting));
        let warning = async move {
            if own_node.is_holding() {
                return;
            }
            let found = acquisition.turn_and_blockers(&session, &me).await;
            let is_its_turn = matches!(found, Some((Turn::Granted, _)))
                && matches!(acquisition.is_room(&session).await, Ok(Some(true)));
            // While cut off, the last listing is the best answer.
            let seen = || its_own.upgrade().map(|waiting| waiting.seen_in_the_way()).unwrap_or_default();
            let blockers = found.map_or_else(seen, |(_, blockers)| blockers);
            if is_its_turn {
                session.sleep(LOOK_UP_AHEAD).await;
            }
            if is_its_turn && !own_node.is_holding() {
                let (path, node, label) = (&**acquisition.handle.shown(), me.name(), acquisition.label());
                tracing::warn!(
                    path,
                    mode = %acquisition.aim(),
                    label,
                    node,
                    waited = ?limit,
                    "the turn of an acquisition has come, and its future is not polled: all behind it wait"
                );
            } else {
                acquisition.warn(limit, &blockers);
            }
        };
        let warning = watchdog(held.ticket().session(), left, warning.instrument(self.trace.span()));
        *waiting.background.lock() = Some(warning);
    }

    /// What is told of a hold, or of one use of a kept one, until it ends.
    pub(crate) fn holding(&self, hold: &Hold) -> Holding {
        let (path, position) = (self.handle.shown(), hold.position());
        let mut holding = self.trace.granted(self.aim(), path, self.label(), position);
        if let Some(limit) = self.handle.warn_holding {
            let (own_node, session) = hold.node_and_session();
            let (path, label, token) = (Arc::clone(path), self.options.label.clone(), position.czxid);
            let watched = Arc::clone(&session);
            let warning = async move {
                if own_node.loss(watched.lease()).is_none() {
                    let node = own_node.path();
                    tracing::warn!(path = &*path, node, label, token, held = ?limit, "a lock is held for long");
                }
            };
            holding.warned_of(watchdog(&session, limit, warning));
        }
        holding
    }

    /// Whether it is our turn, and the contenders in the way. `None` if that cannot be read soon.
    pub(crate) async fn turn_and_blockers(
        &self,
        session: &Arc<dyn Session>,
        me: &Contender,
    ) -> Option<(Turn, Blockers)> {
        let look = async {
            let names = session.children(&self.handle.path).await.ok()?;
            let blockers = self.handle.site.blockers(session, &names, me).await;
            Some((turn::turn(me, &names), blockers))
        };
        call::unless(session.sleep(LOOK_UP_AHEAD), look).await.flatten()
    }

    /// The contenders in the way of a waiter, as far as that can be read now.
    pub(crate) async fn in_the_way(&self, waiting: &Waiting) -> Blockers {
        let waits = waiting.waits().clone();
        let Some(Waits { session, me, seen, .. }) = waits else {
            return Blockers::default();
        };
        match session.children(&self.handle.path).await {
            Ok(names) => self.handle.site.blockers(&session, &names, &me).await,
            Err(_) => seen.blockers,
        }
    }
}

/// Lets a background task of the session warn after so long. Dropping what this returns calls the warning off.
fn watchdog(
    session: &Arc<dyn Session>,
    after: Duration,
    warning: impl Future<Output = ()> + Send + 'static,
) -> oneshot::Sender<()> {
    let (end, ended) = oneshot::channel();
    let watching = Arc::clone(session);
    session.spawn(Box::pin(async move {
        let warned = async {
            watching.sleep(after).await;
            warning.await;
        };
        tokio::select! {
            biased;
            _ = ended => {}
            () = warned => {}
        }
    }));
    end
}
