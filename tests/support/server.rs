//! A real standalone ZooKeeper server on a loopback port of its own. A test can stop, freeze and restart the server,
//! read its counters by four-letter words, change its sequence numbers and zxids, and end sessions as an operator can.
//! A watchdog process ends the server when the tests end.

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

/// The tick of the servers. A session expires at a multiple of the tick, so a short tick keeps tests of expiry short.
pub const TICK: Duration = Duration::from_millis(200);

const STARTUP_LIMIT: Duration = Duration::from_secs(120);
const POLL_INTERVAL: Duration = Duration::from_millis(20);
const FOUR_LETTER_LIMIT: Duration = Duration::from_secs(5);
/// The time limit for the answer to a four-letter word during the start. A server that is starting may accept the
/// connection and never answer.
const STARTING_FOUR_LETTER_LIMIT: Duration = Duration::from_millis(300);

/// Java options that keep digests of the content out of snapshots, so that a test can change a snapshot.
pub const WITHOUT_DIGESTS: [&str; 2] =
    ["-Dzookeeper.digest.enabled=false", "-Dzookeeper.serializeLastProcessedZxid.enabled=false"];

/// Java options that let the users of `jaas.conf` log in by DIGEST-MD5. From 3.9.6 on, FIPS mode is the default and
/// forbids this mechanism.
pub const WITH_JAAS: [&str; 2] = ["-Djava.security.auth.login.config={home}/jaas.conf", "-Dzookeeper.fips-mode=false"];

/// A shell script that starts `"$@"` and prints the pid of this program. When standard input ends or has a line, the
/// script ends the program with the given signal.
///
/// The test process holds the other end of standard input, and the kernel closes that end also after a SIGKILL of the
/// test process. So no server outlives its tests. The server inherits the shell's standard output as descriptor 3 and
/// never writes to it, so the end of that pipe shows that the server is dead. The shell runs only built-ins before
/// `wait`. So it does not reap a dead server early, and `kill` cannot hit another process that was given the same pid.
///
/// When the tests die, the watchdog's process group is orphaned. If the server is stopped (SIGSTOP) at that moment, the
/// kernel sends SIGHUP to the whole group. So the script ignores SIGHUP, to be able to end the server.
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
    /// The command before `java`: `env` with arguments, or empty.
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

    /// Starts a server whose time of day comes from this clock.
    pub fn start_by(clock: &Clock) -> Self {
        let set = clock.environment().map(|(name, value)| format!("{name}={}", value.display()));
        let starter = [vec!["env".to_owned()], set.to_vec()].concat();
        Self::start_home(Home::new(), &[], &[], &starter)
    }

    /// Starts a server as [`Server::start_with`] does, with more files (name, content) in its directory. In
    /// configuration lines and Java options, `{home}` stands for that directory. The files are removed with the server.
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

    /// Replaces one of the server's files. The server reads the new file at the next [`Server::restart`].
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

    /// Resumes the session of this handshake on a new connection, by its id and password.
    pub fn take_over(&self, granted: &Hello) -> TcpStream {
        let mut stream = TcpStream::connect(self.address()).expect("the server listens");
        stream.set_read_timeout(Some(STARTUP_LIMIT)).expect("a limit");
        stream.write_all(&granted.take_over()).expect("the server reads");
        let mut length = [0; 4];
        stream.read_exact(&mut length).expect("the server replies");
        stream.read_exact(&mut vec![0; u32::from_be_bytes(length) as usize]).expect("the server replies");
        stream
    }

    /// Ends the session of this handshake, by its id and password.
    pub fn end_session(&self, granted: &Hello) {
        let mut stream = self.take_over(granted);
        let (xid, close) = (1_i32, -11_i32);
        stream.write_all(&framed(&[xid.to_be_bytes(), close.to_be_bytes()].concat())).expect("the server reads");
        // The server replies, and then closes the connection.
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).expect("the server answers");
        assert_eq!(answer.len(), 20, "{answer:?}");
    }

    /// Returns the pid of the Java process.
    pub fn pid(&self) -> u32 {
        self.process().pid
    }

    /// Sends a four-letter word such as `wchs`, and returns the answer. ZooKeeper counts the request as a packet.
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

    /// Returns the number of watches on the server, over all connections, including watches on children, which `wchs`
    /// leaves out.
    pub fn watches(&self) -> u64 {
        self.counter("zk_watch_count")
    }

    /// Returns a counter of the four-letter word `mntr`, for example `zk_packets_received`.
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

    /// Restarts the server, so that the next sequential child of `directory` gets the number `next`. The server must
    /// have been started with [`WITHOUT_DIGESTS`].
    pub fn set_next_sequence(&self, directory: &str, next: i32) {
        // The newest snapshot lacks the changes since the last start. A restart adds them, because a server writes a
        // snapshot when it starts.
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

    /// Restarts the server, so that its next transactions get zxids after `zxid`, in the way that ZooKeeper's
    /// administrator's guide advises.
    pub fn go_on_after(&self, zxid: i64) {
        // A server writes a snapshot when it starts, so this restart puts all changes into a snapshot.
        self.restart();
        self.kill();
        snapshot::call_newest_after(&self.home.data(), zxid);
        self.start_again();
    }

    /// Kills the server as a crash would (SIGKILL).
    pub fn kill(&self) {
        self.process().kill();
    }

    /// Starts a killed server again, on the same port and data. Returns once the server serves.
    pub fn start_again(&self) {
        let successor = Process::launch(&self.home, self.port.address(), &self.java_opts, &self.starter);
        *self.process() = successor
            .unwrap_or_else(|failure| panic!("ZooKeeper did not come back: {failure}\nits log:\n{}", self.home.log()));
    }

    /// Returns the answer to the four-letter word `srvr`. Returns `None` if the server is dead or frozen.
    pub(super) fn status(&self) -> Option<String> {
        four_letter(self.port.address(), "srvr", STARTING_FOUR_LETTER_LIMIT).ok()
    }

    /// Freezes the server (SIGSTOP). Its sockets stay open, but it answers nothing.
    pub fn pause(&self) {
        process::signal(self.process().pid, "STOP");
    }

    /// Resumes a frozen server (SIGCONT).
    pub fn resume(&self) {
        process::signal(self.process().pid, "CONT");
    }

    fn process(&self) -> MutexGuard<'_, Process> {
        // Ignores poisoning: if one test panics with the lock, the other tests of the server must still work.
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

/// The process of a server, and the process of its watchdog.
#[derive(Debug)]
pub(super) struct Process {
    watchdog: Child,
    pid: u32,
    /// A channel that is disconnected when the server is dead. The mutex makes the receiver shareable between threads.
    death: Mutex<Receiver<()>>,
}

/// Whether the watchdog removes the server's directory after the kill.
#[derive(Clone, Copy, Debug)]
pub(super) enum Verdict {
    Keep,
    Remove,
}

impl Process {
    /// Starts Java and waits until it serves. If the start fails, returns the reason and leaves the directory in place.
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
            // These options make the start quick. The optimising compiler does not pay off for a short-lived server.
            .args(["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"])
            // fsync is off, because tests crash processes and never the machine.
            .arg("-Dzookeeper.forceSync=no")
            .arg("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")
            .args(java_opts)
            .arg("org.apache.zookeeper.server.quorum.QuorumPeerMain")
            .arg(home.path.join("zoo.cfg"));
        Self::guard(home, "KILL", &command)
    }

    /// Starts a program under the watchdog, which ends the program with the signal `signal`.
    pub(super) fn guard(home: &Home, signal: &str, command: &Command) -> Self {
        let mut watchdog = Command::new("sh")
            .args(["-c", WATCHDOG, "sh"])
            .arg(&home.path)
            .arg(signal)
            .arg(command.get_program())
            .args(command.get_args())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // The watchdog has a process group of its own, so that it survives a Ctrl-C or a kill of the tests' group.
            .process_group(0)
            .spawn()
            .expect("sh can be run");

        let mut output = BufReader::new(watchdog.stdout.take().expect("standard output is a pipe"));
        let mut first_line = String::new();
        output.read_line(&mut first_line).expect("the watchdog's output is readable");
        let pid = first_line.trim().parse().expect("the watchdog prints the pid of the server first");

        let (alive, death) = mpsc::channel();
        thread::spawn(move || {
            // The pipe ends with the server. Then this thread ends and drops `alive`, which disconnects `death`.
            let _ = io::copy(&mut output, &mut io::sink());
            drop(alive);
        });
        Self { watchdog, pid, death: Mutex::new(death) }
    }

    /// Waits until the server answers `srvr`, and returns its version.
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
            // The data directory is compared, because another server may have taken the port.
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

    /// Stops the server. Returns when the server is dead and the watchdog has removed or kept its directory.
    pub(super) fn stop(&mut self, verdict: Verdict) {
        // The watchdog ends the server when standard input ends or has a line, and then removes the directory unless
        // the line is `keep`. The error of the write is ignored: a watchdog that has ended needs no line.
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
        // No directory name is used twice, because a watchdog may still be removing the former directory.
        static NEXT: AtomicU64 = AtomicU64::new(0);
        loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let path = std::env::temp_dir().join(format!("zk-rwlock-{}-{number}", std::process::id()));
            match fs::create_dir(&path) {
                Ok(()) => return Self { path },
                // An earlier process with the same pid left this directory behind, so try the next name.
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
        // The error is ignored, because the watchdog has usually removed the directory. It stays only after a failed
        // start.
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
    // The line is appended by one write, because several test processes may append at the same time.
    file.write_all(line.as_bytes()).expect("the list of servers is writable");
}

fn classpath() -> String {
    if let Ok(classpath) = std::env::var("ZOOKEEPER_CLASSPATH")
        && !classpath.is_empty()
    {
        return classpath;
    }
    // The manifest of Debian's zookeeper.jar names most of the dependencies, but not all parts of Netty, which serves
    // TLS, and no logger, which explains a failed start.
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

/// Returns the version, such as `3.8.0`, from an answer like `Zookeeper version: 3.8.0-0123abc, built on …`.
fn version(status: &str) -> String {
    let version = status.lines().find_map(|line| line.strip_prefix("Zookeeper version: ")).unwrap_or("unknown");
    version.split(['-', ',']).next().unwrap_or(version).trim().to_owned()
}
