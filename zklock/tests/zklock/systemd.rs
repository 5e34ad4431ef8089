//! Tests of the unit file in `examples/systemd`, by a program that sends the signals of `systemctl stop`.

use super::*;

const UNIT: &str = include_str!("../../../examples/systemd/zklock-job.service");

/// Returns the value of a setting of the unit.
fn setting(key: &str) -> &'static str {
    let values: Vec<_> = UNIT.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('=')).collect();
    let [value] = values[..] else { panic!("{key}: {values:?}") };
    value
}

/// Starts the service, stops it as systemd does with this `KillMode` (systemd.kill(5)), and returns how often the command
/// has heard TERM.
async fn heard_by_the_command(kill_mode: &str) -> usize {
    let files = scratch();
    let end = files.path().join("end");
    // Without `exit`, the code would be that of the last `sleep`, which TERM may have ended.
    let script =
        format!("trap 'echo heard' TERM; echo $$; until [ -e {} ]; do sleep 0.02; done; exit 0", end.display());
    // `zklock` and the command are those of the test, the arguments of `zklock` are those of the unit.
    let words: Vec<&str> = setting("ExecStart").split(' ').collect();
    let [zklock_there, arguments @ .., "--", _command] = &words[..] else { panic!("{words:?}") };
    assert!(zklock_there.ends_with("/zklock"), "{words:?}");
    let mut service = Running::start(zklock(&[arguments, &["--", "sh", "-c", &script]].concat()));
    let command = Pid::from_raw(service.says().await.parse().unwrap()).unwrap();
    service.signal(Signal::TERM);
    assert_eq!(service.says().await, "heard", "zklock passes TERM on");
    match kill_mode {
        "mixed" => {}
        "control-group" => kill_process(command, Signal::TERM).unwrap(),
        other => panic!("KillMode={other}"),
    }
    fs::write(end, "").unwrap();
    let run = service.ends().await;
    assert_eq!(run.code, Some(0), "{run:#?}");
    1 + run.stdout.lines().filter(|line| *line == "heard").count()
}

#[support::judged]
async fn a_command_under_the_unit_hears_term_once() {
    assert_eq!(heard_by_the_command(setting("KillMode")).await, 1);
    assert_eq!(heard_by_the_command("control-group").await, 2, "the default of systemd, which the unit must not have");
}

#[support::judged]
async fn a_stop_that_ends_the_command_is_a_success_for_the_unit() {
    let running = Running::start(zklock(&["/zklock/systemd/stop", "-c", "echo ready; exec sleep 100"])).ready().await;
    running.signal(Signal::TERM);
    let code = running.ends().await.code.expect("zklock exits with a code after TERM");
    assert_eq!(setting("SuccessExitStatus"), code.to_string());
}
