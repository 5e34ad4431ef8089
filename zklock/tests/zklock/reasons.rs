//! Tests of the messages that say why `zklock` has no session.

use std::collections::BTreeSet;

use super::*;

/// Returns the reason in the message of a run without a session, without the beginning that is the same in all these
/// messages.
fn reason(run: &Run) -> &str {
    assert_eq!(run.code, Some(69), "{run:#?}");
    let said = run.stderr.trim_end();
    assert_eq!(said.lines().count(), 1, "{said}");
    said.strip_prefix("zklock: ZooKeeper cannot be reached: no session with ").unwrap_or_else(|| panic!("{said}"))
}

/// Returns a limit in seconds, as an argument.
fn seconds(limit: Duration) -> String {
    limit.as_secs_f64().to_string()
}

/// The message names the limit that zklock gave to the library. The test does not measure the time, because a busy
/// machine may be late.
#[support::judged]
async fn a_refused_connection_is_reported_within_the_limit() {
    let port = Port::reserve();
    let address = port.address().to_string();
    for (arguments, waited) in [
        (&["-n", "/l", "true"][..], "3s"),
        (&["-w", "0", "/l", "true"], "3s"),
        (&["-n", "--connect-timeout", "300ms", "/l", "true"], "300ms"),
        (&["-n", "--session-timeout", "2", "/l", "true"], "2s"),
        (&["-w", "1.5", "/l", "true"], "1s 500ms"),
        (&["-w", "0.1", "/l", "true"], "1s"),
        (&["-w", "60", "--connect-timeout", "0.4", "/l", "true"], "400ms"),
        (&["--connect-timeout", "0.4", "ls", "/l"], "400ms"),
        (&["--once-in", "1h", "-w", "1.2", "/l", "true"], "1s 200ms"),
    ] {
        let begin = format!("{address} within {waited}: {address}: ");
        // The shortest limit leaves 150 ms for the connection. On a busy machine zklock may not get to run in this
        // time, so up to ten runs are tried.
        eventually_says(|| zklock_on(&address, arguments), &begin, "Connection refused (os error 111)").await;
    }
}

#[support::judged]
async fn the_default_address_is_called_so() {
    let default = "; this is the default address, because neither --zk nor ZK_HOSTS is set";
    let Some(port) = Port::claim(2181) else {
        std::io::stderr().write_all(b"\n!!! port 2181 is in use: the default address was NOT tried\n").unwrap();
        return;
    };
    for (hosts, is_default) in [(None, true), (Some(""), true), (Some("127.0.0.1:2181"), false)] {
        let mut command = zklock_on(hosts.unwrap_or_default(), &["--connect-timeout", "300ms", "ls", "/l"]);
        if hosts.is_none() {
            command.env_remove("ZK_HOSTS");
        }
        let run = ended(command).await;
        let reason = reason(&run);
        assert!(reason.starts_with(&format!("{} within 300ms: ", port.address())), "{hosts:?}: {run:#?}");
        assert_eq!(reason.ends_with(default), is_default, "{hosts:?}: {run:#?}");
    }
}

/// Asserts that the reason of each run begins with `begin`, and that in one of ten runs it continues with `rest`.
async fn eventually_says(command: impl Fn() -> Command, begin: &str, rest: &str) {
    let mut told = Vec::new();
    for _ in 0..10 {
        let run = ended(command()).await;
        let reason = reason(&run).strip_prefix(begin).unwrap_or_else(|| panic!("{begin}: {run:#?}")).to_owned();
        if reason == rest {
            return;
        }
        told.push(reason);
    }
    panic!("{told:#?}");
}

fn is_so(so: bool, run: &Run) -> Result<(), String> {
    if so { Ok(()) } else { Err(format!("{run:#?}")) }
}

#[support::judged]
async fn an_unknown_host_and_a_full_server_are_named() {
    let server = Server::start_with(&["maxClientCnxns=1"], &[]);
    let _only = connect(&server.address()).await;
    with_time_enough(Duration::from_secs(1), async |limit| {
        let limit = seconds(limit);
        let run =
            ended_within_minutes(zklock_on("nowhere.invalid:2181", &["--connect-timeout", &limit, "/l", "true"])).await;
        let expected = format!("nowhere.invalid:2181 within {limit}s: nowhere.invalid:2181: the host is not known: ");
        is_so(reason(&run).starts_with(&expected), &run)?;
        let run =
            ended_within_minutes(zklock_on(&server.address(), &["--connect-timeout", &limit, "/l", "true"])).await;
        is_so(reason(&run).contains("as its maxClientCnxns allows (60 by default)"), &run)
    })
    .await;
}

#[support::judged]
async fn a_cut_off_waiter_reports_since_when_and_why() {
    with_time_enough(Duration::from_secs(4), async |limit| {
        let quiet = cut_off_while_it_waits(limit, &["-q", "-E", "9"]).await.0;
        is_so((quiet.code, &quiet.stderr[..]) == (Some(9), ""), &quiet)?;
        let (run, address) = cut_off_while_it_waits(limit, &[]).await;
        is_so(run.code == Some(1), &run)?;
        let said = run.stderr.lines().last().unwrap_or_default();
        let begin = format!("zklock: not granted within {}s: cut off for ", seconds(limit));
        let why = format!(": {address}: Connection refused (os error 111); before that, held by ");
        is_so(said.starts_with(&begin) && said.contains(&why), &run)
    })
    .await;
}

/// Runs a waiting zklock whose server is killed, and returns its messages and the server's address.
async fn cut_off_while_it_waits(limit: Duration, options: &[&str]) -> (Run, String) {
    let server = Server::start();
    let zk = connect(&server.address()).await;
    let lock = lock_at(&zk, "/reasons");
    let _held = lock.write().await.unwrap();
    let limit = seconds(limit);
    let arguments = [options, &["-w", &limit, "/reasons", "true"]].concat();
    let mut waiting = Running::start(zklock_on(&server.address(), &arguments));
    // On a busy machine the limit may be over before the waiter is in the queue, so the loop also ends when zklock has
    // ended.
    while line(&lock).await != "W+ W-" && waiting.child.try_wait().unwrap().is_none() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    server.kill();
    (waiting.ends_within(Duration::from_secs(120)).await, server.address())
}

#[support::judged]
async fn malformed_credentials_are_refused_but_not_shown() {
    for (variable, option) in [("ZK_AUTH", "--auth"), ("ZK_SASL", "--sasl")] {
        for (secret, what) in [("hunter2", "it has no colon"), (":hunter2", "it has no user before the colon")] {
            let mut by_variable = zklock(&["/l", "true"]);
            by_variable.env(variable, secret);
            for (command, name) in [(by_variable, variable), (zklock(&[option, secret, "/l", "true"]), option)] {
                let run = ended(command).await;
                let expected = format!("zklock: {name} must be USER:PASSWORD: {what}\n");
                assert_eq!((run.code, run.stderr), (Some(64), expected));
            }
        }
    }
}

#[support::judged]
async fn sasl_that_servers_do_not_offer_is_reported() {
    let mut command = zklock(&["/reasons/sasl", "true"]);
    command.env("ZK_SASL", "alice:hunter2");
    let run = ended(command).await;
    let words = "is set, but these servers have not authenticated its user: they may not be set up for it";
    assert_eq!((run.code, &run.stderr[..]), (Some(77), &*format!("zklock: ZK_SASL {words}\n")));
    let run = ended(zklock(&["--sasl", "alice:hunter2", "/reasons/sasl", "true"])).await;
    assert_eq!((run.code, &run.stderr[..]), (Some(77), &*format!("zklock: --sasl {words}\n")));
}

/// Returns the JAAS file of a server whose only user has this password.
fn jaas(password: &str) -> String {
    let module = "org.apache.zookeeper.server.auth.DigestLoginModule";
    format!("Server {{ {module} required user_alice=\"{password}\"; }};\n")
}

#[support::judged]
async fn credentials_refused_later_exit_with_77() {
    let server = Server::start_with_files(
        &[("jaas.conf", &jaas("first"))],
        &[
            "authProvider.1=org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
            "sessionRequireClientSASLAuth=true",
        ],
        &WITH_JAAS,
    );
    let on = |password: &str, arguments: &[&str]| {
        let mut command = zklock_on(&server.address(), arguments);
        command.env("ZK_SASL", format!("alice:{password}"));
        command
    };
    let nobody = ended(zklock_on(&server.address(), &["/l", "true"])).await;
    let words = "zklock: the servers refuse a client without credentials: set ZK_SASL or ZK_AUTH\n";
    assert_eq!((nobody.code, &nobody.stderr[..]), (Some(77), words));
    let wrong = ended(on("guess", &["/l", "true"])).await;
    assert_eq!((wrong.code, &wrong.stderr[..]), (Some(77), "zklock: the servers refuse the credentials in ZK_SASL\n"));

    // The lease of the lock is longer than the restart of the server.
    let holder = ["--session-timeout", "60", "/l", "-c", "echo ready; exec sleep 60"];
    let holds = Running::start(on("first", &holder)).ready().await;
    let waits = Running::start(on("first", &["--session-timeout", "60", "/l", "true"]));
    let mut told = Running::start(on("first", &["watch", "--json", "/l"]));
    while !told.says().await.contains("\"waits\"") {}
    server.replace_file("jaas.conf", &jaas("second"));
    server.restart();
    let (holds, waits) = (holds.ends().await, waits.ends().await);
    assert_eq!((holds.code, waits.code), (Some(77), Some(77)), "{holds:#?} {waits:#?}");
    assert!(holds.stderr.contains("the lock was lost: the session's credentials were refused"), "{holds:#?}");
    assert!(waits.stderr.ends_with("in ZK_SASL\n") && waits.stderr.contains("refuse"), "{waits:#?}");
}

#[support::judged]
async fn a_loss_in_an_outage_names_its_start_and_cause() {
    let server = Server::start();
    let on = |command| zklock_on(&server.address(), &[&session_of("4")[..], &["/reasons", "-c", command]].concat());
    let holds = Running::start(on("trap 'echo ends >&2; exit' TERM; echo ready; while :; do sleep 0.1; done"));
    let holds = holds.ready().await;
    let zk = connect(&server.address()).await;
    let waits = Running::start(on("true"));
    line_becomes(&lock_at(&zk, "/reasons"), "W+ W-").await;
    server.kill();
    let (holds, waits) = tokio::join!(holds.ends(), waits.ends());
    assert_eq!((holds.code, waits.code), (Some(75), Some(76)), "{holds:#?} {waits:#?}");
    // zklock prints the loss before it sends TERM to the command, because it waits a short time until the message is
    // read.
    let before = holds.stderr.split_once("\nends\n").map(|(before, _)| before).unwrap_or_default();
    assert!(before.contains("zklock: the lock is lost: ") && before.contains("; the command is ended"), "{holds:#?}");
    let why = format!(": {}: Connection refused (os error 111))", server.address());
    for (run, what) in [(&holds, "the lock was lost: "), (&waits, "lost the place in the queue: ")] {
        let said = run.stderr.lines().last().unwrap_or_default();
        let words =
            format!("zklock: {what}the lease on the session ran out before a quorum renewed it (connecting for ");
        assert!(said.starts_with(&words) && said.contains(&why), "{run:#?}");
    }
}

#[support::judged]
async fn verbose_logs_the_reason_and_the_grant() {
    let granted = run(&["-v", "/reasons/verbose", "true"]).await;
    assert_eq!(granted.code, Some(0), "{granted:#?}");
    for words in
        ["s INFO zk_rwlock: a session begins", "s DEBUG zk_rwlock: granted ", "zklock: granted /reasons/verbose after "]
    {
        assert!(granted.stderr.contains(words), "{words}: {granted:#?}");
    }
    assert!(granted.stderr.lines().all(|line| line.starts_with("zklock: ")), "{granted:#?}");
    let port = Port::reserve();
    let words = format!("s DEBUG zk_rwlock: there is no session reason=\"{}: Connection refused", port.address());
    with_time_enough(Duration::from_millis(500), async |limit| {
        let arguments = ["-v", "--connect-timeout", &seconds(limit), "ls", "/l"];
        let away = ended_within_minutes(zklock_on(&port.address().to_string(), &arguments)).await;
        is_so(away.code == Some(69) && away.stderr.contains(&words), &away)
    })
    .await;
    let both = run(&["-v", "-q", "/reasons/verbose", "true"]).await;
    assert_eq!(both.code, Some(64), "{both:#?}");
}

#[support::judged]
async fn help_and_docs_name_each_exit_code() {
    let source = include_str!("../../src/exit.rs");
    let defined = source.lines().filter_map(|line| line.strip_prefix("pub(crate) const ")?.split_once(": u8 = "));
    let defined: BTreeSet<u8> = defined.map(|(_, code)| code.trim_end_matches(';').parse().unwrap()).collect();
    assert!(defined.len() >= 10);
    let help = run(&["--help"]).await.stdout;
    let section = help.split("Exit codes:").nth(1).and_then(|rest| rest.split("Environment:").next()).unwrap();
    let codes = section.lines().filter_map(|line| line.trim_start().split_once("  ")?.0.parse::<u8>().ok());
    assert_eq!(codes.filter(|code| *code != 0).collect::<BTreeSet<_>>(), defined);

    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let pages = fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let pages = pages.filter(|page| page.extension().is_some_and(|end| end == "md")).chain([root.join("README.md")]);
    let table = pages.map(|page| fs::read_to_string(page).unwrap());
    let table = table
        .filter_map(|page| Some(page.split_once("| exit code | what it means |\n")?.1.to_owned()))
        .collect::<Vec<_>>();
    let [table] = table.try_into().expect("one page has the table");
    let rows = table.lines().take_while(|line| line.starts_with('|')).skip(1);
    let first = rows.filter_map(|row| row.trim_matches('|').split('|').next().map(str::to_owned));
    let named: Vec<u8> = first
        .flat_map(|cell| cell.split([',', ' ']).filter_map(|word| word.parse().ok()).collect::<Vec<_>>())
        .collect();
    assert_eq!(named.into_iter().filter(|code| *code != 0).collect::<BTreeSet<_>>(), defined);
}

/// The source of a library that is loaded before the C library. With it, the name `moves.test` resolves to the address
/// in a file.
const RESOLVER: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
int getaddrinfo(const char *name, const char *port, const struct addrinfo *hints, struct addrinfo **found) {
    int (*real)(const char *, const char *, const struct addrinfo *, struct addrinfo **) = dlsym(RTLD_NEXT, "getaddrinfo");
    char address[64] = "";
    if (name && !strcmp(name, "moves.test")) {
        FILE *file = fopen(getenv("MOVES"), "r");
        if (!file || fscanf(file, "%63s", address) != 1) return EAI_AGAIN;
        fclose(file);
        name = address;
    }
    return real(name, port, hints, found);
}
"#;

#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[support::judged]
async fn a_server_name_with_a_new_address_is_followed() {
    let scratch = scratch();
    let at = |name: &str| scratch.path().join(name).display().to_string();
    fs::write(at("resolver.c"), RESOLVER).unwrap();
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-o", &at("resolver.so"), &at("resolver.c")]);
    assert!(compiler.status().await.expect("cc is installed, because Rust links with it").success());
    fs::write(at("address"), "127.0.0.1").unwrap();

    let proxy = Proxy::start(shared_server().address());
    let port = proxy.address().rsplit_once(':').unwrap().1.to_owned();
    let path = "/zklock/moves";
    let mut holds = zklock_on(&format!("moves.test:{port}"), &[path, "-c", "echo ready; read line; exit 8"]);
    holds.env("LD_PRELOAD", at("resolver.so")).env("MOVES", at("address")).stdin(Stdio::piped());
    let mut holder = Running::start(holds).ready().await;

    let there = tokio::net::TcpListener::bind(format!("127.0.0.2:{port}")).await.unwrap();
    fs::write(at("address"), "127.0.0.2").unwrap();
    proxy.cut();
    let (mut client, _) = soon("a connection to the new address", there.accept()).await.unwrap();
    let mut server = tokio::net::TcpStream::connect(shared_server().address()).await.unwrap();
    let passed_on = tokio::spawn(async move { tokio::io::copy_bidirectional(&mut client, &mut server).await });
    // The end of its input ends the command, and zklock releases the lock, which it still holds.
    drop(holder.child.stdin.take());
    let run = holder.ends().await;
    assert_eq!(run.code, Some(8), "{run:#?}");
    assert!(!run.stderr.contains("the lock was lost"), "{run:#?}");
    drop(passed_on.await);
}

/// The stack of threads is set so large that no thread can be started. A limit on the number of processes has the same
/// effect.
#[support::judged]
async fn a_thread_that_cannot_start_exits_with_71() {
    let mut command = zklock(&["/zklock/no-thread", "true"]);
    command.env("RUST_MIN_STACK", (1_u64 << 60).to_string());
    let run = ended(command).await;
    assert!(run.code == Some(71) && run.stderr.contains("start the thread for"), "{run:#?}");
}
