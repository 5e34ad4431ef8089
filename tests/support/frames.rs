//! The frames of ZooKeeper's protocol, for a proxy, a fake server or a raw client.
//!
//! Every frame is a length of four bytes and a body. The first frame in each direction is the handshake. After the
//! handshake, a request begins with its xid and opcode, and a reply with the xid of its request. The event of a watch
//! has the xid -1.

use std::io;

use tokio::io::AsyncReadExt;

pub(super) const NOTIFICATION_XID: i32 = -1;
const LONGEST_FRAME: usize = 16 << 20;

/// The kind of a frame, by the opcode of the request.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Op {
    /// The first frame of a connection in each direction.
    Handshake,
    /// The event of a watch, which the server sends without a request.
    WatchEvent,
    Create,
    Delete,
    Exists,
    GetData,
    SetData,
    GetAcl,
    SetAcl,
    GetChildren,
    Sync,
    Ping,
    GetChildren2,
    Check,
    Multi,
    Create2,
    RemoveWatches,
    CreateContainer,
    CreateTtl,
    Auth,
    SetWatches,
    CloseSession,
    Other(i32),
}

impl Op {
    pub(super) fn from_code(code: i32) -> Self {
        match code {
            1 => Self::Create,
            2 => Self::Delete,
            3 => Self::Exists,
            4 => Self::GetData,
            5 => Self::SetData,
            6 => Self::GetAcl,
            7 => Self::SetAcl,
            8 => Self::GetChildren,
            9 => Self::Sync,
            11 => Self::Ping,
            12 => Self::GetChildren2,
            13 => Self::Check,
            14 => Self::Multi,
            15 => Self::Create2,
            18 => Self::RemoveWatches,
            19 => Self::CreateContainer,
            21 => Self::CreateTtl,
            100 => Self::Auth,
            101 => Self::SetWatches,
            -11 => Self::CloseSession,
            other => Self::Other(other),
        }
    }

    fn begins_with_a_path(self) -> bool {
        !matches!(
            self,
            Self::Handshake
                | Self::Ping
                | Self::Multi
                | Self::Auth
                | Self::SetWatches
                | Self::CloseSession
                | Self::Other(_)
        )
    }
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Direction {
    ToServer,
    ToClient,
}

/// The first frame of a connection. The client's says which session it asks for, and the server's which session it
/// grants.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Hello {
    /// The zxid of the newest transaction that the client has seen. Only the client's handshake has this field.
    zxid: Option<i64>,
    pub timeout: i32,
    pub session: i64,
    pub password: Vec<u8>,
    pub read_only: bool,
}

impl Hello {
    pub(super) fn read(direction: Direction, frame: &[u8]) -> Option<Self> {
        let mut fields = Fields::of(frame);
        let _version = fields.int()?;
        let zxid = match direction {
            Direction::ToServer => Some(fields.long()?),
            Direction::ToClient => None,
        };
        let (timeout, session, password) = (fields.int()?, fields.long()?, fields.buffer()?.to_vec());
        // Servers and clients before 3.4 omit the read-only flag.
        let read_only = fields.take(1) == Some(&[1]);
        Some(Self { zxid, timeout, session, password, read_only })
    }

    /// Returns the handshake that opens a session with a timeout of this many milliseconds.
    pub fn of_a_new_session(timeout: i32) -> Self {
        Self { zxid: Some(0), timeout, session: 0, password: vec![0; 16], read_only: false }
    }

    /// Returns the client's handshake that resumes the session which this handshake of a server granted.
    pub fn take_over(&self) -> Vec<u8> {
        Self { zxid: Some(0), ..self.clone() }.frame()
    }

    pub(super) fn frame(&self) -> Vec<u8> {
        let mut body = vec![0; 4];
        if let Some(zxid) = self.zxid {
            body.extend(zxid.to_be_bytes());
        }
        body.extend(self.timeout.to_be_bytes());
        body.extend(self.session.to_be_bytes());
        body.extend(u32::try_from(self.password.len()).expect("passwords are short").to_be_bytes());
        body.extend(&self.password);
        body.push(self.read_only.into());
        framed(&body)
    }
}

/// Returns the body as a frame, with its length in front.
pub fn framed(body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).expect("frames are short");
    [&length.to_be_bytes(), body].concat()
}

/// Returns a reply without a body, with this error code.
pub(super) fn refusal(xid: i32, code: i32) -> Vec<u8> {
    let mut body = xid.to_be_bytes().to_vec();
    body.extend([0; 8]);
    body.extend(code.to_be_bytes());
    framed(&body)
}

/// Returns a server's list of children with one more name.
pub(super) fn with_name(list: &[u8], name: &str) -> Vec<u8> {
    // The length of the frame (4 bytes) and the header of the reply (16 bytes). The number of names follows.
    const HEAD: usize = 4 + 16;
    let count = Fields(&list[HEAD..]).int().expect("a list has a length") + 1;
    let length = u32::try_from(name.len()).expect("names are short");
    framed(&[&list[4..HEAD], &count.to_be_bytes(), &length.to_be_bytes(), name.as_bytes(), &list[HEAD + 4..]].concat())
}

/// Reads one frame, and returns it with its length in front.
pub(super) async fn read_frame(from: &mut (impl AsyncReadExt + Unpin)) -> io::Result<Vec<u8>> {
    let mut frame = vec![0; 4];
    from.read_exact(&mut frame).await?;
    let length = Fields(&frame).int().and_then(|length| usize::try_from(length).ok());
    match length {
        Some(length) if length <= LONGEST_FRAME => {
            frame.resize(4 + length, 0);
            from.read_exact(&mut frame[4..]).await?;
            Ok(frame)
        }
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// A reader of serialised fields. Its methods return `None` if the field is truncated.
#[derive(Clone, Copy)]
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl<'a> Fields<'a> {
    pub(super) fn of(frame: &'a [u8]) -> Self {
        Self(&frame[4..])
    }

    pub(super) fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (field, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(field)
    }

    pub(super) fn int(&mut self) -> Option<i32> {
        Some(i32::from_be_bytes(self.take(4)?.try_into().ok()?))
    }

    pub(super) fn long(&mut self) -> Option<i64> {
        Some(i64::from_be_bytes(self.take(8)?.try_into().ok()?))
    }

    fn buffer(&mut self) -> Option<&'a [u8]> {
        // A length of -1 stands for a missing buffer.
        let length = self.int()?;
        self.take(usize::try_from(length).unwrap_or(0))
    }

    pub(super) fn string(&mut self) -> Option<String> {
        Some(String::from_utf8_lossy(self.buffer()?).into_owned())
    }

    fn acls(&mut self) -> Option<()> {
        for _ in 0..self.int()? {
            let (_permissions, _scheme, _id) = (self.int()?, self.buffer()?, self.buffer()?);
        }
        Some(())
    }

    /// Skips the fields after the path of one operation of a transaction.
    fn skip_part(&mut self, op: Op) -> Option<()> {
        match op {
            Op::Create | Op::Create2 | Op::CreateContainer | Op::CreateTtl => {
                let _data = self.buffer()?;
                self.acls()?;
                let _mode = self.int()?;
                if op == Op::CreateTtl {
                    self.take(8)?;
                }
            }
            Op::SetData => {
                let (_data, _version) = (self.buffer()?, self.int()?);
            }
            Op::Delete | Op::Check => {
                self.int()?;
            }
            Op::GetData | Op::GetChildren => {
                let _watch = self.take(1)?;
            }
            _ => return None,
        }
        Some(())
    }

    /// Returns the operations of a transaction, up to the first unreadable one.
    fn parts(&mut self) -> Vec<String> {
        let mut parts = Vec::new();
        while let Some(code) = self.int() {
            let last = self.take(1).is_none_or(|done| done != [0]);
            let (false, Some(_error), Some(path)) = (last, self.int(), self.string()) else {
                break;
            };
            let op = Op::from_code(code);
            parts.push(format!("{op:?} {path}"));
            if self.skip_part(op).is_none() {
                break;
            }
        }
        parts
    }
}

/// Returns the path of a request, or the operations of a transaction, or an empty text for a request without a path.
pub(super) fn path(op: Op, mut body: Fields<'_>) -> String {
    if op == Op::Multi {
        body.parts().join(", ")
    } else if op.begins_with_a_path() {
        body.string().unwrap_or_default()
    } else {
        String::new()
    }
}
