//! Changes a ZooKeeper snapshot file as no client can: a directory's counter of sequential children, and the zxid in the
//! file's name. Use it to reach the end of the sequence numbers or of the zxids.
//!
//! In the file, a node is its path, its data, a number for its ACL, and its stat. The file ends with a checksum of all
//! bytes before it, and the string `/`.

use std::fs;
use std::path::{Path, PathBuf};

/// The length of the end of the file: a checksum of 8 bytes, and a string (a length of 4 bytes, and 1 byte).
const SEAL: usize = 8 + 4 + 1;

/// The offset of the counter of sequential children in a stat. Before the counter come czxid, mzxid, ctime and mtime (8
/// bytes each) and version (4 bytes).
const COUNTER_IN_STAT: usize = 4 * 8 + 4;

/// Changes the newest snapshot below `data`, so that the next sequential child of `directory` gets the number `next`.
///
/// The server must be down. It must have been restarted after the last change of its data, so that the snapshot has all
/// data, and must write no digests into its snapshots.
pub fn set_next_sequence(data: &Path, directory: &str, next: i32) {
    let file = newest(&data.join("version-2"));
    let mut bytes = fs::read(&file).expect("the snapshot can be read");
    let counter = counter_of(&bytes, directory);
    bytes[counter..counter + 4].copy_from_slice(&next.to_be_bytes());
    let sealed = bytes.len() - SEAL;
    let checksum = u64::from(adler2::adler32_slice(&bytes[..sealed]));
    bytes[sealed..sealed + 8].copy_from_slice(&checksum.to_be_bytes());
    fs::write(&file, bytes).expect("the snapshot can be written");
}

/// Gives the newest snapshot below `data` this zxid in its name, and removes all other files there. The server must be
/// down.
pub fn call_newest_after(data: &Path, zxid: i64) {
    let directory = data.join("version-2");
    let newest = newest(&directory);
    for entry in fs::read_dir(&directory).expect("the server has data") {
        let path = entry.expect("readable").path();
        if path != newest {
            fs::remove_file(path).expect("writable");
        }
    }
    fs::rename(newest, directory.join(format!("snapshot.{zxid:x}"))).expect("writable");
}

/// Returns the offset in the file of the directory's counter (4 bytes).
fn counter_of(bytes: &[u8], directory: &str) -> usize {
    let length = |at: usize| i32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    let path = [&u32::try_from(directory.len()).expect("a short path").to_be_bytes(), directory.as_bytes()].concat();
    let found: Vec<_> = bytes.windows(path.len()).enumerate().filter(|(_, window)| *window == path).collect();
    let [(at, _)] = found[..] else { panic!("{} nodes are called {directory} in the snapshot", found.len()) };
    let data = at + path.len();
    let acl = data + 4 + usize::try_from(length(data)).unwrap_or(0);
    acl + 8 + COUNTER_IN_STAT
}

fn newest(directory: &Path) -> PathBuf {
    let entries = fs::read_dir(directory).expect("the server has data").map(|entry| entry.expect("readable").path());
    let zxid = |path: &PathBuf| {
        let name = path.file_name()?.to_str()?;
        u64::from_str_radix(name.strip_prefix("snapshot.")?, 16).ok()
    };
    entries.filter(|path| zxid(path).is_some()).max_by_key(zxid).expect("the server has written a snapshot")
}
