//! A real standalone ZooKeeper server on a loopback port of its own. A test can stop, freeze and restart it, ask for
//! its counters with four-letter words, set its numbers, and end sessions as an operator can. A watchdog ends the
//! server with its tests.

use std::fs::{self, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::clock::Clock;
use super::frames::{Hello, framed};
use super::port::Port;
use super::process;
use super::rounds::{Ends, shared};
use super::snapshot;
use super::txn_log::{self, Txn};

/// The tick of the servers. A session expires on a multiple of it, so a short tick keeps tests of expiry short.
pub const TICK: Duration = Duration::from_millis(200);

const STARTUP_LIMIT: Duration = Duration::from_secs(120);
const POLL_INTERVAL: Duration = Duration::from_millis(20);
const FOUR_LETTER_LIMIT: Duration = Duration::from_secs(5);
/// The limit for an answer during the start: a starting server may accept a question and never answer.
const STARTING_FOUR_LETTER_LIMIT: Duration = Duration::from_millis(300);

/// Options for Java that remove digests of the content from snapshots, so that a test can change a snapshot.
pub const WITHOUT_DIGESTS: [&str; 2] =
    ["-Dzookeeper.digest.enabled=false", "-Dzookeeper.serializeLastProcessedZxid.enabled=false"];

/// Options for Java that let the users of `jaas.conf` log in by DIGEST-MD5. From 3.9.6 on, FIPS mode is the default and
/// forbids that.
pub const WITH_JAAS: [&str; 2] = ["-Djava.security.auth.login.config={home}/jaas.conf", "-Dzookeeper.fips-mode=false"];

/// Starts `"$@"` and prints its pid. Ends the program with the given signal when standard input ends or has a line.
///
/// The test process holds the other end of standard input, and the kernel closes that end also after a SIGKILL. So no
/// server outlives its tests. The server inherits the shell's standard output as descriptor 3 and never writes to it:
/// the server is dead when that pipe ends. The shell runs only built-ins before `wait`, so it does not reap a dead
/// server early, and `kill` cannot hit another process that was given the pid.
///
/// When the tests die, the watchdog's process group is orphaned. If the server is stopped at that moment, the kernel
/// sends SIGHUP to the whole group, and the watchdog must survive it to do its work.
const WATCHDOG: &str = r#"
    trap '' HUP
    home=$1 signal=$2; shift 2
    "$@" 3>&1 </dev/null >>"$home/log" 2>&1 &
    echo $!
    exec >/dev/null 2>&1
    read -r verdict
    kill "-$signal" $!
    wait
    [ "$verdict" = keep ] || rm -rf "$home"
"#;

/// Returns the server that all tests of this process share. It dies with the process.
pub fn shared_server() -> &'static Server {
    static SHARED: OnceLock<Server> = OnceLock::new();
    shared(&SHARED, Server::start)
}

/// One standalone ZooKeeper server with a data directory of its own. Dropping it stops the server and removes the
/// directory.
///
/// All methods block the calling thread: for milliseconds, or for about a second in [`Server::restart`].
#[derive(Debug)]
pub struct Server {
    port: Port,
    home: Home,
    java_opts: Vec<String>,
    /// The command that starts Java: env(1) with arguments, or nothing.
    starter: Vec<String>,
    process: Mutex<Process>,
}

impl Server {
    /// Starts a server that grants session timeouts from 400 ms to 60 s.
    pub fn start() -> Self {
        Self::start_with(&[], &[])
    }

    /// Starts a server with more lines in its configuration file and more options for Java.
    ///
    /// A line overrides the default line with the same key. An option follows the default options and so overrides
    /// them.
    pub fn start_with(extra_cfg_lines: &[&str], java_opts: &[&str]) -> Self {
        Self::start_home(Home::new(), extra_cfg_lines, java_opts, &[])
    }

    /// Starts a server with this clock's time of day.
    pub fn start_by(clock: &Clock) -> Self {
        let set = clock.environment().map(|(name, value)| format!("{name}={}", value.display()));
        let starter = [vec!["env".to_owned()], set.to_vec()].concat();
        Self::start_home(Home::new(), &[], &[], &starter)
    }

    /// Starts a server as [`Server::start_with`] does, with these files in its directory, given by name and content.
    /// Lines and options call the directory `{home}`. The files are removed with the server.
    pub fn start_with_files(files: &[(&str, &str)], extra_cfg_lines: &[&str], java_opts: &[&str]) -> Self {
        let home = Home::new();
        for (name, text) in files {
            home.write(name, text);
        }
        let placed = |text: &&str| text.replace("{home}", &home.path.display().to_string());
        let (lines, opts): (Vec<_>, Vec<_>) =
            (extra_cfg_lines.iter().map(placed).collect(), java_opts.iter().map(placed).collect());
        let (lines, opts): (Vec<_>, Vec<_>) =
            (lines.iter().map(String::as_str).collect(), opts.iter().map(String::as_str).collect());
        Self::start_home(home, &lines, &opts, &[])
    }

    /// Replaces one of the server's files. The new content counts from the next [`Server::restart`] on.
    pub fn replace_file(&self, name: &str, text: &str) {
        self.home.write(name, text);
    }

    /// Starts one member of an ensemble. Returns once the ensemble has a leader.
    pub(super) fn start_member(id: usize, extra_cfg_lines: &[&str], java_opts: &[&str]) -> Self {
        let home = Home::new();
        fs::create_dir(home.data()).expect("the server's directory is writable");
        fs::write(home.data().join("myid"), id.to_string()).expect("the server's directory is writable");
        Self::start_home(home, extra_cfg_lines, java_opts, &[])
    }

    fn start_home(home: Home, extra_cfg_lines: &[&str], java_opts: &[&str], starter: &[String]) -> Self {
        let java_opts: Vec<String> = java_opts.iter().map(ToString::to_string).collect();
        let port = Port::reserve();
        home.configure(&port, extra_cfg_lines);
        let process = Process::launch(&home, port.address(), &java_opts, starter);
        let process =
            process.unwrap_or_else(|failure| panic!("ZooKeeper did not start: {failure}\nits log:\n{}", home.log()));
        Self { port, home, java_opts, starter: starter.to_vec(), process: Mutex::new(process) }
    }

    /// Returns the address for clients, as `127.0.0.1:PORT`.
    pub fn address(&self) -> String {
        self.port.address().to_string()
    }

    /// Ends a session by its number and password, as an operator can.
    pub fn end_session(&self, granted: &Hello) {
        let mut stream = TcpStream::connect(self.address()).expect("the server listens");
        stream.set_read_timeout(Some(STARTUP_LIMIT)).expect("a limit");
        stream.write_all(&granted.take_over()).expect("the server reads");
        let mut length = [0; 4];
        stream.read_exact(&mut length).expect("the server replies");
        stream.read_exact(&mut vec![0; u32::from_be_bytes(length) as usize]).expect("the server replies");
        let (xid, close) = (1_i32, -11_i32);
        stream.write_all(&framed(&[xid.to_be_bytes(), close.to_be_bytes()].concat())).expect("the server reads");
        // The server replies, and closes the connection.
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).expect("the server answers");
        assert_eq!(answer.len(), 20, "{answer:?}");
    }

    /// Returns the pid of the Java process.
    pub fn pid(&self) -> u32 {
        self.process().pid
    }

    /// Returns the answer to a four-letter word such as `wchs`. Each question counts as a packet in ZooKeeper's
    /// counters.
    pub fn four_letter(&self, word: &str) -> String {
        four_letter(self.port.address(), word, FOUR_LETTER_LIMIT)
            .unwrap_or_else(|error| panic!("ZooKeeper at {} did not answer {word}: {error}", self.address()))
    }

    /// Returns all transactions that the server has carried out.
    pub fn transactions(&self) -> Vec<Txn> {
        txn_log::of_server(&self.home.data())
    }

    /// Returns the data directory.
    pub(super) fn data(&self) -> PathBuf {
        self.home.data()
    }

    /// Returns the server's version, for example `3.8.0`.
    pub fn version(&self) -> String {
        version(&self.four_letter("srvr"))
    }

    /// Returns the number of watches on the server, over all connections, including watches on children. (`wchs` leaves
    /// those out.)
    pub fn watches(&self) -> u64 {
        self.counter("zk_watch_count")
    }

    /// Returns a whole number from `mntr`, for example `zk_packets_received`.
    pub fn counter(&self, name: &str) -> u64 {
        let answer = self.four_letter("mntr");
        answer
            .lines()
            .filter_map(|line| line.split_once('\t'))
            .find(|(key, _)| *key == name)
            .and_then(|(_, value)| value.trim().parse().ok())
            .unwrap_or_else(|| panic!("mntr has no whole number {name}: {answer}"))
    }

    /// Kills the server as a crash would (SIGKILL) and starts it again on the same port and data.
    pub fn restart(&self) {
        self.kill();
        self.start_again();
    }

    /// Restarts the server with a directory whose next sequential child gets the number `next`. The server must have
    /// been started with [`WITHOUT_DIGESTS`].
    pub fn set_next_sequence(&self, directory: &str, next: i32) {
        // Changes since the last start are in no snapshot yet. A server that starts writes one.
        self.restart();
        self.kill();
        snapshot::set_next_sequence(&self.home.data(), directory, next);
        self.start_again();
    }

    /// Kills the server and starts it again on the same port, with empty data.
    pub fn start_over(&self) {
        self.kill();
        fs::remove_dir_all(self.home.data()).expect("the server's directory is writable");
        self.start_again();
    }

    /// Kills the server, keeps a copy of its data for [`Server::restore`], and starts it again.
    pub fn back_up(&self) {
        self.kill();
        copy(&self.home.data(), &self.home.backup());
        self.start_again();
    }

    /// Kills the server and starts it again on the same port, with the data of [`Server::back_up`].
    pub fn restore(&self) {
        self.kill();
        fs::remove_dir_all(self.home.data()).expect("the server's directory is writable");
        copy(&self.home.backup(), &self.home.data());
        self.start_again();
    }

    /// Makes the server continue with zxids after `zxid`, as the administrator's guide advises.
    pub fn go_on_after(&self, zxid: i64) {
        // A server that starts writes a snapshot.
        self.restart();
        self.kill();
        snapshot::call_newest_after(&self.home.data(), zxid);
        self.start_again();
    }

    /// Kills the server as a crash would (SIGKILL).
    pub fn kill(&self) {
        self.process().kill();
    }

    /// Starts a killed server again, on the same port and data. Returns once it serves.
    pub fn start_again(&self) {
        let successor = Process::launch(&self.home, self.port.address(), &self.java_opts, &self.starter);
        *self.process() = successor
            .unwrap_or_else(|failure| panic!("ZooKeeper did not come back: {failure}\nits log:\n{}", self.home.log()));
    }

    /// Returns the answer to `srvr`, or `None` from a dead or frozen server.
    pub(super) fn status(&self) -> Option<String> {
        four_letter(self.port.address(), "srvr", STARTING_FOUR_LETTER_LIMIT).ok()
    }

    /// Freezes the server (SIGSTOP): its sockets stay open and nothing answers.
    pub fn pause(&self) {
        process::signal(self.process().pid, "STOP");
    }

    /// Resumes a frozen server (SIGCONT).
    pub fn resume(&self) {
        process::signal(self.process().pid, "CONT");
    }

    fn process(&self) -> MutexGuard<'_, Process> {
        // A panic in one test must not hide behind "poisoned" panics in all other tests of the server.
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

impl Ends for Server {
    fn end(&self) {
        self.process().stop(Verdict::Remove);
    }
}

fn copy(from: &Path, to: &Path) {
    let status = Command::new("cp").arg("-a").args([from, to]).status().expect("cp can be run");
    assert!(status.success(), "cp -a {} {} ended with {status}", from.display(), to.display());
}

/// A server's process and the shell that guards it.
#[derive(Debug)]
pub(super) struct Process {
    watchdog: Child,
    pid: u32,
    /// Disconnected when the process is dead. In a mutex because a receiver cannot be shared between threads.
    death: Mutex<Receiver<()>>,
}

/// What the watchdog does with the server's directory after the kill.
#[derive(Clone, Copy, Debug)]
pub(super) enum Verdict {
    Keep,
    Remove,
}

impl Process {
    /// Starts Java and waits until it serves. Returns the reason of a failure; the directory then stays.
    fn launch(home: &Home, address: SocketAddr, java_opts: &[String], starter: &[String]) -> Result<Self, String> {
        let mut process = Self::spawn(home, java_opts, starter);
        match process.wait_until_serving(home, address) {
            Ok(version) => {
                report(process.pid, address, &version);
                Ok(process)
            }
            Err(reason) => {
                process.kill();
                Err(reason)
            }
        }
    }

    fn spawn(home: &Home, java_opts: &[String], starter: &[String]) -> Self {
        let java = "java".to_owned();
        let mut words = starter.iter().chain([&java]);
        let mut command = Command::new(words.next().unwrap_or(&java));
        command
            .args(words)
            .args(["-cp", &classpath()])
            // Short-lived servers gain more from a quick start than from the optimising compiler.
            .args(["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"])
            // Tests crash the process and never the machine, so a wait for the disk proves nothing.
            .arg("-Dzookeeper.forceSync=no")
            .arg("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")
            .args(java_opts)
            .arg("org.apache.zookeeper.server.quorum.QuorumPeerMain")
            .arg(home.path.join("zoo.cfg"));
        Self::guard(home, "KILL", &command)
    }

    /// Runs a server's program under the watchdog, which ends the program with this signal.
    pub(super) fn guard(home: &Home, signal: &str, command: &Command) -> Self {
        let mut watchdog = Command::new("sh")
            .args(["-c", WATCHDOG, "sh"])
            .arg(&home.path)
            .arg(signal)
            .arg(command.get_program())
            .args(command.get_args())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // In a group of its own, the watchdog survives a Ctrl-C or kill of the tests' group.
            .process_group(0)
            .spawn()
            .expect("sh can be run");

        let mut output = BufReader::new(watchdog.stdout.take().expect("standard output is a pipe"));
        let mut first_line = String::new();
        output.read_line(&mut first_line).expect("the watchdog's output is readable");
        let pid = first_line.trim().parse().expect("the watchdog prints the pid of the server first");

        let (alive, death) = mpsc::channel();
        thread::spawn(move || {
            // The pipe ends with the server, and `alive` is dropped with this thread.
            let _ = io::copy(&mut output, &mut io::sink());
            drop(alive);
        });
        Self { watchdog, pid, death: Mutex::new(death) }
    }

    /// Waits for an answer to `srvr`, and returns the server's version.
    fn wait_until_serving(&self, home: &Home, address: SocketAddr) -> Result<String, String> {
        let deadline = Instant::now() + STARTUP_LIMIT;
        while Instant::now() < deadline {
            let death = self.death.lock().unwrap_or_else(PoisonError::into_inner).recv_timeout(POLL_INTERVAL);
            if death == Err(RecvTimeoutError::Disconnected) {
                return Err(format!("it ended before it served {address}"));
            }
            let Ok(status) = four_letter(address, "srvr", STARTING_FOUR_LETTER_LIMIT) else {
                continue;
            };
            if !status.contains("Mode:") {
                continue;
            }
            // Another process may have taken the port since it was found free, so check the data directory.
            if four_letter(address, "conf", STARTING_FOUR_LETTER_LIMIT)
                .is_ok_and(|conf| conf.contains(&format!("dataDir={}", home.data().display())))
            {
                return Ok(version(&status));
            }
        }
        Err(format!("it did not serve {address} within {STARTUP_LIMIT:?}"))
    }

    fn kill(&mut self) {
        self.stop(Verdict::Keep);
    }

    /// Stops the server. Returns when it is dead and the watchdog has carried out the verdict.
    pub(super) fn stop(&mut self, verdict: Verdict) {
        // The end of standard input is the order to kill. A word before it changes what happens to the directory. If
        // the watchdog has ended already, the word is lost and not needed.
        if let (Some(mut stdin), Verdict::Keep) = (self.watchdog.stdin.take(), verdict) {
            let _ = stdin.write_all(b"keep\n");
        }
        let _ = self.watchdog.wait();
    }
}

/// The directory of one server: its configuration, data and log. Dropping it removes the directory.
#[derive(Debug)]
pub(super) struct Home {
    pub(super) path: PathBuf,
}

impl Home {
    pub(super) fn new() -> Self {
        // A name is never reused: its former owner may still be about to remove the directory.
        static NEXT: AtomicU64 = AtomicU64::new(0);
        loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let path = std::env::temp_dir().join(format!("zk-rwlock-{}-{number}", std::process::id()));
            match fs::create_dir(&path) {
                Ok(()) => return Self { path },
                // Left behind by a process with the same pid.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => panic!("{} cannot be created: {error}", path.display()),
            }
        }
    }

    pub(super) fn data(&self) -> PathBuf {
        self.path.join("data")
    }

    fn backup(&self) -> PathBuf {
        self.path.join("backup")
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path.join(name), text).expect("the server's directory is writable");
    }

    fn configure(&self, port: &Port, extra_lines: &[&str]) {
        let mut lines = vec![
            format!("clientPort={port}"),
            "clientPortAddress=127.0.0.1".to_owned(),
            format!("dataDir={}", self.data().display()),
            format!("tickTime={}", TICK.as_millis()),
            "minSessionTimeout=400".to_owned(),
            "maxSessionTimeout=60000".to_owned(),
            "admin.enableServer=false".to_owned(),
            "4lw.commands.whitelist=*".to_owned(),
            "maxClientCnxns=0".to_owned(),
        ];
        lines.extend(extra_lines.iter().map(ToString::to_string));
        fs::write(self.path.join("zoo.cfg"), lines.join("\n") + "\n").expect("the server's directory is writable");
    }

    pub(super) fn log(&self) -> String {
        match fs::read(self.path.join("log")) {
            Ok(log) if log.is_empty() => "(empty)".to_owned(),
            Ok(log) => String::from_utf8_lossy(&log).into_owned(),
            Err(error) => format!("(unreadable: {error})"),
        }
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        // The watchdog has removed it already, unless the last start of the server failed.
        let _ = fs::remove_dir_all(&self.path);
    }
}

fn report(pid: u32, address: SocketAddr, version: &str) {
    let Some(list) = std::env::var_os("ZK_RWLOCK_SERVERS").map(PathBuf::from) else {
        return;
    };
    let binary = std::env::current_exe().expect("a process knows its executable");
    let binary = binary.file_name().unwrap_or_default().to_string_lossy();
    let line = format!("{binary} {pid} {address} {version}\n");
    let mut file = OpenOptions::new()
        .create(true)
        .append(true)
        .open(&list)
        .unwrap_or_else(|error| panic!("{} cannot be opened: {error}", list.display()));
    // One write, because several test processes may append at the same time.
    file.write_all(line.as_bytes()).expect("the list of servers is writable");
}

fn classpath() -> String {
    if let Ok(classpath) = std::env::var("ZOOKEEPER_CLASSPATH")
        && !classpath.is_empty()
    {
        return classpath;
    }
    // The manifest of Debian's zookeeper.jar names most of the dependencies, but not all of Netty, which serves TLS.
    // The logger explains a failed start.
    let netty = ["netty-codec", "netty-resolver", "netty-transport-native-unix-common"];
    let jars: Vec<_> = ["zookeeper", "slf4j-simple", "metrics-core", "snappy-java"]
        .iter()
        .chain(&netty)
        .map(|jar| format!("/usr/share/java/{jar}.jar"))
        .collect();
    if let Some(missing) = jars.iter().find(|jar| !Path::new(jar).exists()) {
        panic!(
            "No ZooKeeper server to test against: {missing} does not exist.\n\
             On Debian and Ubuntu, `make test` installs it (or: apt-get install zookeeper).\n\
             Elsewhere, unpack a ZooKeeper release, install Java, and set\n\
             ZOOKEEPER_CLASSPATH='DIRECTORY/lib/*'."
        );
    }
    jars.join(":")
}

fn four_letter(address: SocketAddr, word: &str, limit: Duration) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, limit)?;
    stream.set_read_timeout(Some(limit))?;
    stream.write_all(word.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// Returns the `3.8.0` in `Zookeeper version: 3.8.0-0123abc, built on …`.
fn version(status: &str) -> String {
    let version = status.lines().find_map(|line| line.strip_prefix("Zookeeper version: ")).unwrap_or("unknown");
    version.split(['-', ',']).next().unwrap_or(version).trim().to_owned()
}
