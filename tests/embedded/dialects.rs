//! The lock among nodes of other libraries: models of those libraries, and nodes that an operator makes. `tests/interop/`
//! tests the libraries themselves.

mod peers;
use std::collections::HashSet;
use std::sync::Arc;

use peers::{Kind, Library, Verdict};
use support::scene::{granted, line_becomes, reader, refused, soon, writer};
use zk_rwlock::coordinator::{Coordinator, Failure, Kind as NodeKind, Operation, Session, WatchEvent};
use zk_rwlock::queue::{Member, MemberState};
use zk_rwlock::{Dialect, Error, Memory, Mode, MultiLock, RwLock, Survey};

const FOREIGN: [Dialect; 3] = [Dialect::Curator, Dialect::CuratorMutex, Dialect::Kazoo];

const UUID: &str = "5cf2ad84-2a9c-4f12-a1ab-0f4d8ce1a4a9";

// ----------------------------------------------------------- Every order of events, decided by a model of each library

/// The state of a contender's node in the directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Step {
    Outside,
    Waiting,
    Holding,
    /// A thread of Curator that holds the write lock and, under that lock, also the read lock, with a node for each.
    HoldingBoth,
    /// A former writer that now holds as a reader.
    Downgraded,
    Gone,
}

/// A few contenders, in the order in which they enter the queue.
struct Fleet {
    dialect: Dialect,
    members: Vec<Kind>,
}

impl Fleet {
    fn nodes_of(&self, i: usize, step: Step) -> Vec<(Mode, String)> {
        let (kind, node) = (self.members[i], |mode| (mode, self.members[i].name(self.dialect, mode, i)));
        match step {
            Step::Outside | Step::Gone => Vec::new(),
            Step::Waiting | Step::Holding => vec![node(kind.mode)],
            Step::HoldingBoth => vec![node(Mode::Read), node(Mode::Write)],
            Step::Downgraded => vec![node(Mode::Read)],
        }
    }

    /// Asks the model of each waiter's library whether the waiter may take the lock now, and checks that no writer
    /// would then hold beside another holder. Returns the answer for each contender.
    fn check(&self, steps: &[Step]) -> Vec<bool> {
        let nodes: Vec<_> = steps.iter().enumerate().map(|(i, step)| self.nodes_of(i, *step)).collect();
        // A server may list names in any order. The test lists them in the reverse of the queue's order, so that a
        // model that relies on the order fails.
        let names: Vec<String> = nodes.iter().rev().flatten().map(|(_, name)| name.clone()).collect();
        let described = || format!("{} {:?} {steps:?}", self.dialect, self.members);
        let holders: Vec<_> =
            (0..steps.len()).filter(|i| !matches!(steps[*i], Step::Outside | Step::Waiting | Step::Gone)).collect();
        let writes = |i: &usize| nodes[*i].iter().any(|(mode, _)| *mode == Mode::Write);
        assert!(
            holders.len() < 2 || !holders.iter().any(writes),
            "a writer holds beside another holder: {}",
            described()
        );
        let may_hold = |i: usize| {
            if steps[i] != Step::Waiting {
                return false;
            }
            let kind = self.members[i];
            let excluding = nodes[..i].iter().flatten().filter(|(mode, _)| mode.excludes(kind.mode)).count();
            match kind.asks(self.dialect, &nodes[i][0].1, &names) {
                Verdict::Granted => assert_eq!(excluding, 0, "{i} overtakes: {}", described()),
                Verdict::Watches(name) => {
                    assert_ne!(excluding, 0, "{i} waits although no contender excludes it: {}", described());
                    let earlier = nodes[..i].iter().flatten().any(|(_, earlier)| *earlier == name);
                    assert!(earlier, "{i} watches {name}, which is not ahead of {i}: {}", described());
                }
            }
            excluding == 0
        };
        (0..steps.len()).map(may_hold).collect()
    }

    /// Visits every state that some order of events reaches. Returns the number of states.
    fn explore(&self) -> usize {
        let first = vec![Step::Outside; self.members.len()];
        let mut seen = HashSet::from([first.clone()]);
        let mut open = vec![first];
        while let Some(steps) = open.pop() {
            let may_hold = self.check(&steps);
            for (i, step) in steps.iter().enumerate() {
                let kind = self.members[i];
                let is_writer = kind.mode == Mode::Write;
                let next: &[Step] = match step {
                    Step::Outside if i == 0 || steps[i - 1] != Step::Outside => &[Step::Waiting],
                    // A waiter that may hold can take the lock at any later time, and any waiter can give up.
                    Step::Waiting if may_hold[i] => &[Step::Holding, Step::Gone],
                    Step::Waiting => &[Step::Gone],
                    Step::Holding if is_writer && kind.library == Library::Ours => &[Step::Downgraded, Step::Gone],
                    Step::Holding if is_writer && kind.library == Library::CuratorReadWrite => {
                        &[Step::HoldingBoth, Step::Gone]
                    }
                    Step::Holding | Step::Downgraded => &[Step::Gone],
                    // The thread releases either lock first, or its process dies.
                    Step::HoldingBoth => &[Step::Downgraded, Step::Holding, Step::Gone],
                    Step::Outside | Step::Gone => &[],
                };
                for to in next {
                    let mut steps = steps.clone();
                    steps[i] = *to;
                    if seen.insert(steps.clone()) {
                        open.push(steps);
                    }
                }
            }
        }
        seen.len()
    }
}

fn explore_all(dialect: Dialect, kinds: &[Kind], size: u32) {
    let mut states = 0;
    for number in 0..kinds.len().pow(size) {
        let member = |i| kinds[number / kinds.len().pow(i) % kinds.len()];
        states += Fleet { dialect, members: (0..size).map(member).collect() }.explore();
    }
    assert!(states > kinds.len().pow(size) * 4_usize.pow(size - 1), "{states} states");
}

#[test]
fn libraries_with_curator_names_take_turns() {
    let kinds = Kind::all_in(Dialect::Curator);
    explore_all(Dialect::Curator, &kinds, 3);
    // Four contenders have very many states. So this search leaves out zookeeper-client, which decides as a writer of kazoo does.
    let others: Vec<_> = kinds.into_iter().filter(|kind| kind.library != Library::ZookeeperClient).collect();
    explore_all(Dialect::Curator, &others, 4);
}

#[test]
fn libraries_with_curators_mutex_names_take_turns() {
    explore_all(Dialect::CuratorMutex, &Kind::all_in(Dialect::CuratorMutex), 4);
}

#[test]
fn libraries_with_kazoo_names_take_turns() {
    explore_all(Dialect::Kazoo, &Kind::all_in(Dialect::Kazoo), 4);
}

#[test]
fn libraries_with_our_names_take_turns() {
    explore_all(Dialect::Native, &Kind::all_in(Dialect::Native), 4);
}

#[test]
fn libraries_of_different_dialects_ignore_each_other() {
    let (rw, mutex) = (format!("_c_{UUID}-__WRIT__0000000000"), format!("_c_{UUID}-lock-0000000001"));
    let kazoo = format!("{}__lock__0000000002", UUID.replace('-', ""));
    let names = [rw.clone(), mutex.clone(), kazoo.clone()];
    for (dialect, library, me) in [
        (Dialect::Curator, Library::CuratorReadWrite, &rw),
        (Dialect::CuratorMutex, Library::CuratorMutex, &mutex),
        (Dialect::Kazoo, Library::Kazoo, &kazoo),
    ] {
        let kind = Kind { library, mode: Mode::Write };
        assert!(matches!(kind.asks(dialect, me, &names), Verdict::Granted), "the dialect is refused: {library:?}");
    }
}

// ------------------------------------------------------------------------- The lock among nodes that an operator makes

/// A lock in a dialect, and an operator on the same ensemble.
struct Scene {
    zk: Memory,
    lock: RwLock,
    operator: Arc<dyn Session>,
    _operator: Memory,
}

const PATH: &str = "/locks/shared";

impl Scene {
    async fn set(dialect: Dialect) -> Scene {
        let zk = Memory::new();
        let other = zk.connect();
        let operator = Arc::clone(other.session_slot(0).await.unwrap().session());
        let lock = RwLock::builder(&zk, PATH).dialect(dialect).build().unwrap();
        lock.write().await.unwrap().release().await.unwrap();
        Scene { zk, lock, operator, _operator: other }
    }

    /// The lock in another process, on a session of its own.
    fn another_process(&self, dialect: Dialect) -> RwLock {
        RwLock::builder(&self.zk.connect(), PATH).dialect(dialect).build().unwrap()
    }

    async fn make(&self, name: &str, data: &[u8]) {
        self.operator.create(&path_of(name), data, NodeKind::Ephemeral).await.unwrap();
    }

    async fn remove(&self, name: &str) {
        self.operator.delete(&path_of(name)).await.unwrap();
    }

    async fn write_to(&self, path: &str, data: &[u8]) {
        let set = Operation::Set { path: path.to_owned(), data: data.to_vec(), version: None };
        self.operator.transact(&[set]).await.unwrap();
    }

    async fn members(&self) -> Vec<Member> {
        self.lock.queue().await.unwrap().members
    }
}

fn path_of(name: &str) -> String {
    format!("{PATH}/{name}")
}

fn foreign_name(dialect: Dialect, mode: Mode, number: usize) -> String {
    let library = match dialect {
        Dialect::Curator => Library::CuratorReadWrite,
        Dialect::CuratorMutex => Library::CuratorMutex,
        Dialect::Kazoo => Library::Kazoo,
        _ => Library::Ours,
    };
    Kind { library, mode }.name(dialect, mode, number)
}

#[support::judged]
async fn a_contender_of_another_dialect_is_refused_by_name() {
    for dialect in Dialect::ALL {
        let s = Scene::set(dialect).await;
        for other in Dialect::ALL.into_iter().filter(|other| *other != dialect) {
            let name = foreign_name(other, Mode::Write, 0);
            s.make(&name, b"").await;
            let errors = [
                s.lock.read().await.unwrap_err(),
                s.lock.write().await.unwrap_err(),
                s.lock.try_read().await.unwrap_err(),
                s.lock.try_write().await.unwrap_err(),
                s.lock.queue().await.unwrap_err(),
                s.lock.evict(1).await.unwrap_err(),
            ];
            for error in errors {
                let Error::ForeignContender { path, node, speaks, dialect: own } = &error else { panic!("{error}") };
                assert_eq!((path.as_str(), node, *speaks, *own), (PATH, &name, other, dialect));
                let text = error.to_string();
                assert!(text.contains(&name) && text.contains(&format!("Dialect::{other:?}")), "{text}");
            }
            assert_eq!(s.zk.children(PATH), std::slice::from_ref(&name), "{dialect} beside {other}");
            s.remove(&name).await;
            s.lock.write().await.unwrap().release().await.unwrap();
        }
    }
}

#[support::judged]
async fn a_waiter_that_lists_again_refuses_a_foreign_node() {
    for dialect in Dialect::ALL {
        let s = Scene::set(dialect).await;
        // The first holder is in another process. A waiter behind a contender of its own session would not have to list
        // again when that contender leaves, and would not see the foreign node.
        let first = s.another_process(dialect).read().await.unwrap();
        let second = writer(&s.lock);
        line_becomes(&s.lock, "R+ W-").await;
        let other = if dialect == Dialect::Kazoo { Dialect::Curator } else { Dialect::Kazoo };
        let stranger = foreign_name(other, Mode::Read, 9);
        s.make(&stranger, b"").await;
        assert!(first.is_held());
        first.release().await.unwrap();
        let error = refused(second).await;
        assert!(matches!(error, Error::ForeignContender { speaks, .. } if speaks == other), "{error}");
        let left = || async { s.zk.children(PATH) == std::slice::from_ref(&stranger) };
        support::scene::eventually("the contender's own node is gone", left).await;
    }
}

#[support::judged]
async fn a_hand_off_ignores_a_foreign_contender() {
    let s = Scene::set(Dialect::Native).await;
    let first = s.lock.write().await.unwrap();
    let second = writer(&s.lock);
    line_becomes(&s.lock, "W+ W-").await;
    let stranger = foreign_name(Dialect::Kazoo, Mode::Write, 9);
    s.make(&stranger, b"").await;
    first.release().await.unwrap();
    let second = granted(second).await;
    let error = s.lock.write().await.unwrap_err();
    assert!(matches!(&error, Error::ForeignContender { node, .. } if *node == stranger), "{error}");
    assert!(second.is_held());
    second.release().await.unwrap();
    assert_eq!(s.zk.children(PATH), [stranger]);
}

#[support::judged]
async fn contenders_of_one_dialect_wait_for_each_other() {
    for dialect in FOREIGN {
        let s = Scene::set(dialect).await;
        let theirs = foreign_name(dialect, Mode::Write, 0);
        let words: &[u8] = if dialect == Dialect::Kazoo { b"nightly report" } else { b"10.1.2.3" };
        s.make(&theirs, words).await;
        let error = s.lock.try_read().await.unwrap_err();
        assert!(error.is_would_block(), "{error}");
        assert!(error.to_string().contains(std::str::from_utf8(words).unwrap()), "{error}");
        let ours = reader(&s.lock);
        line_becomes(&s.lock, "W+ R-").await;
        let members = s.members().await;
        assert_eq!(members[1].state, MemberState::Waits { behind: theirs.clone() });
        assert_eq!(members[1].pid, Some(std::process::id()));
        assert!(!members[1].host.is_empty());
        s.remove(&theirs).await;
        granted(ours).await.release().await.unwrap();
    }
}

#[support::judged]
async fn writes_to_foreign_nodes_grant_and_lose_nothing() {
    for dialect in FOREIGN {
        let s = Scene::set(dialect).await;
        let theirs = foreign_name(dialect, Mode::Write, 0);
        s.make(&theirs, b"").await;
        let ours = writer(&s.lock);
        line_becomes(&s.lock, "W+ W-").await;
        for round in 0..3 {
            s.write_to(&path_of(&theirs), b"__REVOKE__").await;
            let before = s.zk.requests();
            support::scene::eventually("the waiter lists again", || async { s.zk.requests() >= before + 2 }).await;
            line_becomes(&s.lock, "W+ W-").await;
            assert!(!ours.is_finished(), "round {round}, {dialect}");
        }
        s.remove(&theirs).await;
        let ours = granted(ours).await;

        let next = writer(&s.lock);
        line_becomes(&s.lock, "W+ W-").await;
        s.write_to(&ours.node_path(), b"__REVOKE__").await;
        line_becomes(&s.lock, "W+ W-").await;
        assert!(ours.is_held() && !next.is_finished(), "{dialect}");
        ours.release().await.unwrap();
        granted(next).await.release().await.unwrap();
    }
}

#[support::judged]
async fn only_a_native_release_writes_before_it_deletes() {
    for dialect in Dialect::ALL {
        let s = Scene::set(dialect).await;
        let held = s.lock.write().await.unwrap();
        let watch = s.operator.watch(&held.node_path()).await.unwrap();
        held.release().await.unwrap();
        let expected = if dialect == Dialect::Native { WatchEvent::Changed } else { WatchEvent::Deleted };
        assert_eq!(soon("the event", watch).await, expected, "{dialect}");
    }
}

#[support::judged]
async fn a_curator_reader_in_its_own_write_is_one_holder() {
    let s = Scene::set(Dialect::Curator).await;
    let write = foreign_name(Dialect::Curator, Mode::Write, 0);
    let read = format!("_c_{UUID}-__READ__0000000000");
    s.make(&write, b"").await;
    let reads = reader(&s.lock);
    line_becomes(&s.lock, "W+ R-").await;
    let writes = writer(&s.lock);
    line_becomes(&s.lock, "W+ R- W-").await;
    s.make(&read, b"").await;
    let states: Vec<_> = s.members().await.into_iter().map(|member| member.state).collect();
    assert_eq!(states[..2], [MemberState::Holds, MemberState::Holds]);
    s.remove(&write).await;
    let reads = granted(reads).await;
    line_becomes(&s.lock, "R+ R+ W-").await;
    reads.release().await.unwrap();
    line_becomes(&s.lock, "R+ W-").await;
    assert!(!writes.is_finished());
    s.remove(&read).await;
    granted(writes).await.release().await.unwrap();
}

#[support::judged]
async fn a_number_shared_with_a_foreign_node_is_not_granted() {
    for dialect in Dialect::ALL {
        let s = Scene::set(dialect).await;
        s.make(&foreign_name(dialect, Mode::Read, 2), b"").await;
        // The operator's node takes up number 1 of the directory, so our node gets number 2: the number in the
        // operator's name.
        let error = s.lock.read().await.unwrap_err();
        let is_named =
            matches!(&error, Error::NumberTaken { node, .. } if *node == foreign_name(dialect, Mode::Read, 2));
        assert!(is_named, "{dialect}: {error}");
    }
}

#[support::judged]
async fn a_create_with_a_lost_reply_is_found_by_its_uuid() {
    for dialect in Dialect::ALL {
        let s = Scene::set(dialect).await;
        s.zk.faults().lose_next_reply();
        let held = soon("the grant", s.lock.write()).await.unwrap();
        let (directory, name) =
            held.node_path().rsplit_once('/').map(|(at, name)| (at.to_owned(), name.to_owned())).unwrap();
        assert_eq!(s.zk.children(&directory), [name], "{dialect}");
        held.release().await.unwrap();
        assert_eq!(s.zk.children(PATH), [""; 0]);
    }
}

#[support::judged]
async fn an_uncontended_write_and_release_cost_3_requests() {
    for dialect in Dialect::ALL {
        let s = Scene::set(dialect).await;
        for _ in 0..2 {
            s.lock.write().await.unwrap().release().await.unwrap();
        }
        let before = s.zk.requests();
        for _ in 0..10 {
            s.lock.write().await.unwrap().release().await.unwrap();
        }
        // Each of the ten uses sends its three requests (a create, a listing and a delete) and the watch on its own
        // node.
        assert_eq!(s.zk.requests() - before, 40, "{dialect}");
    }
}

#[support::judged]
async fn a_directory_in_kazoos_dialect_is_not_reaped() {
    for dialect in Dialect::ALL {
        let s = Scene::set(dialect).await;
        s.zk.faults().reap_containers();
        let answer = s.operator.children(PATH).await;
        let stays = dialect == Dialect::Kazoo;
        assert_eq!(answer, if stays { Ok(Vec::new()) } else { Err(Failure::NoNode) }, "{dialect}");
    }
}

#[support::judged]
async fn used_up_numbers_are_restarted_except_under_kazoo() {
    for dialect in Dialect::ALL {
        let s = Scene::set(dialect).await;
        s.zk.faults().set_next_sequence(PATH, 1 << 30);
        s.lock.write().await.unwrap().release().await.unwrap();
        let stays = dialect == Dialect::Kazoo;
        assert_eq!(s.operator.children(PATH).await.is_ok(), stays, "{dialect}");
        s.lock.write().await.unwrap().release().await.unwrap();
        for next in [i32::MAX - (1 << 20) + 1, i32::MAX, -1, i32::MIN] {
            s.zk.faults().set_next_sequence(PATH, next);
            match s.lock.write().await {
                Ok(guard) => {
                    assert!(!stays && guard.node_path().ends_with("0000000000"), "{dialect}: {}", guard.node_path());
                    guard.release().await.unwrap();
                }
                Err(error) => {
                    assert!(stays && matches!(error, Error::SequenceExhausted { .. }), "{dialect}, {next}: {error}");
                }
            }
            assert!(s.operator.children(PATH).await.unwrap().is_empty());
        }
    }
}

#[support::judged]
async fn several_locks_are_taken_together_in_one_dialect() {
    for dialect in FOREIGN {
        let s = Scene::set(dialect).await;
        let open = |path| RwLock::builder(&s.zk, path).dialect(dialect).build().unwrap();
        let both = MultiLock::new([(open(PATH), Mode::Write), (open("/locks/other"), Mode::Read)]).unwrap();
        let held = both.lock().await.unwrap();
        held.transaction().create("/done", "by both").commit().await.unwrap();
        assert!(s.lock.try_write().await.unwrap_err().is_would_block());
        let theirs = foreign_name(dialect, Mode::Write, 0);
        held.release().await.unwrap();
        s.make(&theirs, b"").await;
        assert!(both.try_lock().await.unwrap_err().is_would_block(), "{dialect}");
    }
}

#[support::judged]
async fn a_survey_sees_each_queue_in_its_own_dialect() {
    let s = Scene::set(Dialect::Native).await;
    for dialect in Dialect::ALL {
        let lock = RwLock::builder(&s.zk, format!("/locks/{dialect}")).dialect(dialect).build().unwrap();
        std::mem::forget(lock.write().await.unwrap());
    }
    // The survey also reads a directory with nodes of two dialects, which a lock would refuse.
    for dialect in [Dialect::Curator, Dialect::Kazoo] {
        s.make(&foreign_name(dialect, Mode::Read, 7), b"").await;
    }
    let survey = Survey::below(&s.zk, "/locks").await.unwrap();
    let seen: Vec<_> = survey.queues.iter().map(|it| (it.path.as_str(), it.dialect, it.holders().count())).collect();
    let expected = [
        ("/locks/curator", Dialect::Curator, 1),
        ("/locks/curator-mutex", Dialect::CuratorMutex, 1),
        ("/locks/kazoo", Dialect::Kazoo, 1),
        ("/locks/native", Dialect::Native, 1),
        (PATH, Dialect::Curator, 1),
        (PATH, Dialect::Kazoo, 1),
    ];
    assert_eq!(seen, expected);
}
