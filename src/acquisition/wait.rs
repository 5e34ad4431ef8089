//! How an acquisition that has its place waits for its turn; sends what its decisions ask for.

use std::sync::Arc;

use crate::acquisition::grant::Grant;
use crate::acquisition::report::{Waiting, Waits};
use crate::acquisition::request::Acquisition;
use crate::error::error::Error;
use crate::hold::guard::Held;
use crate::queue::contender::Contender;
use crate::queue::local::Ground;
use crate::queue::mode::Mode;
use crate::queue::turn::{self, Turn};
use crate::session::books::{Ahead, Found};
use crate::session::keep_alive;
use crate::session::listing::Names;
use crate::session::loss::Loss;
use crate::session::request::{Event, Failure, Watch};
use crate::session::retry;
use crate::snapshot::progress::{OnWait, Progress};
use crate::snapshot::read;
use crate::telemetry::meter;
use crate::ticket::deadlock::{Deadlock, OwnHold};

/// What to do when the contender in the way would have to be waited for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Patience {
    Wait,
    GiveUp,
}

/// What an acquisition that has its place keeps until its turn has come.
pub(crate) struct Wait<'a> {
    pub(crate) patience: Patience,
    /// Is told who is in the way.
    pub(crate) waiting: Option<&'a Arc<Waiting>>,
    pub(crate) on_wait: Option<Box<OnWait>>,
    /// What was to be seen when it came, if it has asked.
    pub(crate) look: Option<Result<Names, Failure>>,
    /// The last writer that vanished, and may have held.
    pub(crate) vanished: Option<Vanished>,
    pub(crate) has_waited: bool,
}

impl Wait<'_> {
    /// Whether there is nobody to be told what only a look at the queue shows.
    pub(crate) fn needs_no_look(&self) -> bool {
        self.patience == Patience::Wait && self.waiting.is_none() && self.on_wait.is_none()
    }
}

pub(crate) struct Vanished {
    writer: Contender,
    /// Its session, if that is known.
    owner: Option<i64>,
}

/// What became of the predecessor.
pub(crate) enum Departure {
    /// This happened to its node, which this session owned.
    Seen(Event, Option<i64>),
    /// It let us in, or its node had gone before it could be watched.
    Unseen,
}

/// What a waiter watches beside its own node.
pub(crate) enum Vigil {
    /// The predecessor's node.
    Predecessor(Watch),
    /// Nothing: the book of the session tells of the predecessor.
    Book,
    /// The predecessor's node had gone already.
    Gone,
}

impl Acquisition {
    /// Look, wait, and look again, until it is our turn.
    ///
    /// What is alive here while it waits is kept for each of the thousands who may wait; so nothing else is done here.
    pub(crate) async fn wait_for_turn(&self, held: &Held, wait: &mut Wait<'_>) -> Result<Grant, Error> {
        let session = held.place().session();
        let hands_off = self.handle.dialect.hands_off();
        let may_skip = hands_off && wait.needs_no_look() && !self.may_deadlock(held);
        // Whom it waits for, or has waited for last.
        let mut ahead: Option<Ahead> = None;
        loop {
            ahead = match self.known(held, wait.has_waited, ahead.as_ref()) {
                Found::Granted(ground) => {
                    return Ok(Grant { ground, kind: if wait.has_waited { "pass" } else { "next" } });
                }
                Found::Behind(ahead) if may_skip && wait.look.is_none() => Some(ahead),
                _ => Box::pin(self.look_from(held, wait)).await?,
            };
            let Some(nearest) = &mut ahead else {
                return Ok(Grant { ground: Ground::Sure, kind: if wait.has_waited { "look" } else { "at once" } });
            };
            wait.has_waited = true;
            held.place().book().waits(held.standing(), nearest);
            // How the predecessor goes is only to be seen by its node, and that is also what `on_wait` reports.
            nearest.is_local &= may_skip && self.handle.lock_delay.is_zero();
            let departure = match &mut wait.on_wait {
                None => self.departure(held, nearest).await?,
                Some(on_wait) => Box::pin(self.departure_watched(held, nearest, on_wait)).await?,
            };
            let owner = match departure {
                Departure::Seen(_, owner) => owner,
                Departure::Unseen => None,
            };
            // A writer that vanished while its predecessor was still there has only waited. It may have held if both are of
            // one session, because the earlier one lets the later one in before its own node is gone.
            wait.vanished.take_if(|it| owner.is_some() && it.owner.is_some() && it.owner != owner);
            match departure {
                // Only a writer that held says so when it goes; then nothing before us is left. Elsewhere anybody may have
                // written, for any reason.
                Departure::Seen(Event::Changed, _) if nearest.mode == Mode::Write && hands_off => {
                    if wait.vanished.is_some() {
                        self.delay(held).await?;
                    }
                    let signal = session.lease().roll().hand_off(&nearest.path);
                    return Ok(Grant { ground: Ground::HandOff(signal), kind: "hand-off" });
                }
                Departure::Seen(..) | Departure::Unseen => {}
            }
            if nearest.mode == Mode::Write {
                let name = nearest.path.rsplit('/').next().unwrap_or_default();
                let writer = Contender::parse_as(name, self.handle.dialect);
                wait.vanished = writer.map(|writer| Vanished { writer, owner });
            }
        }
    }

    /// Looks at the queue from our place in it, and tells whoever asked: the nearest one before us that excludes us, if there is one.
    pub(crate) async fn look_from(&self, held: &Held, wait: &mut Wait<'_>) -> Result<Option<Ahead>, Error> {
        let (place, me) = (held.place(), held.contender());
        let session = place.session();
        let names = match wait.look.take() {
            // The answer was lost: ask again.
            None | Some(Err(Failure::Unknown(_))) => retry::settled(session, || place.list()).await,
            Some(names) => names,
        };
        let names = names.map_err(|failure| self.stop(failure))?;
        place.remove_strays(&names);
        if !wait.has_waited {
            meter::entered(self.mode, names.len().saturating_sub(1));
        }
        // A writer that became a reader is still there, and lets go as readers do.
        wait.vanished.take_if(|Vanished { writer, .. }| {
            let reader = writer.downgraded();
            names.iter().any(|name| *name == reader || name == writer.name())
        });
        let (turn, stranger) = turn::turn_among_strangers(me, &names);
        if let Some(stranger) = stranger.filter(|_| turn != Turn::Evicted) {
            return Err(self.handle.doubt(stranger));
        }
        let nearest = match turn {
            Turn::Granted => {
                if wait.vanished.is_some() {
                    self.delay(held).await?;
                }
                return Ok(None);
            }
            Turn::Evicted => return Err(Error::Evicted(held.loss().unwrap_or(Loss::Removed))),
            Turn::Behind(nearest) => nearest,
        };
        if wait.patience == Patience::GiveUp {
            let blockers = read::blockers(session, &self.handle.path, &names, me).await;
            return Err(Error::WouldBlock { blockers });
        }
        if !wait.has_waited {
            self.check_for_deadlock(held, &names, &nearest)?;
        }
        if let Some(on_wait) = &mut wait.on_wait {
            on_wait.tell(session, me.dialect(), Progress::by_name(&self.handle.path, &names, me)).await;
        }
        if let Some(waiting) = wait.waiting {
            let seen = Progress::by_name(&self.handle.path, &names, me);
            let mut waiting = waiting.waits();
            let looks = waiting.as_ref().map_or(1, |waits| waits.looks + 1);
            *waiting = Some(Waits { session: Arc::clone(session), me: me.clone(), seen, looks });
        }
        let path = place.child(nearest.name());
        Ok(Some(match place.book().find(held.standing()) {
            Found::Behind(ahead) if *ahead.path == *path => ahead,
            _ => Ahead { path: path.into(), mode: nearest.mode(), is_local: false },
        }))
    }

    /// Where we stand, as far as that is known without a look, and `watched`, whose node has told something, does not make
    /// a look necessary.
    pub(crate) fn known(&self, held: &Held, has_waited: bool, watched: Option<&Ahead>) -> Found {
        let place = held.place();
        // A listing shows whether there is a second node of ours, which has to go.
        if place.is_unsure() {
            return Found::Nothing;
        }
        match place.book().find(held.standing()) {
            // Where contenders of other libraries may come, which go by another rule, a waiter looks for them.
            Found::Granted(_) if has_waited && !self.handle.dialect.hands_off() => Found::Nothing,
            // The book does not know yet that it has gone.
            Found::Behind(ahead) if watched.is_some_and(|it| !it.is_local && it.path == ahead.path) => Found::Nothing,
            found => found,
        }
    }

    /// Lets pass what a writer that vanished may have sent.
    pub(crate) async fn delay(&self, held: &Held) -> Result<(), Error> {
        let delay = self.handle.lock_delay;
        if delay.is_zero() {
            return Ok(());
        }
        tokio::select! {
            () = held.place().session().sleep(delay) => Ok(()),
            loss = held.lost() => Err(Error::Evicted(loss)),
        }
    }

    /// Watches our own node, and that of the predecessor. Both requests are on their way before either is answered.
    ///
    /// Events come in the order of the changes. Our own watch is armed first, so if our node is removed before the
    /// predecessor lets us in, we hear of that first.
    pub(crate) async fn keep_vigil(&self, held: &Held, ahead: &Ahead) -> Result<Vigil, Error> {
        let (session, tenure) = (held.place().session(), held.tenure());
        let mut needs_watch = !ahead.is_local;
        let mut tries = 0;
        loop {
            let own = tenure.ask_to_watch(session);
            let watch = needs_watch.then(|| session.watch(&ahead.path));
            // Answered last, so waiting for it first wakes the task once, and not twice.
            let watch = match watch {
                Some(watch) => Some(watch.await),
                None => None,
            };
            let own = match own {
                Some(asked) => tenure.watched(asked).await,
                None => Ok(()),
            };
            let failure = match (own, watch) {
                (Err(failure @ (Failure::Unknown(_) | Failure::Over(_))), _) => failure,
                // It does not hear of its own node, and so perhaps not of the predecessor's either.
                (Err(failure), None) => {
                    keep_alive::cannot_watch(tenure, &failure);
                    needs_watch = true;
                    continue;
                }
                (Ok(()), None) => return Ok(Vigil::Book),
                (own, Some(watch)) => {
                    if let Err(failure) = own {
                        keep_alive::cannot_watch(tenure, &failure);
                    }
                    match watch {
                        Ok(watch) => return Ok(Vigil::Predecessor(watch)),
                        Err(Failure::NoNode) => return Ok(Vigil::Gone),
                        Err(failure) => failure,
                    }
                }
            };
            match failure {
                Failure::Unknown(_) if tries < retry::UNKNOWN_TRIES => {
                    retry::before_next_try(session, &mut tries).await.map_err(|failure| self.stop(failure))?;
                }
                failure => return Err(self.stop(failure)),
            }
        }
    }

    /// Waits until the predecessor has let us in, or something happened to its node.
    pub(crate) async fn departure(&self, held: &Held, ahead: &Ahead) -> Result<Departure, Error> {
        let (session, tenure) = (held.place().session(), held.tenure());
        let mut watch = match Box::pin(self.keep_vigil(held, ahead)).await? {
            Vigil::Predecessor(watch) => watch,
            Vigil::Gone => return Ok(Departure::Unseen),
            Vigil::Book => {
                tenure.called(session).await.map_err(|loss| self.evicted(loss))?;
                return Ok(Departure::Unseen);
            }
        };
        let owner = watch.owner();
        loop {
            tokio::select! {
                biased;
                called = tenure.called(session) => {
                    called.map_err(|loss| self.evicted(loss))?;
                    if matches!(self.known(held, true, None), Found::Granted(_)) {
                        // The watch's event is on the way. To take it back would cost a request.
                        session.spawn(Box::pin(async move {
                            let _gone = watch.await;
                        }));
                        return Ok(Departure::Unseen);
                    }
                }
                event = &mut watch => return Ok(Departure::Seen(event, owner)),
            }
        }
    }

    /// As [`Self::departure`], and tells meanwhile what changes.
    pub(crate) async fn departure_watched(
        &self,
        held: &Held,
        ahead: &Ahead,
        on_wait: &mut OnWait,
    ) -> Result<Departure, Error> {
        tokio::select! {
            biased;
            departure = self.departure(held, ahead) => departure,
            () = on_wait.keep_looking(held.place().session(), &self.handle.path, held.contender()) => {
                Ok(Departure::Unseen)
            }
        }
    }

    /// Whether it may be going to wait for a hold of its own: then it looks who is before it.
    pub(crate) fn may_deadlock(&self, held: &Held) -> bool {
        let holds = held.place().session().lease().holds();
        match self.handle.deadlock {
            Deadlock::Ignore => false,
            Deadlock::Warn | Deadlock::Refuse => holds.has_one_of(&self.handle.path, self.asker()),
            Deadlock::RefuseInProcess => holds.has_one(&self.handle.path),
        }
    }

    /// Says so, or fails, if what it is going to wait for is its own.
    pub(crate) fn check_for_deadlock(&self, held: &Held, queue: &[String], nearest: &Contender) -> Result<(), Error> {
        let deadlock = self.handle.deadlock;
        if deadlock == Deadlock::Ignore {
            return Ok(());
        }
        let holds = held.place().session().lease().holds();
        let Some(own) = holds.waited_for(&self.handle.path, queue, nearest.sequence(), self.asker()) else {
            return Ok(());
        };
        let OwnHold { node: holder, is_of_the_same: same_task } = own;
        match deadlock {
            Deadlock::Refuse if same_task => return Err(Error::WouldDeadlock { holder, same_task }),
            Deadlock::RefuseInProcess => return Err(Error::WouldDeadlock { holder, same_task }),
            Deadlock::Warn if same_task => {
                let (path, label) = (&*self.handle.path, self.label());
                tracing::warn!(path, mode = %self.mode, label, holder, "a task waits for a lock that it was granted itself");
            }
            _ => {}
        }
        Ok(())
    }
}
