//! Tests of what a server has shown of a session since its last reconnect.

use std::time::SystemTime;

use super::*;

#[derive(Default)]
struct Asks {
    asked: AtomicU64,
    is_replaced: AtomicBool,
}

impl Claimant for Asks {
    fn confirm(&self) {
        self.asked.fetch_add(1, Ordering::Relaxed);
    }

    fn replaced(&self) {
        self.is_replaced.store(true, Ordering::Relaxed);
    }
}

fn session_7() -> (Arc<Asks>, Arc<Identity>) {
    let claimant = Arc::new(Asks::default());
    let weak = Arc::downgrade(&claimant);
    (claimant, Arc::new(Identity::new(7, weak)))
}

fn owned_by(ephemeral_owner: i64) -> Created {
    Created { path: "/l/n".to_owned(), czxid: 1, ctime: SystemTime::UNIX_EPOCH, ephemeral_owner }
}

#[test]
fn after_a_reconnect_the_server_is_asked_once_until_it_has_answered() {
    let (claimant, identity) = session_7();
    let asked = || {
        identity.ask();
        claimant.asked.load(Ordering::Relaxed)
    };
    assert!(identity.is_known());
    assert_eq!(asked(), 0, "the server has named the session");
    identity.connection_changes();
    assert!(!identity.is_known());
    assert_eq!([asked(), asked()], [1, 1]);
    identity.was_asked();
    assert_eq!(asked(), 2, "the answer was none");
    identity.is_shown_on(identity.connection());
    identity.was_asked();
    assert_eq!((asked(), identity.is_known()), (2, true));
    identity.connection_changes();
    identity.is_shown_on(0);
    assert!(!identity.is_known(), "that was an earlier connection");
}

#[test]
fn a_node_of_ours_shows_the_session_on_the_connection_that_made_it() {
    let (claimant, identity) = session_7();
    identity.connection_changes();
    let owner = identity.owner();
    assert!(owner.created(owned_by(0)).is_ok());
    assert!(!identity.is_known(), "a node that belongs to nobody shows nothing");
    assert!(owner.created(owned_by(7)).is_ok());
    assert!(identity.is_known());
    identity.connection_changes();
    assert!(owner.created(owned_by(7)).is_ok());
    assert!(!identity.is_known(), "it was sent on another connection");
    assert!(!claimant.is_replaced.load(Ordering::Relaxed));
    assert_eq!(owner.created(owned_by(8)), Err(Failure::Over(Ending::Replaced)));
    assert!(claimant.is_replaced.load(Ordering::Relaxed));
}
