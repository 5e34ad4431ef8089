//! What one session knows of the queues that its contenders stand in; knows no I/O.
//!
//! The books of two sessions share nothing, even in one process, because the requests of two sessions have no common
//! order.

use std::sync::{Arc, Weak};

use crate::queue::contender::Contender;
use crate::queue::dialect::Dialect;
use crate::queue::local::{Evidence, Exit, LocalQueue, LocalTurn};
use crate::queue::mode::Mode;
use crate::queue::waiter::{Known, Predecessor};
use crate::session::node::OwnNode;
use crate::session::position::Position;
use crate::sync::{HashMap, Mutex, MutexGuard};

/// The books of one session, by directory and dialect. A book lives as long as a ticket uses it.
#[derive(Debug, Default)]
pub(crate) struct Books(Mutex<ByLock>);

type ByLock = HashMap<(Arc<str>, Dialect), Weak<Book>>;

/// What one session knows of one lock's queue.
#[derive(Debug, Default)]
pub(crate) struct Book(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    queue: LocalQueue<Arc<Position>>,
    /// The newest contender came directly after another contender of the session, so the next contender probably will,
    /// too. A lost connection does not change that.
    was_next: bool,
    /// Counts how often the connection was lost.
    connection: u64,
    /// Counts how often a place in this queue was to be exchanged for permits, and how often a contender of this session found
    /// that its turn had come.
    takings: u64,
}

impl Books {
    /// The session's book on this lock.
    pub(crate) fn of(&self, directory: &Arc<str>, dialect: Dialect) -> Arc<Book> {
        let mut books = self.books();
        if let Some(known) = books.get(&(Arc::clone(directory), dialect)).and_then(Weak::upgrade) {
            return known;
        }
        // Unused books are removed only when the map is about to grow. So their removal costs little, and the map stays
        // small.
        if books.len() == books.capacity() {
            books.retain(|_, book| book.strong_count() > 0);
        }
        let book = Arc::new(Book::default());
        books.insert((Arc::clone(directory), dialect), Arc::downgrade(&book));
        book
    }

    /// The connection was lost, so the books forget all that they know: a server that lost its last moments in a crash
    /// gives the numbers of those moments again.
    pub(crate) fn disconnected(&self) {
        for book in self.all() {
            book.change(|state| {
                state.connection += 1;
                state.queue.forget_all()
            });
        }
    }

    /// An own node was lost. Its owner may keep the guard for long, but the contenders behind it look again now.
    pub(crate) fn lost(&self, own_node: &OwnNode) {
        for book in self.all() {
            book.change(|state| {
                let lost = state.queue.members().find(|it| std::ptr::eq(&*it.own_node, own_node)).map(|it| it.key());
                lost.map(|key| state.queue.left(key, Exit::Lost)).unwrap_or_default()
            });
        }
    }

    fn all(&self) -> Vec<Arc<Book>> {
        self.books().values().filter_map(Weak::upgrade).collect()
    }

    fn books(&self) -> MutexGuard<'_, ByLock> {
        self.0.lock()
    }
}

impl Book {
    /// Whether the next contender will probably need a listing, which costs a request.
    pub(crate) fn expects_others(&self) -> bool {
        let state = self.state();
        state.queue.is_empty() || !state.was_next
    }

    /// How often the connection was lost. Pass it to [`Book::entered`].
    pub(crate) fn connection(&self) -> u64 {
        self.state().connection
    }

    /// Counts what may follow permits that were taken. A newcomer that is the head by this book, and finds the same number
    /// as before, knows that nobody has taken any in between: a contender of this session would have sent a transaction,
    /// and one of another session would have been the head before a contender of this session came to be it.
    pub(crate) fn takings(&self) -> u64 {
        self.state().takings
    }

    /// A transaction that takes permits was sent just now.
    pub(crate) fn takes(&self) {
        self.state().takings += 1;
    }

    /// The node of `me` was created. Its create was sent on this connection.
    pub(crate) fn entered(&self, me: &Arc<Position>, connection: u64) {
        self.change(|state| {
            if state.connection != connection {
                return Vec::new();
            }
            let is_first = state.queue.is_empty();
            let woken = state.queue.enter(me.key().id, me.contender.slot(), me.czxid, me);
            if me.contender.keeps() {
                state.queue.may_keep(me.key());
            }
            if !is_first {
                state.was_next = state.queue.was_next(me.contender.sequence());
            }
            woken
        });
    }

    /// Where `me` stands.
    pub(crate) fn find(&self, me: &Position) -> Known<Evidence> {
        let state = self.state();
        match state.queue.turn(me.key()) {
            LocalTurn::Clear(evidence) => Known::Granted(evidence),
            LocalTurn::Behind(number) => match state.queue.member(number) {
                Some(other) => {
                    let (name, mode) = (other.contender.name(), other.contender.mode());
                    // A writer may have downgraded just now.
                    if other.own_node.path().ends_with(name) {
                        Known::Behind(Predecessor { name: name.into(), mode, is_local: true })
                    } else {
                        Known::Nothing
                    }
                }
                None => Known::Nothing,
            },
            LocalTurn::BehindRemote(name) => Known::Behind(Predecessor { name, mode: Mode::Write, is_local: false }),
            LocalTurn::Unknown => Known::Nothing,
        }
    }

    /// `me` was granted.
    pub(crate) fn granted(&self, me: &Position, evidence: &Evidence) {
        self.change(|state| {
            state.takings += u64::from(state.queue.is_here(me.key()));
            state.queue.granted(me.key(), evidence)
        });
    }

    /// `me` waits for this contender.
    pub(crate) fn waits(&self, me: &Position, predecessor: &Predecessor) {
        if !predecessor.is_local {
            self.state().queue.waits_for(me.key(), &predecessor.name);
        }
    }

    /// Asks this contender to give up a node that it may only keep. `false` if it is of another session, as far as the
    /// book knows.
    pub(crate) fn ask(&self, name: &str) -> bool {
        // A writer that has downgraded since has another name by now.
        let asked = Contender::parse(name);
        let is_it = |it: &&Arc<Position>| asked.as_ref().is_some_and(|asked| it.contender.has_owner_of(asked));
        let found = self.state().queue.members().find(is_it).cloned();
        found.inspect(|found| found.own_node.ask()).is_some()
    }

    /// `me`, which held the write lock, holds the read lock now.
    pub(crate) fn downgraded(&self, me: &Arc<Position>) {
        self.change(|state| state.queue.downgraded(me.key(), me));
    }

    /// `me` leaves the queue: it does not hold the lock, and never will.
    pub(crate) fn left(&self, me: &Position, exit: Exit) {
        self.change(|state| state.queue.left(me.key(), exit));
    }

    fn change(&self, change: impl FnOnce(&mut State) -> Vec<Arc<Position>>) {
        let woken = change(&mut self.state());
        // Not while the book is locked: a contender that is called may use the book at once.
        for position in woken {
            position.own_node.call();
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Wake, Waker};
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;
    use crate::queue::local::Key;
    use crate::session::lease::Lease;
    use crate::session::loss::Loss;
    use crate::session::node::Asked;
    use crate::session::position::Birth;
    use crate::session::request::{Event, Watch};
    use crate::session::upkeep::Upkeep;
    use crate::sync::atomic::{AtomicBool, Ordering};

    fn upkeep() -> Arc<Upkeep> {
        Arc::new(Upkeep::new(Lease::new(Duration::from_secs(6))))
    }

    fn position(sequence: i64) -> Arc<Position> {
        position_on(&upkeep(), Mode::Write, sequence)
    }

    fn position_on(upkeep: &Arc<Upkeep>, mode: Mode, sequence: i64) -> Arc<Position> {
        let name = format!("h~i-{}-{sequence:010}", if mode == Mode::Write { "WRITE" } else { "READ" });
        let own_node = OwnNode::new(format!("/a/{name}"), upkeep);
        let contender = Contender::parse(&name).unwrap();
        let birth = Birth { ctime: UNIX_EPOCH, asked: Duration::ZERO, answered: Duration::ZERO };
        Arc::new(Position::new(contender, 10 + sequence, birth, own_node, 0, sequence.unsigned_abs()))
    }

    /// Its watch shows the removal.
    fn found_removed(own_node: &Arc<OwnNode>) {
        let watch = Watch::new(std::future::ready(Event::Deleted));
        let asked = Asked { path: own_node.path(), watch: Box::pin(std::future::ready(Ok(watch))) };
        assert!(pin!(own_node.watched(asked)).poll(&mut Context::from_waker(Waker::noop())).is_ready());
    }

    /// Looks at the book at once, as a contender may that is polled where it is woken.
    struct Looks {
        book: Arc<Book>,
        me: Arc<Position>,
        has_looked: AtomicBool,
    }

    impl Wake for Looks {
        fn wake(self: Arc<Self>) {
            // Were the book locked, a look would wait for ever.
            assert!(self.book.0.try_lock().is_some(), "the book is locked");
            assert!(matches!(self.book.find(&self.me), Known::Granted(Evidence::Sure)));
            self.has_looked.store(true, Ordering::SeqCst);
        }
    }

    #[test]
    fn a_contender_that_is_called_may_look_at_the_book_at_once() {
        let books = Books::default();
        let book = books.of(&Arc::from("/a"), Dialect::Native);
        let (first, second) = (position(1), position(2));
        book.entered(&first, book.connection());
        book.granted(&first, &Evidence::Sure);
        book.entered(&second, book.connection());
        let (me, has_looked) = (Arc::clone(&second), AtomicBool::new(false));
        let looks = Arc::new(Looks { book: Arc::clone(&book), me, has_looked });
        let mut called = pin!(second.own_node.changed());
        let waker = Waker::from(Arc::clone(&looks));
        assert!(called.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        book.left(&first, Exit::LetGo);
        assert!(looks.has_looked.load(Ordering::SeqCst));
    }

    #[test]
    fn a_node_requested_before_the_connection_was_lost_is_not_entered() {
        let books = Books::default();
        let book = books.of(&Arc::from("/a"), Dialect::Native);
        let (first, late, after) = (position(1), position(2), position(3));
        book.entered(&first, book.connection());
        book.granted(&first, &Evidence::Sure);
        let before = book.connection();
        books.disconnected();
        book.entered(&late, before);
        book.granted(&late, &Evidence::Sure);
        book.entered(&after, book.connection());
        book.left(&late, Exit::LetGo);
        assert_eq!(late.key(), Key { number: 2, id: 2 });
        assert!(matches!(book.find(&late), Known::Nothing));
        assert!(matches!(book.find(&after), Known::Nothing), "what comes right after it learns nothing from it");
    }

    #[test]
    fn whoever_is_right_behind_a_lost_node_is_called() {
        let upkeep = upkeep();
        upkeep.began(upkeep.lease().now());
        let book = upkeep.books().of(&Arc::from("/a"), Dialect::Native);
        for (number, loss) in [(1, (|node| node.lose(Loss::Removed)) as fn(&Arc<OwnNode>)), (11, found_removed)] {
            let [first, second] = [number, number + 1].map(|number| position_on(&upkeep, Mode::Write, number));
            book.entered(&first, book.connection());
            book.granted(&first, &Evidence::Sure);
            book.entered(&second, book.connection());
            assert!(!second.own_node.take_call());
            loss(&first.own_node);
            assert!(second.own_node.take_call());
            book.left(&first, Exit::Lost);
            book.left(&second, Exit::Plain);
        }
    }

    #[test]
    fn a_reader_behind_a_writer_of_another_session_knows_it() {
        let upkeep = upkeep();
        let book = upkeep.books().of(&Arc::from("/a"), Dialect::Native);
        let reader = position_on(&upkeep, Mode::Read, 5);
        book.entered(&reader, book.connection());
        let mut writer = Predecessor { name: Arc::from("g~j-WRITE-0000000003"), mode: Mode::Write, is_local: true };
        book.waits(&reader, &writer);
        assert!(matches!(book.find(&reader), Known::Nothing), "the book itself has said so");
        writer.is_local = false;
        book.waits(&reader, &writer);
        assert!(matches!(book.find(&reader), Known::Behind(found) if found == writer));
    }

    /// A contender looks at the book, and asks its predecessor a moment later.
    #[test]
    fn a_writer_that_has_downgraded_meanwhile_is_asked_by_its_old_name() {
        let (upkeep, book) = (upkeep(), Book::default());
        let [wrote, reads] = [Mode::Write, Mode::Read].map(|mode| position_on(&upkeep, mode, 1));
        book.entered(&wrote, book.connection());
        book.granted(&wrote, &Evidence::Sure);
        book.downgraded(&reads);
        assert!(book.ask(wrote.contender.name()));
        assert!(reads.own_node.is_asked());
        assert!(!book.ask("h~another-WRITE-0000000002"), "it is of another session");
        book.left(&reads, Exit::Plain);
        assert!(!book.ask(wrote.contender.name()), "it has left");
    }

    #[test]
    fn each_transaction_that_takes_permits_is_counted() {
        let book = Book::default();
        book.takes();
        book.takes();
        assert_eq!(book.takings(), 2);
    }

    #[test]
    fn a_book_in_use_stays_the_same_and_the_others_are_forgotten() {
        let books = Books::default();
        let of = |lock: usize| books.of(&Arc::from(format!("/{lock}")), Dialect::Native);
        let used: Vec<_> = (0..100).map(of).collect();
        (100..10_000).for_each(|lock| drop(of(lock)));
        assert!(used.iter().enumerate().all(|(lock, book)| Arc::ptr_eq(book, &of(lock))));
        assert!(books.books().len() < 1_000);
    }
}
