//! Tests with candidates on many threads that lead, step down, are stopped and lose their sessions at any moment.

use std::sync::Arc;

use shuttle::future::{block_on, yield_now};
use shuttle::sync::atomic::{AtomicUsize, Ordering};
use shuttle::thread;
use zk_rwlock::leadership::Term;
use zk_rwlock::{Error, Leadership};

use crate::explore::explore;
use crate::locks::{cut_short, troubles};
use crate::witness::{Says, Witness};
use crate::world::{Client, World, draw, let_others_run, spawn};

const PATH: &str = "/leader";

impl Says for Term {
    fn weight(&self, whole: usize) -> usize {
        whole
    }

    fn says_held(&self) -> bool {
        self.is_leader()
    }
}

fn candidate(client: &Client) -> Leadership {
    Leadership::builder(client, PATH).lock(|lock| lock.host("h")).build().expect("a candidate")
}

/// Leads `times` times, for a few steps each time. The witness keeps every term, also after its end, and asks each one
/// whether it is held.
async fn leads(candidate: &Leadership, witness: &Witness, times: usize) -> Result<(), Error> {
    for _ in 0..times {
        let work = |term: Term| async {
            witness.stays(term);
            for _ in 0..draw(4) {
                yield_now().await;
            }
        };
        match draw(4) {
            0 => drop(cut_short(draw(12), candidate.lead(work)).await.transpose()?),
            _ => drop(candidate.lead(work).await?),
        }
    }
    Ok(())
}

fn candidates_lead(has_losses: bool) {
    let (world, witness) = (World::new(), Witness::of_lock());
    let clients = [world.client(), world.client()];
    let candidates = [0, 0, 1].map(|of| candidate(&clients[of]));
    let workers = candidates.clone().map(|candidate| {
        let witness = Arc::clone(&witness);
        spawn(move || {
            let_others_run(32);
            let answer = block_on(leads(&candidate, &witness, 2));
            assert!(has_losses || answer.is_ok(), "{answer:?}");
        })
    });
    let other = candidates[draw(3)].clone();
    let steps_down = spawn(move || {
        for _ in 0..2 {
            let_others_run(128);
            let term = other.term().map(|term| term.number());
            match draw(3) {
                0 => block_on(other.stop()),
                _ if block_on(other.resign()) => {
                    let after = other.term().map(|term| term.number());
                    assert!(term.is_none() || after.is_none() || term <= after, "{after:?} after {term:?}");
                }
                _ => {}
            }
        }
    });
    if has_losses {
        troubles(&clients);
    }
    workers.into_iter().for_each(|worker| worker.join().expect("no panic"));
    steps_down.join().expect("no panic");
    witness.forgets();
    drop(candidates);
    world.ends(&[PATH]);
}

#[test]
fn two_candidates_never_lead_at_once_or_hang() {
    explore(300, || candidates_lead(false));
}

#[test]
fn two_candidates_never_lead_despite_lost_sessions() {
    explore(300, || candidates_lead(true));
}

/// After `resign` returns, the lock is released.
#[test]
fn a_leader_that_has_resigned_has_no_node() {
    explore(300, || {
        let world = World::new();
        let client = world.client();
        let leads = candidate(&client);
        let resigns = leads.clone();
        let led = spawn(move || {
            let work = |_term: Term| std::future::pending::<()>();
            assert!(block_on(leads.lead(work)).expect("no error").is_none());
        });
        let term = loop {
            match resigns.term() {
                Some(term) => break term,
                None => thread::yield_now(),
            }
        };
        let nodes = client.memory.children(PATH);
        let_others_run(32);
        assert!(block_on(resigns.resign()));
        assert!(!term.is_leader());
        // The candidate may already campaign again with a new node, so only the nodes of the ended term must be gone.
        assert!(
            client.memory.children(PATH).iter().all(|name| !nodes.contains(name)),
            "a node of an ended term is left"
        );
        block_on(resigns.stop());
        led.join().expect("no panic");
        drop((resigns, term));
        world.ends(&[PATH]);
    });
}

/// A candidate campaigns once at a time, even if two threads start campaigns at the same moment. The leader's work ends
/// only after the other campaign was refused, so the two campaigns always overlap.
#[test]
fn a_second_campaign_of_a_candidate_is_refused() {
    explore(200, || {
        let world = World::new();
        let client = world.client();
        let (candidate, answered) = (candidate(&client), Arc::new(AtomicUsize::new(0)));
        let campaigns = [candidate.clone(), candidate].map(|candidate| {
            let answered = Arc::clone(&answered);
            spawn(move || {
                let work = |_term: Term| async {
                    while answered.load(Ordering::SeqCst) == 0 {
                        yield_now().await;
                    }
                };
                let led = block_on(candidate.lead(work));
                answered.fetch_add(1, Ordering::SeqCst);
                led.is_ok()
            })
        });
        let led = campaigns.map(|campaign| campaign.join().expect("no panic"));
        assert!(led[0] != led[1], "{led:?}");
        world.ends(&[PATH]);
    });
}
