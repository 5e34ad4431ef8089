//! A proxy that changes a server's frames at random until [`Garbler::calm`]. Use it to show that no garbled frame
//! causes a panic, a hang or a wrong grant.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use super::frames::framed;
use super::port::Port;

/// The number of frames that pass unchanged for each garbled frame, on average.
const SPARED: u64 = 8;

/// How a frame is garbled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Garbling {
    /// The frame is truncated, extended, repeated, late or missing, or has another length, xid or error code. Or the
    /// connection ends within the frame.
    Shape,
    /// As `Shape`, or some bytes of the frame are replaced, so that the frame may be well formed but false. If a frame is
    /// truncated, the next frames complete it, and so a name in a listing may become another name.
    Bytes,
}

/// The lengths that a garbled frame may claim.
const LENGTHS: [i32; 8] = [0, -1, i32::MIN, i32::MAX, 1 << 30, 3, 15, 17];

/// The xids that a garbled frame may have. Some have a special meaning in the protocol, and some belong to no request. A
/// reply with the xid of another request would be a well-formed false reply.
const NUMBERS: [i32; 6] = [-1, -2, -4, -8, 0, i32::MAX];

/// The error codes that a garbled frame may have: the codes of ZooKeeper, and some codes that ZooKeeper does not have.
const CODES: [i32; 12] = [0, -1, -4, -8, -101, -102, -103, -110, -111, -112, -118, 7];

/// A proxy that serves until the process ends.
#[derive(Debug)]
pub struct Garbler {
    port: Port,
    is_calm: Arc<AtomicBool>,
}

impl Garbler {
    pub fn start(server: &str, garbling: Garbling, seed: u64) -> Garbler {
        let port = Port::reserve();
        let (listener, server, is_calm) = (port.listen(), server.to_owned(), Arc::new(AtomicBool::new(false)));
        let (calm, dice) = (Arc::clone(&is_calm), Arc::new(AtomicU64::new(seed)));
        thread::spawn(move || {
            for client in listener.incoming() {
                let (Ok(client), Ok(server)) = (client, TcpStream::connect(&server)) else { return };
                let (is_calm, dice) = (Arc::clone(&calm), Arc::clone(&dice));
                let connection = Connection { garbling, is_calm, dice, late: vec![], breaks_off: false };
                // The result is ignored, because every connection ends with an error or a close of the client or the
                // server.
                thread::spawn(move || connection.serve(client, server));
            }
        });
        Garbler { port, is_calm }
    }

    pub fn address(&self) -> String {
        self.port.address().to_string()
    }

    /// Stops the garbling. From now on all frames pass unchanged.
    pub fn calm(&self) {
        self.is_calm.store(true, Ordering::Relaxed);
    }
}

struct Connection {
    garbling: Garbling,
    is_calm: Arc<AtomicBool>,
    dice: Arc<AtomicU64>,
    /// A frame that is held back, and sent after the next frame.
    late: Vec<u8>,
    /// Whether the connection ends after the frame that is being sent.
    breaks_off: bool,
}

impl Connection {
    fn serve(mut self, client: TcpStream, server: TcpStream) -> io::Result<()> {
        let (mut from_client, mut to_server) = (client.try_clone()?, server.try_clone()?);
        thread::spawn(move || {
            let _ended = io::copy(&mut from_client, &mut to_server);
            let _closed = to_server.shutdown(Shutdown::Both);
        });
        let (mut from_server, mut to_client) = (server, client);
        let passed = self.pass(&mut from_server, &mut to_client);
        let _closed = to_client.shutdown(Shutdown::Both);
        passed
    }

    fn pass(&mut self, from: &mut TcpStream, to: &mut TcpStream) -> io::Result<()> {
        loop {
            let mut length = [0; 4];
            from.read_exact(&mut length)?;
            let mut body = vec![0; u32::from_be_bytes(length) as usize];
            from.read_exact(&mut body)?;
            let late = std::mem::take(&mut self.late);
            let is_spared = self.is_calm.load(Ordering::Relaxed) || self.below(SPARED) != 0;
            let frame = if is_spared { framed(&body) } else { self.garbled(body) };
            to.write_all(&frame)?;
            if self.breaks_off {
                return Ok(());
            }
            to.write_all(&late)?;
        }
    }

    fn garbled(&mut self, mut body: Vec<u8>) -> Vec<u8> {
        let (whole, length) = (framed(&body), body.len());
        match self.below(if self.garbling == Garbling::Shape { 9 } else { 14 }) {
            0 => {
                body.truncate(self.at(length));
                framed(&body)
            }
            1 => {
                self.breaks_off = self.garbling == Garbling::Shape;
                whole[..self.at(whole.len())].to_vec()
            }
            2 => {
                let more = self.at(40);
                body.extend((0..more).map(|_| self.roll().to_le_bytes()[0]));
                framed(&body)
            }
            3 => [&self.one_of(&LENGTHS).to_be_bytes(), &body[..]].concat(),
            4 => whole.repeat(2),
            5 => {
                self.late = whole;
                vec![]
            }
            6 => vec![],
            7 => self.with(body, 0, self.one_of(&NUMBERS)),
            8 => self.with(body, 12, self.one_of(&CODES)),
            _ => {
                for _ in 0..=self.below(3) {
                    let at = self.at(length);
                    let byte = self.roll().to_le_bytes()[0];
                    if let Some(old) = body.get_mut(at) {
                        *old = byte;
                    }
                }
                framed(&body)
            }
        }
    }

    /// Returns the frame with `number` written at the offset `at`, or unchanged if the frame is too short.
    fn with(&self, mut body: Vec<u8>, at: usize, number: i32) -> Vec<u8> {
        if let Some(place) = body.get_mut(at..at + 4) {
            place.copy_from_slice(&number.to_be_bytes());
        }
        framed(&body)
    }

    fn one_of(&self, all: &[i32]) -> i32 {
        all[self.at(all.len())]
    }

    fn at(&self, end: usize) -> usize {
        self.below(end.max(1) as u64) as usize
    }

    fn below(&self, end: u64) -> u64 {
        self.roll() % end
    }

    /// Returns a random number (splitmix64).
    fn roll(&self) -> u64 {
        let state = self.dice.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}
