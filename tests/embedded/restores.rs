//! An ensemble that is restored to an earlier state, at every step of a leader, and in every earlier state. Tokens and
//! numbers of terms then come again.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use support::polled::{now, write};
use tokio::time::advance;
use tokio_test::task::{self, Spawn};
use zk_rwlock::leadership::{LeaderChanges, Term};
use zk_rwlock::memory::Backup;
use zk_rwlock::{Error, Leadership, Memory, RwLock};

const PATH: &str = "/leaders/scheduler";

/// Longer than the session timeout, and than any pause between two campaigns here.
const LONG: Duration = Duration::from_secs(120);

/// One step of a leader and of those who talk to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// The candidate's campaign goes on.
    Campaign,
    /// Another task asks the candidate to resign.
    Resign,
    /// That task goes on.
    Ask,
    /// An observer's stream goes on.
    Observe,
}

use Step::{Ask, Campaign, Observe, Resign};

const STEPS: [Step; 12] =
    [Observe, Campaign, Observe, Resign, Campaign, Ask, Observe, Resign, Observe, Campaign, Campaign, Ask];

/// A spawned future without its type.
type Spawned<T> = Spawn<Pin<Box<dyn Future<Output = T>>>>;

struct World {
    zk: Memory,
    candidate: Leadership,
    campaign: Spawned<Result<Option<()>, Error>>,
    terms: Rc<RefCell<Vec<Term>>>,
    resignations: Vec<Spawned<bool>>,
    changes: Spawn<LeaderChanges>,
    /// The number of the term that the observer saw last.
    seen: Option<i64>,
}

impl World {
    fn new() -> World {
        let zk = Memory::new();
        drop(write(&RwLock::new(&zk, PATH).expect("valid")));
        let candidate = Leadership::new(&zk.connect(), PATH).expect("valid");
        let observer = Leadership::new(&zk.connect(), PATH).expect("valid");
        let terms: Rc<RefCell<Vec<Term>>> = Rc::default();
        let (leading, led) = (candidate.clone(), Rc::clone(&terms));
        let campaign = async move {
            let lead = leading.lead(|term| {
                led.borrow_mut().push(term);
                std::future::pending::<()>()
            });
            lead.await
        };
        World {
            zk,
            candidate,
            campaign: task::spawn(Box::pin(campaign)),
            terms,
            resignations: Vec::new(),
            changes: task::spawn(observer.changes()),
            seen: None,
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Campaign => assert!(self.campaign.poll().is_pending(), "the campaign has ended"),
            Resign => {
                let candidate = self.candidate.clone();
                self.resignations.push(task::spawn(Box::pin(async move { candidate.resign().await })));
                self.step(Ask);
            }
            Ask => self.resignations.retain_mut(|it| it.poll().is_pending()),
            Observe => {
                while let Poll::Ready(change) = self.changes.poll_next() {
                    let leader = change.expect("the client is open").expect("the directory can be read");
                    self.seen = leader.map(|leader| leader.term);
                }
            }
        }
        let leading = self.terms.borrow().iter().filter(|term| term.is_leader()).count();
        assert!(leading <= 1, "{leading} terms last at once");
    }

    /// Restores the ensemble. All sessions end, and the nodes of those in the backup go.
    fn restore(&self, backup: &Backup) {
        self.zk.faults().restore(backup);
        for name in self.zk.children(PATH) {
            self.zk.faults().remove(format!("{PATH}/{name}"));
        }
    }

    /// Lets everything go on. The candidate must lead by a new term, the observer must see it, and nobody may wait for
    /// the end of a term that is over.
    async fn come_to_rest(mut self) {
        // The tasks that wait are polled only once the candidate leads again.
        for _ in 0..6 {
            self.step(Campaign);
            advance(LONG).await;
        }
        for step in [Ask, Observe, Campaign, Ask, Observe] {
            self.step(step);
        }
        let asked = self.resignations.len();
        assert_eq!(asked, 0, "{asked} resignations wait for the end of a term that is over");
        let term = self.candidate.term().expect("the candidate leads").number();
        assert_eq!(self.terms.borrow().last().map(Term::number), Some(term));
        assert_eq!(self.seen, Some(term), "the observer sees another leader");
        assert_eq!(now(self.candidate.leader()).expect("readable").map(|leader| leader.term), Some(term));
    }
}

#[tokio::test(start_paused = true)]
async fn a_leader_survives_a_restore_at_every_step_to_every_earlier_state() {
    // Whether the candidate leads again before the other tasks are polled.
    for is_quick in [false, true] {
        for (backed_up_at, restored_at) in (0..=STEPS.len()).flat_map(|end| (0..=end).map(move |first| (first, end))) {
            let case = tokio::task::unconstrained(async {
                let (mut world, mut backup) = (World::new(), None);
                for (i, step) in STEPS.into_iter().map(Some).chain([None]).enumerate() {
                    if i == backed_up_at {
                        backup = Some(world.zk.faults().back_up());
                    }
                    if let (true, Some(backup)) = (i == restored_at, &backup) {
                        world.restore(backup);
                        for _ in 0..if is_quick { 3 } else { 0 } {
                            world.step(Campaign);
                            advance(LONG).await;
                        }
                    }
                    step.into_iter().for_each(|step| world.step(step));
                }
                world.come_to_rest().await;
            });
            println!("a backup before step {backed_up_at}, restored before step {restored_at}, quick: {is_quick}");
            case.await;
        }
    }
}
