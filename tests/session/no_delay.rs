//! Small requests are sent immediately (`TCP_NODELAY`), also in a container whose default profile refuses to duplicate sockets.
//! Otherwise a request waits for the acknowledgement of the request before it, and two requests that are sent together take two
//! round trips.

use std::net::SocketAddr;

use nix::errno::Errno;
use nix::sys::socket::sockopt::TcpNoDelay;
use nix::sys::socket::{SockaddrIn, getpeername, getsockopt};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};
use support::scene::eventually;
use support::server::Server;
use zk_rwlock::{RwLock, ZooKeeper};

/// The number of the system call `pidfd_open`, which is the same on every processor architecture.
const PIDFD_OPEN: i64 = 434;
const PIDFD_GETFD: i64 = 438;

/// Refuses the system calls that duplicate the sockets of a process, as Docker's default profile does. The filter covers all
/// threads of this process, because another test may have started the library's thread.
fn refuse_calls_as_in_a_container() {
    let refused = [PIDFD_OPEN, PIDFD_GETFD].map(|call| (call, Vec::new())).into();
    let architecture = std::env::consts::ARCH.try_into().expect("an architecture of the crate");
    let refuse = SeccompAction::Errno(Errno::EPERM as u32);
    let filter = SeccompFilter::new(refused, SeccompAction::Allow, refuse, architecture).expect("a filter");
    let filter: BpfProgram = filter.try_into().expect("a program");
    seccompiler::apply_filter_all_threads(&filter).expect("a process may forgo calls");
}

/// Returns, for each connection of this process to the server, whether `TCP_NODELAY` is set.
pub(crate) fn no_delay_flags(server: SocketAddr) -> Vec<bool> {
    let open = std::fs::read_dir("/proc/self/fd").expect("/proc is mounted");
    let numbers = open.filter_map(|it| it.ok()?.file_name().to_str()?.parse().ok());
    let leads_there =
        |number: &i32| getpeername::<SockaddrIn>(*number).is_ok_and(|peer| SocketAddr::V4(peer.into()) == server);
    numbers.filter(leads_there).filter_map(|number| getsockopt(number, TcpNoDelay).ok()).collect()
}

async fn wait_for_no_delay(server: SocketAddr) {
    eventually("TCP_NODELAY is set", || async { no_delay_flags(server) == [true] }).await;
}

#[support::judged]
async fn requests_are_prompt_where_sockets_cannot_be_cloned() {
    let server = Server::start();
    let address = server.address().parse().expect("an address");
    let this = pidfd_open(getpid(), PidfdFlags::empty());
    refuse_calls_as_in_a_container();
    let refused = pidfd_open(getpid(), PidfdFlags::empty());
    assert_eq!(refused.err(), Some(rustix::io::Errno::PERM));
    if let Ok(this) = &this {
        let refused = pidfd_getfd(this, 0, PidfdGetfdFlags::empty());
        assert_eq!(refused.err(), Some(rustix::io::Errno::PERM));
    }
    let zk = ZooKeeper::connect(server.address()).await.expect("the server is there");
    wait_for_no_delay(address).await;
    server.restart();
    let lock = RwLock::new(&zk, "/locks/no-delay").expect("valid");
    lock.write().await.expect("free").release().await.expect("held");
    wait_for_no_delay(address).await;
}
