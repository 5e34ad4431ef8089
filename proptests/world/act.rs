//! Carries out the steps of a schedule. Each step is that of an actor, a simulated user of one handle.

use std::future::IntoFuture;
use std::task::Poll;
use std::time::Duration;

use support::copy::Copied;
use support::wired::Wired;
use tokio_test::task;
use zk_rwlock::coordinator::Operation;
use zk_rwlock::hold::NodeData;
use zk_rwlock::{Acquire, Call, Error, Guard, Mode, RwLock, Semaphore, Shared};

use crate::world::actor::{Actor, Claimed, Held};
use crate::world::plan::{Action, CLIENTS, LONG, Part, WHILE};
use crate::world::{RECORD, World, open};

impl World {
    pub(super) async fn act(&mut self, i: usize, action: Action) {
        if may_put_out(action) {
            self.forget_queue();
        }
        if let Action::Drop | Action::Release | Action::Unshare = action {
            // The listener reads the changes of the actor's hold, which ends with the guard.
            self.listeners[i] = None;
        }
        match action {
            Action::Read | Action::Write | Action::ReadBriefly | Action::WriteBriefly => self.ask(i, action),
            Action::TryRead | Action::TryWrite | Action::Update => self.ask(i, action),
            Action::Acquire(_) | Action::AcquireBriefly(_) | Action::TryAcquire(_) => self.ask(i, action),
            Action::SetPermits(number) => {
                // The call is polled once and dropped. If the client is cut off, the ensemble may carry out the change
                // later or never.
                self.ledger.may_have(number);
                let limit = &self.handles[self.handle_of[i]].limit;
                let _now_or_later = task::spawn(limit.set_permits(number).into_future()).poll();
            }
            Action::Commit => self.commit(i),
            Action::Look => self.look(i),
            Action::Latest => self.look_at_copy(i),
            Action::Drop => {
                self.ledger.gives_up(&self.actors[i]);
                self.actors[i] = Actor::Idle;
            }
            Action::Release | Action::Downgrade | Action::Share | Action::Unshare => self.change_hold(i, action),
            Action::Run => {
                self.poll(i).await;
            }
            Action::Sleep => self.is_asleep[i] = true,
            Action::Awake => self.is_asleep[i] = false,
            Action::Reopen => {
                self.ledger.opens_anew();
                let handle = self.handle_of[i];
                let plan = self.handles[handle].plan.clone();
                self.handles[handle] = open(&plan, &self.clients[plan.client], self.permits);
            }
            Action::Restore => self.restore().await,
            Action::Wait => {
                self.note_idle().await;
                tokio::time::advance(WHILE).await;
                self.check_idle();
            }
            _ => self.disturb(self.client_of(i), i, action).await,
        }
    }

    /// Begins an acquisition, if the actor is idle.
    fn ask(&mut self, i: usize, action: Action) {
        let behind = self.in_queue();
        let (actor, handle) = (&mut self.actors[i], &self.handles[self.handle_of[i]]);
        if !matches!(actor, Actor::Idle) {
            return;
        }
        let next = match action {
            Action::Acquire(count) | Action::AcquireBriefly(count) | Action::TryAcquire(count) => {
                permit_of(&handle.limit, count, action)
            }
            _ => match &handle.value {
                Some(value) => value_of(value, action).or_else(|| {
                    let (begun, update) = (self.commits.begin(), value.update(|number| *number += 1));
                    Some(Actor::begin(Some(Claimed::Lock(Mode::Write)), async move {
                        let answer = update.await;
                        begun.ends(&answer);
                        answer.map(|_| Held::Nothing)
                    }))
                }),
                None => lock_of(&handle.lock, action),
            },
        };
        if let Some(mut next) = next {
            if let Actor::Busy(work) = &mut next {
                (work.behind, work.age) = (behind, self.ledger.age);
            }
            *actor = next;
        }
    }

    /// Begins a write under the lock that the actor holds.
    fn commit(&mut self, i: usize) {
        let actor = &mut self.actors[i];
        match actor {
            Actor::Holding(Held::ValueWriter(_)) => {
                let Actor::Holding(Held::ValueWriter(mut guard)) = std::mem::replace(actor, Actor::Idle) else {
                    return;
                };
                let begun = self.commits.begin();
                *actor = Actor::go_on(async move {
                    let before = **guard;
                    **guard = before + 1;
                    let answer = guard.commit().await;
                    if matches!(&answer, Err(error) if !matches!(error, Error::OutcomeUnknown { .. })) {
                        **guard = before;
                    }
                    begun.ends(&answer);
                    Ok(Held::ValueWriter(guard))
                });
            }
            // The commit is polled once and dropped. The ensemble carries it out or refuses it as a whole.
            Actor::Holding(Held::Writer(guard)) => {
                let write = guard.transaction().set(RECORD, guard.fencing_token().to_string());
                let _now_or_later = task::spawn(write.commit()).poll();
            }
            Actor::Holding(Held::Permit(permit)) => {
                let _now_or_later = task::spawn(permit.transaction().commit()).poll();
            }
            _ => {}
        }
    }

    /// Reads the node [`RECORD`] under the lock. Checks the token in the node if the first poll returns the reply.
    fn look(&mut self, i: usize) {
        let read: Poll<Result<Option<NodeData>, Error>> = match &self.actors[i] {
            Actor::Holding(Held::Reader(guards)) => task::spawn(guards[0].read_node(RECORD)).poll(),
            Actor::Holding(Held::Writer(guard)) => task::spawn(guard.read_node(RECORD)).poll(),
            _ => return,
        };
        if let Poll::Ready(Ok(Some(node))) = read {
            self.ledger.read(i, &node.data);
        }
    }

    fn look_at_copy(&mut self, i: usize) {
        let handle = self.handle_of[i];
        // Skips the read while there is no session. The copy would otherwise start on a thread of the library, and that
        // thread uses real time instead of the test's virtual time.
        if self.cut[self.client_of(i)] {
            return;
        }
        if let Some(copy) = self.handles[handle].value.as_ref().and_then(Copied::latest) {
            self.ledger.saw_copy(handle, **copy);
        }
    }

    fn change_hold(&mut self, i: usize, action: Action) {
        let actor = &mut self.actors[i];
        if let (Action::Share, Actor::Holding(Held::Reader(guards))) = (action, &mut *actor) {
            let shared = guards[0].share();
            guards.push(shared);
            return;
        }
        if let (Action::Unshare, Actor::Holding(Held::Reader(guards))) = (action, &mut *actor) {
            if guards.len() > 1 {
                drop(guards.remove(0));
            }
            return;
        }
        let next = match (action, std::mem::replace(actor, Actor::Idle)) {
            (Action::Release, Actor::Holding(held)) => {
                held.release();
                Actor::Idle
            }
            (Action::Downgrade, Actor::Holding(Held::Writer(guard))) => {
                Actor::go_on(async move { Ok(Held::Reader(vec![guard.downgrade().await?])) })
            }
            (Action::Downgrade, Actor::Holding(Held::ValueWriter(guard))) => {
                Actor::go_on(async move { Ok(Held::ValueReader(Box::new(guard.downgrade().await?))) })
            }
            (_, other) => other,
        };
        self.actors[i] = next;
    }

    async fn disturb(&mut self, client: usize, i: usize, action: Action) {
        let wired = &self.clients[client];
        let memory = &wired.memory;
        // A holder that cannot learn of its loss may say "held" after the next contender was granted the lock, and no
        // client can prevent that. So the actions that delete nodes do nothing while some client cannot be notified.
        let is_held_up = self.is_held_up() || self.clients.iter().any(Wired::has_requests);
        // These actions do nothing either while a contender was woken but not polled. It may still take an old reply for
        // its grant, and does not watch its own node until it is polled.
        let is_late = |actor: &Actor| matches!(actor, Actor::Busy(work) if work.is_woken());
        let are_late = self.actors.iter().any(is_late);
        let all_hear = !self.are_unheard && !self.lagging.contains(&true) && !is_held_up && !are_late;
        match action {
            Action::Stall => wired.stall(),
            Action::Flow => wired.flow(),
            Action::CarryOut => wired.carry_out(),
            Action::Deliver => {
                wired.deliver();
            }
            Action::Cut(carried_out) => {
                wired.cut(carried_out);
                self.lost_messages += 1;
                (self.cut[client], self.hushed[client]) = (true, false);
            }
            Action::Heal => {
                memory.faults().heal();
                self.cut[client] = false;
            }
            Action::Expire => {
                if self.cut[client] {
                    // Lets the session timeout pass first, because the ensemble expires a session only then. The
                    // session's lease ends earlier.
                    tokio::time::advance(LONG).await;
                }
                memory.faults().expire();
                self.hushed[client] = false;
            }
            Action::LoseReply => {
                memory.faults().lose_next_reply();
                self.lost_messages += 1;
            }
            Action::LoseRequest => {
                memory.faults().lose_next_request();
                self.lost_messages += 1;
            }
            Action::Lag => {
                memory.faults().lag();
                self.lagging[client] = true;
            }
            Action::CatchUp => {
                memory.faults().catch_up();
                (self.lagging[client], self.hushed[client]) = (false, false);
            }
            Action::Hush => {
                memory.faults().silence();
                self.hushed[client] |= !self.cut[client];
            }
            Action::Forge(part) => {
                if let Some(path) = self.node_in(part, i) {
                    let set = Operation::Set { path, data: Vec::new(), version: None };
                    self.observer.transact(&[set]).await.expect("the node exists");
                }
            }
            Action::Forget => {
                memory.faults().forget_watches();
                self.are_unheard = true;
            }
            // A server that lags is not frozen. It may lack a contender's node, and a frozen server would never show that
            // node. Another contender could then be granted the lock although the first one holds it.
            Action::Freeze(part) if !self.lagging[client] => {
                if let Some(node) = self.node_in(part, i) {
                    memory.faults().freeze(node);
                    self.are_unheard = true;
                }
            }
            Action::Reap => memory.faults().reap_containers(),
            Action::Remove(part) if all_hear => {
                if let Some(node) = self.node_in(part, i) {
                    memory.faults().remove(node);
                }
            }
            Action::Clear(part) if all_hear => memory.faults().remove(World::directory(part)),
            Action::BackUp => self.backup = Some((memory.faults().back_up(), self.left())),
            _ => {}
        }
    }

    fn node_in(&self, part: Part, i: usize) -> Option<String> {
        let directory = World::directory(part);
        let mut children = self.children(directory);
        // Sorts by sequence number and not by name, because the names begin with a random id. In this order, a schedule
        // selects the same node in every run.
        children.sort_by_key(|name| name.rsplit(|c: char| !c.is_ascii_digit()).next().map(str::to_owned));
        children.get(i % children.len().max(1)).map(|child| format!("{directory}/{child}"))
    }

    /// Restores the backup of the ensemble. All sessions end, because restored servers refuse a client that has seen a
    /// newer zxid.
    async fn restore(&mut self) {
        let Some((backup, contenders)) = self.backup.take() else { return };
        for client in &self.clients {
            client.cut(0);
        }
        tokio::time::advance(LONG).await;
        self.clients[0].memory.faults().restore(&backup);
        self.observer = World::observe(&self.outsider).await;
        // All holds are lost now. Every actor that holds the lock or permits drops its guard.
        self.check_all_lost();
        for actor in &mut self.actors {
            let holds = match actor {
                Actor::Holding(_) => true,
                Actor::Busy(work) => work.holds(),
                Actor::Idle => false,
            };
            if holds {
                *actor = Actor::Idle;
            }
        }
        self.listeners.iter_mut().for_each(|listener| *listener = None);
        (self.cut, self.lagging, self.hushed) = (vec![false; CLIENTS], vec![false; CLIENTS], vec![false; CLIENTS]);
        self.ghosts = contenders;
        self.commits.forget();
        self.ledger.forget();
        self.begin_anew().await;
    }
}

/// Returns whether this action may remove a node from a queue, or end an acquisition.
fn may_put_out(action: Action) -> bool {
    use Action::*;
    matches!(
        action,
        Remove(_)
            | Clear(_)
            | Reap
            | Expire
            | Restore
            | Wait
            | Cut(_)
            | Stall
            | LoseReply
            | LoseRequest
            | Lag
            | Hush
            | Forge(_)
    )
}

fn lock_of(lock: &RwLock, action: Action) -> Option<Actor> {
    let reading = Kind {
        mode: Mode::Read,
        acquire: lock.read(),
        attempt: lock.try_read(),
        held: |guard| Held::Reader(vec![guard]),
    };
    let writing = Kind {
        mode: Mode::Write,
        acquire: lock.write(),
        attempt: lock.try_write(),
        held: |guard| Held::Writer(Box::new(guard)),
    };
    begun(action, reading, writing)
}

fn value_of(value: &Shared<u64>, action: Action) -> Option<Actor> {
    let reading = Kind {
        mode: Mode::Read,
        acquire: value.read(),
        attempt: value.try_read(),
        held: |guard| Held::ValueReader(Box::new(guard)),
    };
    let writing = Kind {
        mode: Mode::Write,
        acquire: value.write(),
        attempt: value.try_write(),
        held: |guard| Held::ValueWriter(Box::new(guard)),
    };
    begun(action, reading, writing)
}

/// The calls that acquire one kind of guard: `acquire` waits, and `attempt` does not. Neither sends a request before
/// its first poll.
struct Kind<G: Guard> {
    mode: Mode,
    acquire: Acquire<G>,
    attempt: Call<G>,
    held: fn(G) -> Held,
}

fn begun<R: Guard, W: Guard>(action: Action, reading: Kind<R>, writing: Kind<W>) -> Option<Actor> {
    Some(match action {
        Action::Read => reading.begin(None),
        Action::ReadBriefly => reading.begin(Some(WHILE)),
        Action::TryRead => reading.attempt(),
        Action::Write => writing.begin(None),
        Action::WriteBriefly => writing.begin(Some(WHILE)),
        Action::TryWrite => writing.attempt(),
        _ => return None,
    })
}

impl<G: Guard> Kind<G> {
    fn begin(self, timeout: Option<Duration>) -> Actor {
        let acquire = match timeout {
            Some(timeout) => self.acquire.timeout(timeout),
            None => self.acquire,
        };
        let granting = acquire.into_future();
        Actor::begin(Some(Claimed::Lock(self.mode)), async move { granting.await.map(self.held) })
    }

    fn attempt(self) -> Actor {
        Actor::begin(None, async move { self.attempt.await.map(self.held) })
    }
}

fn permit_of(limit: &Semaphore, count: u32, action: Action) -> Option<Actor> {
    let permit = |permit| Held::Permit(Box::new(permit));
    let (acquire, wish) = (limit.acquire_many(count), Some(Claimed::Permits(count)));
    Some(match action {
        Action::Acquire(_) => Actor::begin(wish, async move { acquire.await.map(permit) }),
        Action::AcquireBriefly(_) => Actor::begin(wish, async move { acquire.timeout(WHILE).await.map(permit) }),
        _ => {
            let acquire = limit.try_acquire_many(count);
            Actor::begin(None, async move { acquire.await.map(permit) })
        }
    })
}
