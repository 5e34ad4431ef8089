//! Tests that a command does not outlive a killed zklock.

use super::*;

/// Whether the process exists and has not ended.
pub(super) fn lives(pid: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| !rest.is_empty() && !rest.trim_start().starts_with(['Z', 'X']))
}

async fn pid_said(running: &mut Running) -> Pid {
    Pid::from_raw(running.says().await.parse().expect("a number")).expect("a pid")
}

#[support::judged]
async fn a_killed_zklock_takes_its_command_along() {
    let script = "trap '' HUP INT TERM; echo $$; while :; do :; done";
    let mut running = Running::start(zklock(&["/zklock/tied", "-c", script]));
    let command = pid_said(&mut running).await;
    assert!(lives(command));
    running.signal(Signal::KILL);
    assert_eq!(running.ends().await.code, None);
    eventually("the command is gone", || async { !lives(command) }).await;
}

#[support::judged]
async fn no_command_survives_a_zklock_killed_at_its_start() {
    let files = scratch();
    // Each command writes its process id into a file and then never ends.
    let script = format!(
        "echo $$ >> {}/pids; while :; do read line <> {}/never; done",
        files.path().display(),
        files.path().display()
    );
    assert!(std::process::Command::new("mkfifo").arg(files.path().join("never")).status().unwrap().success());
    for round in 0..20 {
        let path = format!("/zklock/tied-early-{round}");
        let running = Running::start(zklock(&[&path, "-c", &script]));
        let pid = running.pid().as_raw_nonzero();
        // The loop kills zklock at different moments of its start: before its first child exists, when the child
        // exists, and a short time later.
        let children = format!("/proc/{pid}/task/{pid}/children");
        let _ = soon("the first child", async {
            while fs::read_to_string(&children).is_ok_and(|children| children.is_empty()) {
                tokio::task::yield_now().await;
            }
        })
        .await;
        (0..round * 500).for_each(|_| std::hint::spin_loop());
        running.signal(Signal::KILL);
        running.ends().await;
    }
    let pids = || fs::read_to_string(files.path().join("pids")).unwrap_or_default();
    eventually("no command lives", || async {
        pids().lines().all(|pid| !lives(Pid::from_raw(pid.parse().unwrap()).unwrap()))
    })
    .await;
}

#[support::judged]
async fn a_command_without_its_zklock_is_not_started() {
    let mut stage = Command::new(binary());
    // The stage must refuse to run the command, because its parent is not process 1.
    stage.args(["tied-to", "1", "echo", "ran"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let run = ended(stage).await;
    assert_eq!((run.code, &run.stdout[..], &run.stderr[..]), (Some(137), "", ""));
    let mut ours = Command::new(binary());
    ours.args(["tied-to", &std::process::id().to_string(), "echo", "ran"]);
    ours.stdout(Stdio::piped()).stderr(Stdio::piped());
    let run = ended(ours).await;
    assert_eq!((run.code, &run.stdout[..]), (Some(0), "ran\n"));
}

#[support::judged]
async fn a_command_leads_its_group_and_inherits_no_files() {
    let group = run(&["/zklock/tied-group", "-c", "cut -d ' ' -f 1,5 /proc/$$/stat"]).await;
    let (pid, of) = group.stdout.trim().split_once(' ').unwrap();
    assert_eq!(pid, of);
    let files = run(&["/zklock/tied-files", "ls", "/proc/self/fd"]).await;
    let mut alone = Command::new("ls");
    prepare(&mut alone, "");
    alone.arg("/proc/self/fd");
    assert_eq!((files.code, files.stdout), (Some(0), ended(alone).await.stdout));
}
