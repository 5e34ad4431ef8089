//! Tests of the completion of paths, of options, and of the command after the lock's path: by `zklock complete` alone,
//! and in real shells.

use super::*;

/// The shells in which zklock completes paths.
const SHELLS: [&str; 3] = ["bash", "zsh", "fish"];

/// The answer if the ensemble has no such path or is unreachable.
const NOTHING: &str = "words\n";

/// Returns the answer of `zklock complete` to these words. The last word is still being typed.
async fn answer(server: &str, words: &[&str]) -> String {
    answer_to("fish", server, words).await
}

/// Returns an answer that has candidates. Tries again if a busy machine needs more than the second that `complete`
/// waits.
async fn answer_to(shell: &str, server: &str, words: &[&str]) -> String {
    for _ in 0..10 {
        let answer = answer_once(shell, server, words).await;
        if answer != NOTHING {
            return answer;
        }
    }
    NOTHING.to_owned()
}

async fn answer_once(shell: &str, server: &str, words: &[&str]) -> String {
    let mut command = zklock_on(server, &["complete", shell]);
    command.stdin(Stdio::piped());
    let mut child = command.spawn().expect("zklock can be run");
    // bash also sends the text that it replaces: here the whole last word.
    let replaced = words.last().filter(|_| shell == "bash");
    let line: String = ["zklock"].iter().chain(words).chain(replaced).map(|word| format!("{word}\0")).collect();
    child.stdin.take().unwrap().write_all(line.as_bytes()).await.unwrap();
    let output = soon("the answer", child.wait_with_output()).await.unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), &told[..]), (Some(0), ""), "{words:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Makes nodes to complete: a held lock, a lock in a deeper directory, a record of a job, a semaphore, and a lock of
/// Curator. Returns the guards that keep them.
async fn locks(prefix: &str) -> Vec<Box<dyn std::any::Any>> {
    let (zk, held) = server_lock(&format!("{prefix}/held")).await;
    let deep = lock_at(&zk, &format!("{prefix}/deep/one lock"));
    let semaphore = zk_rwlock::Semaphore::builder(&zk, format!("{prefix}/limit")).permits(3).build().unwrap();
    let once = run(&["--once-in", "1h", &format!("{prefix}/done"), "true"]).await;
    assert_eq!(once.code, Some(0), "{once:#?}");
    let curator = RwLock::builder(&zk, format!("{prefix}/hers")).dialect(Dialect::Curator).build().unwrap();
    vec![
        Box::new(held.read().await.unwrap()),
        Box::new(deep.write().await.unwrap()),
        Box::new(semaphore.acquire().await.unwrap()),
        Box::new(curator.write().await.unwrap()),
        Box::new(zk),
    ]
}

#[support::judged]
async fn offered_paths_are_locks_and_their_directories() {
    let prefix = "/paths-completed";
    let _there = locks(prefix).await;
    let server = shared_server().address();
    let all = "words\n/paths-completed/deep/\n/paths-completed/done\n/paths-completed/held\n/paths-completed/hers\n/paths-completed/limit\n";
    // No shell is needed, because `zklock complete` also answers for a shell that is not installed.
    for shell in SHELLS {
        assert_eq!(answer_to(shell, &server, &["/paths-completed/"]).await, all);
        assert_eq!(answer_to(shell, &server, &["/l", "--", "tool", ""]).await, "command 3\n");
        assert_eq!(answer_to(shell, &server, &["--tls-ca", "/e"]).await, "file\n");
    }
    assert_eq!(answer(&server, &["watch", "/paths-completed/"]).await, all);
    assert_eq!(
        answer(&server, &["-w", "5", "/paths-completed/h"]).await,
        "words\n/paths-completed/held\n/paths-completed/hers\n"
    );
    assert_eq!(answer(&server, &["ls", "/paths-complete"]).await, "words\n/paths-completed/\n");
    assert_eq!(answer(&server, &["ls", "/paths-completed/deep/"]).await, "words\n/paths-completed/deep/one lock\n");
    for nothing in ["/paths-completed/held/", "/paths-completed/limit/", "/nowhere/at/all/", "//", "/zoo", "relative"] {
        assert_eq!(answer_once("fish", &server, &["ls", nothing]).await, NOTHING, "{nothing}");
    }
    let first = answer(&server, &[""]).await;
    assert!(first.starts_with("words\nls\tShow who holds") && first.contains("\n/paths-completed/\n"), "{first}");
}

#[support::judged]
async fn connection_options_on_the_line_are_used() {
    let prefix = "/completed-elsewhere";
    let _there = locks(prefix).await;
    let server = shared_server().address();
    let port = Port::reserve();
    let dead = port.address().to_string();
    let expected = format!("words\n{prefix}/deep/\n{prefix}/done\n");
    let typed = format!("{prefix}/d");
    assert_eq!(answer(&dead, &["--zk", &server, &typed]).await, expected);
    assert_eq!(answer(&dead, &["ls", "--dialect", "kazoo", &format!("--zk={server}"), &typed]).await, expected);
    let rooted = format!("{server}{prefix}");
    assert_eq!(answer(&dead, &["--zk", &rooted, "/d"]).await, "words\n/deep/\n/done\n");
}

async fn silence(server: &str, words: &[&str]) {
    assert_eq!(answer_once("fish", server, words).await, NOTHING, "{words:?}");
}

#[support::judged]
async fn an_absent_or_refusing_ensemble_offers_no_paths() {
    let port = Port::reserve();
    let dead = port.address().to_string();
    let server = shared_server().address();
    let (options, tls) = (["--session-timeout", "60", "ls", "/l"], ["--tls-ca", "/nowhere", "/l"]);
    tokio::join!(silence(&dead, &["/l"]), silence(&dead, &options), silence(&dead, &tls));
    for words in [&["--zk", "::::", "/l"][..], &["--auth", "hunter2", "/l"], &["--tick-time", "x", "/l"]] {
        silence(&server, words).await;
    }
    // A server that accepts connections but answers nothing must not make the user wait longer than an unreachable
    // server does.
    let proxy = Proxy::start(shared_server().address());
    proxy.black_hole();
    silence(&proxy.address(), &["ls", "/l"]).await;
}

/// Returns a directory with the shell's script, `zklock`, and a command `tool` whose completion prints its arguments.
fn prepared(shell: &str) -> tempfile::TempDir {
    let commands = commands(&["tool"]);
    let script = std::process::Command::new(binary()).args(["completions", shell]).output().unwrap();
    assert!(script.status.success());
    fs::write(commands.path().join("script"), script.stdout).unwrap();
    commands
}

/// Whether the shell is installed. If not, a message goes directly to standard error, because the test harness hides
/// the output of passed tests.
fn has(shell: &str) -> bool {
    let found = std::process::Command::new(shell).args(["-c", "exit 0"]).status().is_ok_and(|status| status.success());
    if !found {
        let words = format!("\n!!! {shell} is not installed: its completion was NOT tried (make shells installs it)\n");
        std::io::stderr().write_all(words.as_bytes()).unwrap();
    }
    found
}

/// Returns the calls of `compopt` and the candidates of bash at the end of a line, one on each line. The script calls
/// the completion as readline does outside of quotes.
async fn in_bash(commands: &tempfile::TempDir, before: &str, words: &[&str]) -> String {
    let script = r#"
        compopt() { echo "compopt $*"; }
        _tool() { COMPREPLY=("asked" "$1" "$2" "$3" "$COMP_CWORD" "$COMP_LINE" "$COMP_POINT"); }
        complete -F _tool tool
        source "$0"
        COMP_LINE=$1 COMP_POINT=${#1}
        shift
        COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
        word=${COMP_WORDS[COMP_CWORD]#[=:]}
        while [[ $COMP_LINE != *"$word" ]]; do word=${word%?}; done
        _zklock zklock "$word" "${COMP_WORDS[COMP_CWORD - 1]}"
        printf '%s\n' "${COMPREPLY[@]}"
    "#;
    let mut bash = Command::new("bash");
    prepare(&mut bash, &shared_server().address());
    bash.env("PATH", format!("{}:{}", commands.path().display(), std::env::var("PATH").unwrap_or_default()));
    bash.args(["--norc", "-c", script]).arg(commands.path().join("script")).arg(before).args(words);
    let run = ended(bash).await;
    assert_eq!((run.code, &run.stderr[..]), (Some(0), ""), "{run:#?}");
    run.stdout
}

#[support::judged]
async fn bash_completes_paths_options_files_and_commands() {
    let prefix = "/completed-bash";
    let _there = locks(prefix).await;
    let commands = prepared("bash");
    // bash also breaks words at ':' and '=', so `--zk=HOST:PORT` is five words.
    let server = shared_server().address();
    let (host, port) = server.split_once(':').unwrap();
    let line = format!("zklock --zk={server} ls {prefix}/d");
    let words = ["zklock", "--zk", "=", host, ":", port, "ls", &format!("{prefix}/d")];
    assert_eq!(in_bash(&commands, &line, &words).await, format!("{prefix}/deep/\n{prefix}/done\n"));
    let one = in_bash(&commands, &format!("zklock {prefix}/de"), &["zklock", &format!("{prefix}/de")]).await;
    assert_eq!(one, format!("compopt -o nospace\n{prefix}/deep/\n"));
    // A blank in a name is escaped, also if the word goes on after the cursor.
    let line = format!("zklock {prefix}/deep/one\\ l");
    let blank = in_bash(&commands, &line, &["zklock", &format!("{prefix}/deep/one\\ lo")]).await;
    assert_eq!(blank, format!("{prefix}/deep/one\\ lock\n"));

    assert_eq!(in_bash(&commands, "zklock --dialect=k", &["zklock", "--dialect", "=", "k"]).await, "kazoo\n");
    assert_eq!(in_bash(&commands, "zklock watch --j", &["zklock", "watch", "--j"]).await, "--json\n");
    let file = in_bash(&commands, "zklock --auth-file /e", &["zklock", "--auth-file", "/e"]).await;
    assert_eq!(file, "compopt -o default\n\n");

    let tool =
        in_bash(&commands, "zklock -n /l -- tool -x a:b", &["zklock", "-n", "/l", "--", "tool", "-x", "a", ":", "b"]);
    assert_eq!(tool.await, "asked\ntool\nb\n:\n4\ntool -x a:b\n11\n");
    let name = in_bash(&commands, "zklock /l too", &["zklock", "/l", "too"]).await;
    assert!(name.lines().any(|line| line == "tool"), "{name}");
}

#[support::judged]
async fn passwords_on_the_line_are_no_process_arguments() {
    for shell in SHELLS.into_iter().filter(|shell| has(shell)) {
        let commands = prepared(shell);
        // A stand-in for zklock that records its arguments and its input.
        let told = commands.path().join("told");
        fs::remove_file(commands.path().join("zklock")).unwrap();
        let stand_in = format!("#!/bin/sh\n{{ printf '[%s]' \"$@\"; tr '\\0' ' '; }} >{}\n", told.display());
        fs::write(commands.path().join("zklock"), stand_in).unwrap();
        fs::set_permissions(commands.path().join("zklock"), fs::Permissions::from_mode(0o755)).unwrap();
        let text = || fs::read_to_string(&told).unwrap_or_default();
        // bash also sends the text that it replaces.
        let replaced = if shell == "bash" { "/l " } else { "" };
        let whole = format!("[complete][{shell}]zklock --auth me:hunter2 /l {replaced}");
        // A process that another test has just forked may still have the stand-in open for writing. Until that file is
        // closed, the system refuses to run the stand-in.
        for _ in 0..20 {
            let mut zsh = None;
            match shell {
                "bash" => {
                    let words = ["zklock", "--auth", "me", ":", "hunter2", "/l"];
                    in_bash(&commands, "zklock --auth me:hunter2 /l", &words).await;
                }
                "zsh" => zsh.insert(OnKeys::start("zsh", &commands)).terminal.press("zklock --auth me:hunter2 /l\t"),
                _ => drop(in_fish(&commands, "zklock --auth me:hunter2 /l").await),
            }
            for _ in 0..200 {
                if text().ends_with(&whole) {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            if text().ends_with(&whole) {
                break;
            }
        }
        assert_eq!(text(), whole);
    }
}

/// Returns what fish completes at the end of a line.
async fn in_fish(commands: &tempfile::TempDir, line: &str) -> String {
    let script = "source $argv[1]; complete --command tool --no-files --arguments 'asked (count (commandline -opc))'
        complete --do-complete $argv[2]";
    let mut fish = Command::new("fish");
    prepare(&mut fish, &shared_server().address());
    fish.env("HOME", commands.path()).env("TERM", "xterm");
    fish.env("PATH", format!("{}:{}", commands.path().display(), std::env::var("PATH").unwrap_or_default()));
    fish.args(["--no-config", "-c", script]).arg(commands.path().join("script")).arg(line);
    let run = ended(fish).await;
    assert_eq!((run.code, &run.stderr[..]), (Some(0), ""), "{run:#?}");
    run.stdout
}

#[support::judged]
async fn fish_completes_paths_options_files_and_commands() {
    if !has("fish") {
        return;
    }
    let prefix = "/completed-fish";
    let _there = locks(prefix).await;
    let commands = prepared("fish");
    let dead = Port::reserve();
    let line = format!("ZK_HOSTS={} zklock --zk={} ls {prefix}/d", dead.address(), shared_server().address());
    assert_eq!(in_fish(&commands, &line).await, format!("{prefix}/deep/\n{prefix}/done\n"));
    let blank = in_fish(&commands, &format!("zklock '{prefix}/deep/one l")).await;
    assert_eq!(blank, format!("{prefix}/deep/one lock\n"));
    assert_eq!(in_fish(&commands, "zklock --dialect=k").await, "--dialect=kazoo\n");
    assert_eq!(in_fish(&commands, "zklock watch --j").await.split('\t').next(), Some("--json"));
    let file = commands.path().join("scri").display().to_string();
    assert_eq!(in_fish(&commands, &format!("zklock --auth-file {file}")).await.trim(), format!("{file}pt"));
    assert_eq!(in_fish(&commands, &format!("zklock --auth-file={file}")).await.trim(), format!("--auth-file={file}pt"));
    assert_eq!(in_fish(&commands, "zklock -n /l -- tool x ").await, "2\nasked\n");
    let name = in_fish(&commands, "zklock /l too").await;
    assert!(name.lines().any(|line| line.starts_with("tool")), "{name}");
}

/// A shell on a terminal. Tab completes the line, and Ctrl-T writes the line into a file. The command `zklock` is
/// replaced by a function that writes its arguments into another file.
struct OnKeys {
    terminal: OnTerminal,
    lines: PathBuf,
    ran: PathBuf,
    count: usize,
}

impl OnKeys {
    fn start(shell: &str, commands: &tempfile::TempDir) -> OnKeys {
        let directory = commands.path().display().to_string();
        let path = format!("{directory}:{}", std::env::var("PATH").unwrap_or_default());
        let environment = [
            ("PATH", &path[..]),
            ("HOME", &directory),
            ("TERM", "dumb"),
            ("XDG_CONFIG_HOME", &directory),
            ("LC_ALL", "C.UTF-8"),
        ];
        let stand_in = format!(
            "zklock() {{ if [[ $1 = complete ]]; then command zklock \"$@\"; else printf '%s|' \"$@\" >>{directory}/ran; fi; }}"
        );
        let (options, set_up): (&[&str], _) = match shell {
            "bash" => (
                &["--norc", "--noprofile", "-i"],
                format!(
                    "PS1='> '; cd {directory}; source {directory}/script; \
                     show() {{ printf '%s|\\n' \"$READLINE_LINE\" >>{directory}/lines; READLINE_LINE= READLINE_POINT=0; }}; \
                     bind -x '\"\\C-t\": show'; bind 'set enable-bracketed-paste off'; \
                     {stand_in}; echo rea''dy\n"
                ),
            ),
            "fish" => (
                &["--no-config", "-i"],
                format!(
                    "function fish_prompt; echo '> '; end; cd {directory}; source {directory}/script; \
                     function show; printf '%s|\\n' (commandline) >>{directory}/lines; commandline ''; end; bind \\ct show; \
                     function zklock; printf '%s|' $argv >>{directory}/ran; end; echo rea''dy\n"
                ),
            ),
            _ => (
                &["-f", "-i"],
                format!(
                    "PS1='> '; autoload -U compinit; compinit -u -D; cd {directory}; source {directory}/script; \
                     _tool() {{ compadd asked-$CURRENT }}; compdef _tool tool; \
                     show() {{ print -r -- \"$BUFFER|\" >>{directory}/lines; BUFFER= }}; zle -N show; bindkey '^T' show; \
                     {stand_in}; echo rea''dy\n"
                ),
            ),
        };
        let mut terminal = OnTerminal::start_with(&shared_server().address(), &environment, shell, options);
        terminal.press(&set_up);
        terminal.shows("ready");
        // The prompt shows that the shell reads the keys itself from now on, and that the terminal no longer edits
        // lines.
        terminal.shows("> ");
        OnKeys { terminal, lines: commands.path().join("lines"), ran: commands.path().join("ran"), count: 0 }
    }

    /// Types a line and Tab, and returns the completed line with a bar at its end.
    async fn completed(&mut self, line: &str) -> String {
        self.terminal.press(&format!("{line}\t\x14"));
        self.count += 1;
        let lines = || fs::read_to_string(&self.lines).unwrap_or_default();
        eventually("the line", || async { lines().lines().count() == self.count }).await;
        lines().lines().last().unwrap().to_owned()
    }

    /// Types a line, Tab and Enter, and returns the arguments of `zklock`, each with a bar behind it.
    async fn ran(&mut self, line: &str) -> String {
        let _ = fs::remove_file(&self.ran);
        self.terminal.press(&format!("{line}\t\n"));
        let ran = || fs::read_to_string(&self.ran).unwrap_or_default();
        eventually("the run", || async { ran().ends_with('|') }).await;
        ran()
    }
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn zsh_completes_paths_options_files_and_commands() {
    if !has("zsh") {
        return;
    }
    let prefix = "/completed-zsh";
    let _there = locks(prefix).await;
    let commands = prepared("zsh");
    let mut zsh = OnKeys::start("zsh", &commands);
    let server = shared_server().address();
    for (typed, completed) in [
        (format!("zklock ls {prefix}/he"), format!("zklock ls {prefix}/he|")),
        (format!("zklock ls {prefix}/hel"), format!("zklock ls {prefix}/held |")),
        // No blank is inserted after a slash, because the path may continue.
        (format!("zklock {prefix}/de"), format!("zklock {prefix}/deep/|")),
        (format!("zklock '{prefix}/deep/one l"), format!("zklock '{prefix}/deep/one lock' |")),
        (format!("zklock --zk={server} {prefix}/do"), format!("zklock --zk={server} {prefix}/done |")),
        ("zklock wa".to_owned(), "zklock watch |".to_owned()),
        ("zklock watch --j".to_owned(), "zklock watch --json |".to_owned()),
        ("zklock --dialect=k".to_owned(), "zklock --dialect=kazoo |".to_owned()),
        (
            format!("zklock --auth-file {}/scr", commands.path().display()),
            format!("zklock --auth-file {}/script |", commands.path().display()),
        ),
        (
            format!("zklock --auth-file={}/scr", commands.path().display()),
            format!("zklock --auth-file={}/script |", commands.path().display()),
        ),
        ("zklock -n /l -- tool x a".to_owned(), "zklock -n /l -- tool x asked-3 |".to_owned()),
        ("zklock /l too".to_owned(), "zklock /l tool |".to_owned()),
    ] {
        assert_eq!(zsh.completed(&typed).await, completed);
    }
}

/// Names that a shell would execute or expand if they were not quoted, or if they could end the quotes around them.
const MALICIOUS: [&str; 16] = [
    "$(touch PWNED)",
    "`touch PWNED`",
    "\";touch PWNED;\"",
    "';touch PWNED;'",
    "it's $(touch PWNED)",
    "ends it'",
    "ends it\"",
    "ends it\\",
    "a\\\\b\\c",
    "!!",
    "a!touch",
    "${HOME}~$HOME",
    "{a,b}*?[c]",
    "<PWNED>PWNED&|#",
    "a:b=c@d%e",
    "日本 é",
];

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn no_shell_executes_a_completed_name() {
    let prefix = "/completed-names";
    let zk = connect(&shared_server().address()).await;
    let mut held = Vec::new();
    for (at, name) in MALICIOUS.iter().enumerate() {
        held.push(lock_at(&zk, &format!("{prefix}/{at}/{name}")).write().await.unwrap());
    }
    for shell in SHELLS.into_iter().filter(|shell| has(shell)) {
        let commands = prepared(shell);
        let mut keys = OnKeys::start(shell, &commands);
        let quotes: &[&str] = if shell == "fish" { &["", "'", "\""] } else { &["", "'", "\"", "$'", "/\"", "/'"] };
        for (at, name) in MALICIOUS.iter().enumerate() {
            for quote in quotes {
                // zsh does not complete a word whose quotes begin in its middle.
                let typed = match quote.strip_prefix('/') {
                    Some(_) if shell == "zsh" => continue,
                    Some(quote) => format!("{prefix}/{quote}{at}/"),
                    None => format!("{quote}{prefix}/{at}/"),
                };
                let ran = keys.ran(&format!("zklock ls {typed}")).await;
                assert_eq!(ran, format!("ls|{prefix}/{at}/{name}|"), "{shell}: {typed}");
            }
        }
        assert!(!commands.path().join("PWNED").exists(), "{shell}");
    }
}
