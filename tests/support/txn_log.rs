//! A reader of a ZooKeeper server's transaction log, which has every write in order, with its session. Use it to check
//! a run by what the server did rather than by what clients report.
//!
//! A log file begins with a header of 16 bytes. A record is a checksum, a length, the transaction, and the byte `B`.
//! Zeros follow the last record. A transaction is a header and a body, and digests may follow.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A transaction that was carried out or refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Txn {
    pub zxid: i64,
    /// The time of the leader's proposal, since 1970, rounded down to a millisecond.
    pub time: Duration,
    pub session: i64,
    pub ops: Vec<Op>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    Create {
        path: String,
        data: Vec<u8>,
        ephemeral: bool,
    },
    Delete {
        path: String,
    },
    Set {
        path: String,
        data: Vec<u8>,
    },
    Check {
        path: String,
    },
    /// The server refused an operation with this error code.
    Refused {
        code: i32,
    },
    /// The session begins.
    Begin,
    /// The session ends, and its ephemeral nodes are removed.
    End,
}

const HEADER: usize = 16;

/// Returns all transactions of the standalone server with this data directory.
pub fn of_server(data: &Path) -> Vec<Txn> {
    read(data).into_values().collect()
}

/// Returns all transactions that a majority of the servers with these data directories has logged. One server is not
/// enough: it may lack transactions that it received in a snapshot, or have a transaction that no other server has
/// accepted.
pub fn of_ensemble(data: &[PathBuf]) -> Vec<Txn> {
    let mut logged: BTreeMap<i64, (usize, Txn)> = BTreeMap::new();
    for (zxid, txn) in data.iter().flat_map(|data| read(data)) {
        logged.entry(zxid).or_insert((0, txn)).0 += 1;
    }
    logged.into_values().filter(|(count, _)| 2 * count > data.len()).map(|(_, txn)| txn).collect()
}

/// Reads the transactions in this data directory, by zxid.
fn read(data: &Path) -> BTreeMap<i64, Txn> {
    let files = fs::read_dir(data.join("version-2")).expect("the server has data");
    let files = files.map(|file| file.expect("readable").path());
    let mut txns = BTreeMap::new();
    for file in files.filter(|file| file.file_name().is_some_and(|name| name.to_string_lossy().starts_with("log."))) {
        let bytes = fs::read(&file).expect("the log can be read");
        let mut rest = Bytes(bytes.get(HEADER..).unwrap_or_default());
        while let Some(record) = rest.record() {
            let (zxid, txn) =
                Bytes(record).txn().unwrap_or_else(|| panic!("an unreadable record in {}", file.display()));
            txns.insert(zxid, txn);
        }
    }
    txns
}

struct Bytes<'b>(&'b [u8]);

impl<'b> Bytes<'b> {
    fn take(&mut self, count: usize) -> Option<&'b [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn int(&mut self) -> Option<i32> {
        self.take(4)?.try_into().ok().map(i32::from_be_bytes)
    }

    fn long(&mut self) -> Option<i64> {
        self.take(8)?.try_into().ok().map(i64::from_be_bytes)
    }

    /// Reads a length and that many bytes. A negative length means an empty buffer.
    fn buffer(&mut self) -> Option<&'b [u8]> {
        let length = self.int()?;
        self.take(usize::try_from(length).unwrap_or(0))
    }

    fn text(&mut self) -> Option<String> {
        String::from_utf8(self.buffer()?.to_vec()).ok()
    }

    /// Returns the bytes of the next transaction, or `None` at the end. The last record of a killed server may be
    /// truncated.
    fn record(&mut self) -> Option<&'b [u8]> {
        let (sum, bytes) = (self.long()?, self.buffer()?);
        (!bytes.is_empty() && self.take(1)? == b"B" && sum == i64::from(adler2::adler32_slice(bytes))).then_some(bytes)
    }

    fn txn(&mut self) -> Option<(i64, Txn)> {
        let (session, _number, zxid) = (self.long()?, self.int()?, self.long()?);
        let time = Duration::from_millis(self.long()?.try_into().ok()?);
        let mut ops = match self.int()? {
            MULTI => {
                let count = self.int()?;
                (0..count).map(|_| (self.int()?, self.buffer()?).op()).collect::<Option<Vec<_>>>()?
            }
            kind => vec![(kind, self.0).op()?],
        };
        // A refused transaction lists all operations up to the refused one, but none of them was carried out.
        if let Some(refused) = ops.iter().position(|op| matches!(op, Op::Refused { .. })) {
            ops = vec![ops.swap_remove(refused)];
        }
        Some((zxid, Txn { zxid, time, session, ops }))
    }
}

const MULTI: i32 = 14;

trait Body {
    /// Reads an operation. Returns `None` if its body is not readable.
    fn op(self) -> Option<Op>;
}

impl Body for (i32, &[u8]) {
    fn op(self) -> Option<Op> {
        let mut body = Bytes(self.1);
        Some(match self.0 {
            -1 => Op::Refused { code: body.int()? },
            -10 => Op::Begin,
            -11 => Op::End,
            // `create`, `create2`, `createContainer` and `createTTL`.
            kind @ (1 | 15 | 19 | 21) => {
                let (path, data) = (body.text()?, body.buffer()?.to_vec());
                for _ in 0..body.int()? {
                    let _acl = (body.int()?, body.buffer()?, body.buffer()?);
                }
                let ephemeral = matches!(kind, 1 | 15) && body.take(1)? == [1];
                Op::Create { path, data, ephemeral }
            }
            2 | 20 => Op::Delete { path: body.text()? },
            5 => Op::Set { path: body.text()?, data: body.buffer()?.to_vec() },
            // `setACL` counts as a check, because neither changes data.
            7 | 13 => Op::Check { path: body.text()? },
            kind => panic!("a transaction of the unknown kind {kind}"),
        })
    }
}
