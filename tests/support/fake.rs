//! A fake server that speaks enough of ZooKeeper's protocol to grant a lock, and sends one chosen kind of false reply
//! ([`Lie`]). Use it to show that no reply of a server, however wrong, causes a panic or a wrong grant.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::frames::{Fields, Op, framed};
use super::port::Port;

const SESSION: i64 = 0x0100_0c5d_4f3a_1111;

/// How the server deviates from the protocol or from the truth.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Lie {
    /// The server is honest.
    None,
    /// The reply to the handshake is noise.
    NoiseForAHandshake,
    /// The reply to the handshake is an empty frame.
    EmptyHandshake,
    /// The reply to the handshake states a password length of 2^31 - 1 bytes.
    EndlessPassword,
    /// The granted session timeout is negative.
    NegativeTimeout,
    /// The granted session timeout is zero.
    NoTimeout,
    /// A frame states a length of 2^31 - 1 bytes, and a million bytes follow.
    EndlessFrame,
    /// A frame has a negative length.
    NegativeFrame,
    /// A frame has three bytes. The header of a reply alone has sixteen.
    ShortFrame,
    /// A reply has an xid that no request has.
    WrongXid,
    /// The server sends an event for a watch that was never set, a truncated event, and then the reply.
    InventedEvents,
    /// The reply to a create ends after its header.
    ShortCreate,
    /// The created node has another name than the client asked for.
    CreatedElsewhere,
    /// The created node has a negative sequence number.
    CreatedBelowZero,
    /// The created node belongs to another session.
    CreatedForAnother,
    /// The created node belongs to no session.
    CreatedForNobody,
    /// The listing states a length of 2^31 - 1 names.
    EndlessListing,
    /// The listing has a negative length.
    NegativeListing,
    /// The listing ends in the middle of a name.
    ShortListing,
    /// The names in the listing are not UTF-8.
    NoiseForAListing,
    /// The created node is missing from the listing.
    ListingWithoutMe,
    /// The listing has another node with the same sequence number.
    ListingWithATwin,
    /// The listing has a predecessor, and the reply to the watch on the predecessor's node is truncated.
    ShortData,
    /// The listing has a predecessor. An event reports the deletion of the predecessor's node, but the next listing
    /// still has it.
    FalseDeparture,
}

/// A server that accepts clients until it is dropped.
#[derive(Debug)]
pub struct Fake {
    port: Port,
    thread: Option<JoinHandle<()>>,
    is_over: Arc<AtomicBool>,
}

impl Fake {
    pub fn start(lie: Lie) -> Fake {
        let port = Port::reserve();
        let listener = port.listen();
        let tree = Arc::new(Mutex::new(Tree::default()));
        let is_over = Arc::<AtomicBool>::default();
        let thread = thread::spawn({
            let is_over = Arc::clone(&is_over);
            move || {
                for stream in listener.incoming() {
                    let (Ok(stream), tree) = (stream, Arc::clone(&tree)) else { return };
                    if is_over.load(Ordering::SeqCst) {
                        return;
                    }
                    // The result is ignored, because every client ends its connection, often in the middle of a frame.
                    thread::spawn(move || Connection { stream, lie, tree }.serve());
                }
            }
        });
        Fake { port, thread: Some(thread), is_over }
    }

    pub fn address(&self) -> String {
        self.port.address().to_string()
    }
}

/// Ends the listener, because a test starts hundreds of these servers, and a process has only about a thousand file
/// descriptors.
impl Drop for Fake {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        // The listener checks `is_over` only after it has accepted a connection, so this drop connects once.
        let _ = TcpStream::connect(self.port.address());
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

#[derive(Debug, Default)]
struct Tree {
    zxid: i64,
    /// The names of the sequential nodes that were created.
    names: Vec<String>,
}

/// The serialised fields of a frame's body.
#[derive(Debug, Default)]
struct Body(Vec<u8>);

impl Body {
    fn int(mut self, value: i32) -> Body {
        self.0.extend(value.to_be_bytes());
        self
    }

    fn long(mut self, value: i64) -> Body {
        self.0.extend(value.to_be_bytes());
        self
    }

    fn bytes(mut self, bytes: &[u8]) -> Body {
        self.0.extend(bytes);
        self
    }

    fn buffer(self, bytes: &[u8]) -> Body {
        self.int(i32::try_from(bytes.len()).expect("buffers are short")).bytes(bytes)
    }

    fn stat(self, zxid: i64, owner: i64) -> Body {
        let body = self.long(zxid).long(zxid).long(0).long(0);
        body.int(0).int(0).int(0).long(owner).int(0).int(0).long(zxid)
    }
}

struct Connection {
    stream: TcpStream,
    lie: Lie,
    tree: Arc<Mutex<Tree>>,
}

impl Connection {
    fn serve(mut self) -> io::Result<()> {
        let hello = self.read()?;
        let mut fields = Fields(&hello);
        let (_version, _zxid, timeout) = (fields.int(), fields.long(), fields.int().unwrap_or(0));
        self.greet(timeout)?;
        loop {
            let request = self.read()?;
            let mut fields = Fields(&request);
            let (Some(xid), Some(code)) = (fields.int(), fields.int()) else { return Ok(()) };
            self.answer(xid, Op::from_code(code), fields)?;
        }
    }

    fn read(&mut self) -> io::Result<Vec<u8>> {
        let mut length = [0; 4];
        self.stream.read_exact(&mut length)?;
        let mut frame = vec![0; u32::from_be_bytes(length) as usize];
        self.stream.read_exact(&mut frame)?;
        Ok(frame)
    }

    fn greet(&mut self, timeout: i32) -> io::Result<()> {
        let granted = |timeout: i32| Body::default().int(0).int(timeout).long(SESSION);
        let body = match self.lie {
            Lie::NoiseForAHandshake => Body(b"HTTP/1.1 400 Bad Request, and so on".to_vec()),
            Lie::EmptyHandshake => Body::default(),
            Lie::EndlessPassword => granted(timeout).int(i32::MAX),
            Lie::NegativeTimeout => granted(-1).buffer(&[7; 16]).bytes(&[0]),
            Lie::NoTimeout => granted(0).buffer(&[7; 16]).bytes(&[0]),
            _ => granted(timeout).buffer(&[7; 16]).bytes(&[0]),
        };
        self.stream.write_all(&framed(&body.0))
    }

    fn answer(&mut self, xid: i32, op: Op, fields: Fields<'_>) -> io::Result<()> {
        let tree = Arc::clone(&self.tree);
        let mut tree = tree.lock().unwrap_or_else(PoisonError::into_inner);
        let body = match op {
            Op::Create | Op::Create2 | Op::CreateContainer => self.create(&mut tree, op, fields),
            Op::GetChildren | Op::GetChildren2 => self.list(&tree, op),
            Op::GetData => self.data(&tree),
            Op::Exists => Body::default().stat(1, 0),
            Op::Sync => Body::default().buffer(b"/"),
            Op::Multi => {
                // The result of one check that succeeded, and the header that ends the list of results.
                Body::default().int(13).bytes(&[0]).int(0).int(-1).bytes(&[1]).int(-1)
            }
            _ => Body::default(),
        };
        // The lie is told only in replies on which a grant of the lock depends.
        let matters = matches!(op, Op::Create2 | Op::GetChildren | Op::GetChildren2);
        let reply = |xid: i32, body: Body| framed(&Body::default().int(xid).long(tree.zxid).int(0).bytes(&body.0).0);
        match self.lie {
            Lie::EndlessFrame if matters => {
                self.stream.write_all(&i32::MAX.to_be_bytes())?;
                for _ in 0..1_000 {
                    self.stream.write_all(&[0; 1_000])?;
                    thread::sleep(Duration::from_millis(1));
                }
                Ok(())
            }
            Lie::NegativeFrame if matters => self.stream.write_all(&(-2_i32).to_be_bytes()),
            Lie::ShortFrame if matters => self.stream.write_all(&framed(&[1, 2, 3])),
            Lie::WrongXid if matters => self.stream.write_all(&reply(xid + 1_000, body)),
            Lie::InventedEvents if matters => {
                let event = Body::default().int(2).int(3).buffer(b"/never/watched");
                self.stream.write_all(&reply(-1, event))?;
                self.stream.write_all(&reply(-1, Body::default().int(2)))?;
                self.stream.write_all(&reply(xid, body))
            }
            Lie::FalseDeparture if op == Op::GetData => {
                let path = Fields(fields.0).string().unwrap_or_default();
                self.stream.write_all(&reply(xid, body))?;
                if path.contains("first~") {
                    let event = Body::default().int(2).int(3).buffer(path.as_bytes());
                    self.stream.write_all(&reply(-1, event))?;
                    // The client lists again immediately after such an event. The pause keeps the client from using a
                    // whole core.
                    thread::sleep(Duration::from_millis(50));
                }
                Ok(())
            }
            _ => self.stream.write_all(&reply(xid, body)),
        }
    }

    /// Returns the owner of the created nodes: a session id, or 0 for no session.
    fn owner(&self) -> i64 {
        match self.lie {
            Lie::CreatedForAnother => SESSION + 1,
            Lie::CreatedForNobody => 0,
            _ => SESSION,
        }
    }

    fn create(&self, tree: &mut Tree, op: Op, mut fields: Fields<'_>) -> Body {
        let mut path = fields.string().unwrap_or_default();
        tree.zxid += 1;
        if path.ends_with('-') {
            let number = if self.lie == Lie::CreatedBelowZero { -5 } else { tree.names.len() as i32 + 5 };
            path += &format!("{number:010}");
            tree.names.push(path.rsplit('/').next().unwrap_or_default().to_owned());
        }
        let owner = self.owner();
        match self.lie {
            Lie::ShortCreate if op == Op::Create2 => Body::default(),
            Lie::CreatedElsewhere if op == Op::Create2 => Body::default().buffer(b"/else/where").stat(tree.zxid, owner),
            _ if op == Op::Create => Body::default().buffer(path.as_bytes()),
            _ => Body::default().buffer(path.as_bytes()).stat(tree.zxid, owner),
        }
    }

    fn list(&self, tree: &Tree, op: Op) -> Body {
        let names = |names: &[String]| {
            let count = Body::default().int(i32::try_from(names.len()).expect("few names"));
            let body = names.iter().fold(count, |body, name| body.buffer(name.as_bytes()));
            // The reply to `getChildren2` ends with the stat of the directory.
            if op == Op::GetChildren2 { body.stat(1, 0) } else { body }
        };
        let with = |name: &str| names(&[tree.names.clone(), vec![name.to_owned()]].concat());
        match self.lie {
            Lie::EndlessListing => Body::default().int(i32::MAX),
            Lie::NegativeListing => Body::default().int(-7),
            Lie::ShortListing => Body::default().int(1).int(40).bytes(b"half"),
            Lie::NoiseForAListing => Body::default().int(1).buffer(&[0xff; 30]),
            Lie::ListingWithoutMe => names(&[]),
            Lie::ListingWithATwin => {
                let mut numbers = tree.names.iter().rev().filter_map(|name| name.rsplit('-').next());
                numbers.next().map_or_else(|| names(&[]), |number| with(&format!("twin~abcdefgh-WRITE-{number}")))
            }
            Lie::ShortData | Lie::FalseDeparture => with("first~abcdefgh-WRITE-0000000001"),
            _ => names(&tree.names),
        }
    }

    fn data(&self, tree: &Tree) -> Body {
        match self.lie {
            Lie::ShortData => Body::default().int(100).bytes(b"short"),
            _ => Body::default().buffer(b"{}").stat(tree.zxid, self.owner()),
        }
    }
}
