//! Tests of what a server has shown of a session since its last reconnect.

use std::sync::Arc;

use super::*;

/// Session 7, and how often the server was asked about it.
fn session_7() -> (Arc<AtomicU64>, Identity) {
    let asked = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&asked);
    let confirm = move || {
        count.fetch_add(1, Ordering::Relaxed);
    };
    (asked, Identity::new(7, confirm))
}

#[test]
fn after_a_reconnect_the_server_is_asked_once_until_it_has_answered() {
    let (count, identity) = session_7();
    let asked = || {
        identity.ask();
        count.load(Ordering::Relaxed)
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
    let (_, identity) = session_7();
    identity.connection_changes();
    let connection = identity.connection();
    assert!(identity.made(0, connection));
    assert!(!identity.is_known(), "a node that belongs to nobody shows nothing");
    assert!(identity.made(7, connection));
    assert!(identity.is_known());
    identity.connection_changes();
    assert!(identity.made(7, connection));
    assert!(!identity.is_known(), "it was sent on another connection");
    assert!(!identity.made(8, connection), "the server has replaced the session");
}
