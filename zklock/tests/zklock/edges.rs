//! Tests of extreme conditions, such as a clock in a far year or few file descriptors, and of wide ACLs.

use support::clock::Clock;
use support::wire::{Frames, Op, Proxy, Rule};

use super::*;

#[support::judged]
async fn a_clock_beyond_the_year_9999_costs_no_acquisition() {
    let clock = Clock::ahead_by(8_500 * 366 * 24 * 60 * 60);
    let path = "/zklock/edges/clock";
    for arguments in
        [&[path, "true"][..], &["--once-in", "1h", path, "true"], &["-j", "2", "/zklock/edges/many", "true"]]
    {
        let mut command = zklock(arguments);
        command.envs(clock.environment());
        let run = ended(command).await;
        assert_eq!((run.code, run.stderr.as_str()), (Some(0), ""), "{arguments:?}: {run:#?}");
    }
    let mut looks = zklock(&["ls", path]);
    looks.envs(clock.environment());
    let looks = ended(looks).await;
    assert_eq!(looks.code, Some(0), "{looks:#?}");
}

#[support::judged]
async fn too_few_open_files_are_reported() {
    for files in 4..=20 {
        let limited_to = |limit| {
            let mut command = Command::new("/bin/sh");
            prepare(&mut command, &shared_server().address());
            command.args(["-c", &format!("ulimit -n {files}; exec \"$0\" \"$@\""), binary()]);
            command.args(["--connect-timeout", limit, "ls", "/zklock/edges/files"]);
            ended_within_minutes(command)
        };
        let is_told = |run: &Run| run.code == Some(0) || run.stderr.to_lowercase().contains("files");
        let mut run = limited_to("1").await;
        if !is_told(&run) {
            // A busy machine may need more than a second to connect.
            run = limited_to("60").await;
        }
        assert!(is_told(&run), "{files}: {run:#?}");
        assert_ne!(run.code, Some(101), "{files}: zklock must not panic: {run:#?}");
        let words = run.stderr.lines().rfind(|line| line.starts_with("zklock: ")).unwrap_or_default();
        assert!(!words.contains("task "), "{files}: {words}");
    }
}

#[support::judged]
async fn a_ghost_at_the_only_server_has_its_exit_code() {
    let path = "/zklock/edges/diverged";
    assert_eq!(run(&[path, "true"]).await.code, Some(0));
    let proxy = Proxy::start(shared_server().address());
    let ghost = "h~aaaaaaaa-WRITE-0000000000";
    for op in [Op::GetChildren, Op::GetChildren2] {
        proxy.apply(Rule::on(Frames::replies(op).about(path).with_error(0)).show(ghost).and_all_later());
    }
    for options in [&["-n"][..], &["-w", "5"]] {
        let command = zklock_on(&proxy.address(), &[options, &[path, "true"]].concat());
        let run = ended(command).await;
        let told = format!("{path}/{ghost}: the server {} and the leader do not agree about it", proxy.address());
        assert!(run.code == Some(70) && run.stderr.contains(&told), "{run:#?}");
    }
}

#[support::judged]
async fn an_acl_wider_than_this_clients_is_odd() {
    let path = "/zklock/edges/wider";
    assert_eq!(run(&[path, "true"]).await.code, Some(0));
    check::assert_clean(&run(&["check", path]).await, path, "on 1 of 1 servers");
    let mut command = zklock(&["check", path]);
    command.env("ZK_AUTH", "ours:secret");
    let odd = ended(command).await;
    let told =
        format!("{path}: {path}: world:anyone may READ, WRITE, CREATE, DELETE, ADMIN: wider than this client's ACL");
    assert!(odd.code == Some(1) && odd.stdout.starts_with(&told), "{odd:#?}");
    // A client that may write a semaphore's node can change the number of permits. A client that may write a record can
    // change when the job was done.
    let (semaphore, job) = ("/zklock/edges/wider-number", "/zklock/edges/wider-job");
    assert_eq!(run(&["permits", semaphore, "2"]).await.code, Some(0));
    assert_eq!(run(&["--once-in", "1h", job, "true"]).await.code, Some(0));
    for (path, node) in [(semaphore, semaphore.to_owned()), (job, format!("{job}.done"))] {
        let mut command = zklock(&["check", path]);
        command.env("ZK_AUTH", "ours:secret");
        let odd = ended(command).await;
        let told = format!("{path}: {node}: world:anyone may READ, WRITE, CREATE, DELETE, ADMIN: wider than");
        let told = odd.stdout.lines().any(|line| line.starts_with(&told) && line.ends_with("can change its data"));
        assert!(odd.code == Some(1) && told, "{odd:#?}");
    }
}
