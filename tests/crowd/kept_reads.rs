//! The requests of many clients that keep their read locks, counted in virtual time. `make performance` counts ten
//! thousand clients.

use support::simulated::{Minute, minutes};

#[tokio::test(start_paused = true)]
async fn kept_reads_send_no_requests_without_writers() {
    let idle = Minute { reads: 6_000, writes: 0, requests: 0 };
    assert_eq!(minutes(100, &[false, false]).await, [idle, idle]);
}

/// When the writer asks for the kept nodes, each client gives its node up by a delete. Its next read sends four more
/// requests: the watch on the directory, the create, the listing, and the read by which the client watches its own
/// node. The writer sends seven, one of them to ask all clients.
#[tokio::test(start_paused = true)]
async fn a_write_costs_each_keeping_client_five_requests() {
    for clients in [1, 2, 10, 100] {
        let written = Minute { reads: 60 * clients, writes: 1, requests: 5 * clients + 7 };
        let clients = usize::try_from(clients).expect("few");
        assert_eq!(minutes(clients, &[true, true]).await, [written, written], "{clients} clients");
    }
}
