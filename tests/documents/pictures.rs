//! Makes the pictures of the pages. The numbers in them come from the code. `make pages` writes the pictures.

use std::any::Any;
use std::fmt::Write as _;
use std::fs;
use std::future::IntoFuture;
use std::time::Duration;

use support::cost::SESSION;
use support::page::rows;
use zk_rwlock::coordinator::{Lease, SessionStore};
use zk_rwlock::queue::MemberState;
use zk_rwlock::{Memory, Mode, RwLock};

use crate::snippets::{WRITE, read, root};

/// The session timeout of the pictures.
const TIMEOUT: Duration = Duration::from_secs(10);
const WIDTH: f64 = 480.0;

/// The colours for a light and a dark page. `t` is text, `s` small text, `h` a heading, `l` a line, `a` an arrow, `w` a writer or what
/// waits, `r` a reader or what holds, `g` a box.
const STYLE: &str = "\
.zk-bg{fill:#ffffff}.zk-t{fill:#1f2328;font:15px sans-serif}.zk-s{fill:#57606a;font:14px sans-serif}
.zk-h{fill:#1f2328;font:bold 15px sans-serif}.zk-l{stroke:#8c959f;stroke-width:1.5;fill:none}.zk-a{stroke:#0550ae;stroke-width:1.8;fill:none}
.zk-p{fill:#0550ae}.zk-w{fill:#fae3c4;stroke:#9a6700}.zk-r{fill:#d2e9d6;stroke:#1a7f37}.zk-g{fill:#eaeef2;stroke:#8c959f}
@media (prefers-color-scheme:dark){.zk-bg{fill:#0d1117}.zk-t,.zk-h{fill:#e6edf3}.zk-s{fill:#9da7b1}.zk-l{stroke:#6e7681}.zk-a{stroke:#79c0ff}
.zk-p{fill:#79c0ff}.zk-w{fill:#4d3800;stroke:#d29922}.zk-r{fill:#12381f;stroke:#3fb950}.zk-g{fill:#21262d;stroke:#6e7681}}
";

#[derive(Clone, Copy)]
enum Anchor {
    Start,
    Middle,
    End,
}

struct Picture {
    name: &'static str,
    title: &'static str,
    height: f64,
    body: String,
}

impl Picture {
    fn new(name: &'static str, title: &'static str, height: f64) -> Picture {
        Picture { name, title, height, body: String::new() }
    }

    fn text(&mut self, class: &str, x: f64, y: f64, anchor: Anchor, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let text = text.replace('&', "&amp;").replace('<', "&lt;");
        let _ = writeln!(
            self.body,
            "<text class=\"zk-{class}\" x=\"{x}\" y=\"{y}\" text-anchor=\"{anchor}\">{text}</text>"
        );
    }

    fn rect(&mut self, class: &str, (x, y): (f64, f64), (width, height): (f64, f64)) {
        let _ = writeln!(
            self.body,
            "<rect class=\"zk-{class}\" x=\"{x:.0}\" y=\"{y:.0}\" width=\"{width:.0}\" height=\"{height:.0}\" rx=\"4\"/>"
        );
    }

    /// A box with a text in its middle.
    fn labelled(&mut self, class: &str, at: (f64, f64), size: (f64, f64), text: &str) {
        self.rect(class, at, size);
        self.text("t", at.0 + size.0 / 2.0, at.1 + size.1 / 2.0 + 5.0, Anchor::Middle, text);
    }

    fn line(&mut self, from: (f64, f64), to: (f64, f64)) {
        let _ =
            writeln!(self.body, "<path class=\"zk-l\" d=\"M{:.0} {:.0}L{:.0} {:.0}\"/>", from.0, from.1, to.0, to.1);
    }

    /// A horizontal arrow with a text above. A dashed arrow is an answer or an event.
    fn arrow(&mut self, y: f64, from: f64, to: f64, is_dashed: bool, text: &str) {
        let way = if to > from { 1.0 } else { -1.0 };
        let dash = if is_dashed { " stroke-dasharray=\"6 4\"" } else { "" };
        let _ = writeln!(self.body, "<path class=\"zk-a\" d=\"M{from:.0} {y:.0}H{:.0}\"{dash}/>", to - way * 8.0);
        let _ = writeln!(self.body, "<path class=\"zk-p\" d=\"M{to:.0} {y:.0}l{:.0} -5v10z\"/>", -way * 10.0);
        self.text("s", (from + to) / 2.0, y - 6.0, Anchor::Middle, text);
    }

    /// An arrow that bends above the boxes.
    fn bow(&mut self, from: f64, to: f64, y: f64, high: f64) {
        let _ = writeln!(
            self.body,
            "<path class=\"zk-a\" d=\"M{from:.0} {y:.0}C{from:.0} {:.0} {to:.0} {:.0} {to:.0} {:.0}\"/>",
            y - high,
            y - high,
            y - 8.0
        );
        let _ = writeln!(self.body, "<path class=\"zk-p\" d=\"M{to:.0} {y:.0}l-5 -10h10z\"/>");
    }

    fn svg(&self) -> String {
        let Picture { name, title, height, body } = self;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-labelledby=\"zk-{name}\" \
             style=\"max-width:600px;width:100%\">\n<title id=\"zk-{name}\">{title}</title>\n<style>\n{STYLE}</style>\n\
             <rect class=\"zk-bg\" width=\"{WIDTH}\" height=\"{height}\" rx=\"8\"/>\n{body}</svg>\n"
        )
    }
}

/// Returns for how long a lease lasts after the request that renewed it was sent.
fn lease() -> Duration {
    let now = Lease::new(TIMEOUT).now();
    let store = SessionStore::new(Lease::with_clock(TIMEOUT, Box::new(move || now)));
    store.record_begin(now);
    store.lease().remaining().expect("the lease has just begun")
}

/// Returns the time between two heartbeats: of two requests each, as `docs/cost.md` has them.
fn heartbeat() -> Duration {
    Duration::from_secs(60) / u32::try_from(SESSION.in_the_minute / 2).expect("few")
}

/// Three parties: their names and the lines below them.
fn parties(picture: &mut Picture, names: [&str; 3]) -> [f64; 3] {
    let at = [70.0, 240.0, 410.0];
    for (x, name) in at.into_iter().zip(names) {
        picture.line((x, 40.0), (x, picture.height - 12.0));
        picture.rect("g", (x - 62.0, 10.0), (124.0, 30.0));
        picture.text("h", x, 30.0, Anchor::Middle, name);
    }
    at
}

fn protocol() -> Picture {
    let mut it = Picture::new(
        "protocol",
        "A writer enters, a reader queues behind it, and the writer's release lets the reader in",
        348.0,
    );
    let [writer, servers, reader] = parties(&mut it, ["a writer", "ZooKeeper", "a reader"]);
    it.rect("w", (writer - 7.0, 104.0), (14.0, 136.0));
    it.rect("r", (reader - 7.0, 266.0), (14.0, 42.0));
    it.arrow(72.0, writer, servers, false, "create WRITE-7, list");
    it.arrow(104.0, servers, writer, true, "first: granted");
    it.arrow(136.0, reader, servers, false, "create READ-8, list");
    it.arrow(168.0, servers, reader, true, "behind WRITE-7");
    it.arrow(200.0, reader, servers, false, "watch WRITE-7");
    it.arrow(240.0, writer, servers, false, "set and delete it");
    it.arrow(266.0, servers, reader, true, "set: granted");
    it.arrow(308.0, reader, servers, false, "delete READ-8");
    it.text("s", writer + 14.0, 170.0, Anchor::Start, "holds");
    it.text("s", reader + 14.0, 292.0, Anchor::Start, "holds");
    it
}

fn lease_to_scale() -> Picture {
    let mut it = Picture::new(
        "lease",
        "For how long a holder that is cut off holds: its lease ends before the servers may give the lock away",
        178.0,
    );
    let (begin, second) = (24.0, 40.0);
    let x = |time: Duration| begin + time.as_secs_f64() * second;
    let (ends, timeout) = (x(lease()), x(TIMEOUT));
    it.text("h", 12.0, 24.0, Anchor::Start, "A holder is cut off. The session timeout is 10 s.");
    it.labelled("r", (begin, 66.0), (ends - begin, 28.0), "held: the lease");
    it.labelled("g", (ends, 66.0), (timeout - ends, 28.0), "lost");
    it.labelled("w", (timeout, 66.0), (WIDTH - 8.0 - timeout, 28.0), "next");
    let beat = x(heartbeat());
    it.line((beat, 54.0), (beat, 94.0));
    it.text(
        "s",
        beat - 4.0,
        50.0,
        Anchor::Start,
        &format!("{} s: a heartbeat would renew the lease", heartbeat().as_secs()),
    );
    for (at, y, anchor, text) in [
        (begin, 114.0, Anchor::Start, "0 s: the last request that the leader hears is sent".to_owned()),
        (ends, 136.0, Anchor::End, format!("{:.1} s: the holder says lost, by its own clock", lease().as_secs_f64())),
        (timeout, 158.0, Anchor::End, format!("{} s: the servers may give the lock to the next", TIMEOUT.as_secs())),
    ] {
        it.line((at, 60.0), (at, y - 10.0));
        let shift = if matches!(anchor, Anchor::End) { -6.0 } else { 6.0 };
        it.text("s", at + shift, y, anchor, &text);
    }
    it
}

/// The queue of six contenders, as the code decides: who holds, and who watches whom.
async fn queue() -> Picture {
    let mut it = Picture::new("queue", "Six contenders in a queue: who holds, and who watches whom", 190.0);
    let lock = RwLock::new(&Memory::new(), "/l").expect("valid");
    let mut contenders = Vec::new();
    for mode in [Mode::Read, Mode::Read, Mode::Write, Mode::Read, Mode::Read, Mode::Write] {
        let (read, write) = (lock.read().into_future(), lock.write().into_future());
        // A contender that has the lock keeps it.
        let mut contender = tokio_test::task::spawn(async move {
            match mode {
                Mode::Read => Box::new(read.await) as Box<dyn Any>,
                Mode::Write => Box::new(write.await),
            }
        });
        let granted = contender.poll();
        contenders.push((granted, contender));
    }
    let queue = lock.queue().await.expect("the ensemble answers");
    it.text("h", 12.0, 24.0, Anchor::Start, "Who watches whom: no departure wakes them all");
    let (wide, step, y) = (66.0, 78.0, 112.0);
    let x = |place: usize| 10.0 + step * place as f64;
    for (place, member) in queue.members.iter().enumerate() {
        let class = if member.mode == Mode::Read { "r" } else { "w" };
        it.labelled(class, (x(place), y), (wide, 30.0), &format!("{} {}", member.mode, place + 1));
        let state = if member.state == MemberState::Holds { "holds" } else { "waits" };
        it.text("s", x(place) + wide / 2.0, y + 50.0, Anchor::Middle, state);
        if let MemberState::Waits { behind } = &member.state {
            let ahead = queue.members.iter().position(|other| other.node == *behind).expect("it is there");
            it.bow(x(place) + wide / 2.0 - 8.0, x(ahead) + wide / 2.0 + 8.0, y, 24.0 * (place - ahead) as f64 + 10.0);
        }
    }
    it.text(
        "s",
        12.0,
        182.0,
        Anchor::Start,
        "A reader watches the last writer before it, a writer the node before it.",
    );
    it
}

fn states() -> Picture {
    let mut it = Picture::new("states", "The states of a hold: held, suspect, lost", 150.0);
    it.labelled("r", (10.0, 30.0), (96.0, 36.0), "Held");
    it.labelled("w", (192.0, 30.0), (96.0, 36.0), "Suspect");
    it.labelled("g", (374.0, 30.0), (96.0, 36.0), "Lost");
    it.arrow(44.0, 106.0, 192.0, false, "cut off");
    it.arrow(62.0, 192.0, 106.0, false, "");
    it.text("s", 149.0, 80.0, Anchor::Middle, "back in time");
    it.arrow(48.0, 288.0, 374.0, false, "lease over");
    it.text("s", 10.0, 108.0, Anchor::Start, "Suspect: still yours, and nobody else is granted the lock.");
    it.text("s", 10.0, 130.0, Anchor::Start, "Lost stays lost: also after an eviction, or the end of the session.");
    it
}

fn keep() -> Picture {
    let mut it = Picture::new("keep", "A reader keeps its node between uses until a writer asks for it", 300.0);
    let [reader, servers, writer] = parties(&mut it, ["a reader", "ZooKeeper", "a writer"]);
    it.rect("r", (reader - 7.0, 72.0), (14.0, 158.0));
    it.rect("w", (writer - 7.0, 270.0), (14.0, 18.0));
    it.arrow(72.0, reader, servers, false, "create READ-1");
    for y in [92.0, 110.0, 128.0] {
        it.text("s", reader + 14.0, y, Anchor::Start, "use: no request");
    }
    it.arrow(152.0, writer, servers, false, "create WRITE-2, list");
    it.arrow(180.0, writer, servers, false, "ask: set the directory");
    it.arrow(206.0, servers, reader, true, "asked");
    it.arrow(240.0, reader, servers, false, "delete READ-1");
    it.arrow(270.0, servers, writer, true, "gone: granted");
    it
}

async fn fencing() -> Picture {
    let lock = RwLock::new(&Memory::new(), "/l").expect("valid");
    let mut tokens = Vec::new();
    for _ in 0..2 {
        tokens.push(lock.write().await.expect("free").fencing_token());
    }
    assert!(tokens[1] > tokens[0]);
    let mut it = Picture::new("fencing", "A late holder is refused by the system that it writes to", 262.0);
    let [first, second, system] = parties(&mut it, ["holder A", "holder B", "your system"]);
    it.text("s", first + 12.0, 62.0, Anchor::Start, "token 33");
    it.rect("g", (first - 7.0, 72.0), (14.0, 130.0));
    it.text("s", first + 14.0, 100.0, Anchor::Start, "stopped");
    it.text("s", second + 12.0, 130.0, Anchor::Start, "token 34");
    it.arrow(160.0, second, system, false, "write, 34");
    it.text("s", system - 8.0, 182.0, Anchor::End, "keeps 34");
    it.arrow(222.0, first, system, false, "");
    it.text("s", first + 12.0, 216.0, Anchor::Start, "write, 33");
    it.text("h", system - 8.0, 246.0, Anchor::End, "refused: 33 < 34");
    it
}

/// The decision, from the first rows of the table "I want" of the front page.
fn which() -> Picture {
    let page = read(&root().join("README.md"));
    let section = page.split("\n## I want\n").nth(1).and_then(|rest| rest.split("\n## ").next()).expect("the section");
    let rows: Vec<(String, String)> = rows(section)
        .iter()
        .take(9)
        .map(|row| (row[0].to_owned(), row[1].split('`').nth(1).expect("a name in code").to_owned()))
        .collect();
    let lines = |want: &str| match want.len() {
        0..=42 => vec![want.to_owned()],
        _ => {
            let cut = want[..42].rfind(' ').expect("a space");
            vec![want[..cut].to_owned(), want[cut + 1..].to_owned()]
        }
    };
    let high = |want: &str| 20.0 * lines(want).len() as f64 + 16.0;
    let mut it =
        Picture::new("which", "Which type do I need", 44.0 + rows.iter().map(|(want, _)| high(want)).sum::<f64>());
    it.text("h", 12.0, 24.0, Anchor::Start, "I want");
    it.text("h", 394.0, 24.0, Anchor::Middle, "so I take");
    let mut y = 36.0;
    for (want, take) in &rows {
        for (at, line) in lines(want).iter().enumerate() {
            it.text("s", 12.0, y + 22.0 + 20.0 * at as f64, Anchor::Start, line);
        }
        it.labelled("g", (318.0, y + high(want) / 2.0 - 14.0), (152.0, 28.0), take);
        y += high(want);
        it.line((12.0, y), (470.0, y));
    }
    it
}

#[tokio::test]
async fn the_pictures_have_the_numbers_of_the_code() {
    let pictures = [protocol(), lease_to_scale(), queue().await, states(), keep(), fencing().await, which()];
    for picture in pictures {
        let file = root().join(format!("docs/{}.svg", picture.name));
        let made = picture.svg();
        if std::env::var_os(WRITE).is_some() {
            fs::write(&file, &made).expect("writable");
        }
        assert!(read(&file) == made, "{} differs from what the code makes: run `make pages`", file.display());
    }
}
