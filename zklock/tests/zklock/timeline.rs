//! `zklock timeline`: the picture of what `zklock watch --json` printed.

use super::*;

/// Runs `zklock timeline` with this standard input.
async fn drawn(arguments: &[&str], lines: String) -> Run {
    let mut command = zklock(&[&["timeline"], arguments].concat());
    command.stdin(Stdio::piped());
    let mut child = command.spawn().expect("the program starts");
    let mut stdin = child.stdin.take().expect("a pipe");
    let fed = async move { stdin.write_all(lines.as_bytes()).await };
    let (output, _) = tokio::join!(soon("the picture", child.wait_with_output()), fed);
    let output = output.expect("the program ends");
    let text = |bytes| String::from_utf8(bytes).expect("the output is UTF-8");
    Run { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

/// Returns the texts that are shown while the pointer is on a row.
fn told(picture: &str) -> Vec<String> {
    let picture = roxmltree::Document::parse(picture).expect("an XML document");
    let titles = picture
        .descendants()
        .filter(|it| it.has_tag_name("title") && it.parent_element().is_some_and(|it| it.has_tag_name("g")));
    titles.filter_map(|title| title.text().map(str::to_owned)).collect()
}

/// Returns the line that a watcher would print at this second of an hour.
fn line(second: u64, members: &[Value]) -> String {
    let at = format!("2026-11-28T14:{:02}:{:02}.000Z", second / 60, second % 60);
    serde_json::json!({ "at": at, "event": "queue", "path": "/l", "members": members }).to_string() + "\n"
}

fn member(number: usize, state: &str) -> Value {
    serde_json::json!({
        "place": 1, "state": state, "keeps": false, "mode": if number.is_multiple_of(2) { "READ" } else { "WRITE" }, "permits": null,
        "host": "web<1>", "pid": number, "label": format!("job {number}"), "since": null, "session": format!("{number:#x}"),
        "behind": null, "node": format!("web~{number}-WRITE-{number:010}"), "token": number
    })
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn a_timeline_shows_who_waited_and_who_held() {
    let path = "/zklock/timeline";
    let (_zk, lock) = server_lock(path).await;
    let mut watch = Running::start(zklock(&["watch", "--json", path]));
    let mut lines = watch.says().await + "\n";
    let held = lock.write().label("ants").await.unwrap();
    let waits = tokio::spawn(lock.read().label("bees").into_future());
    while !lines.contains("bees") {
        lines += &(watch.says().await + "\n");
    }
    held.release().await.unwrap();
    let is_granted = |lines: &str| {
        let last: Value = serde_json::from_str(lines.lines().last().expect("a line")).expect("a line of JSON");
        last["members"][0]["label"] == "bees"
    };
    while !is_granted(&lines) {
        lines += &(watch.says().await + "\n");
    }
    waits.await.unwrap().unwrap().release().await.unwrap();
    while lines.matches("\"members\":[]").count() < 2 {
        lines += &(watch.says().await + "\n");
    }
    let picture = drawn(&[], lines).await;
    assert_eq!((picture.code, picture.stderr.as_str()), (Some(0), ""));
    let told = told(&picture.stdout);
    assert_eq!(told.len(), 2, "{told:#?}");
    assert!(told[0].contains("\"ants\"") && told[0].contains("\nwent "), "{told:#?}");
    assert!(told[1].contains("READ ") && told[1].contains("\ngranted "), "{told:#?}");
    let heading = picture.stdout.lines().find(|line| line.contains("class=\"path\"")).expect("a heading");
    let [_, wait, hold] = heading.split("; longest ").collect::<Vec<_>>().try_into().expect("a wait and a hold");
    assert!(wait.contains("READ ") && wait.contains("bees") && hold.starts_with("hold: "), "{heading}");
}

#[support::judged]
async fn a_timeline_marks_breaks_and_leaves_out_what_is_not_asked_for() {
    let at = |second: u64, event: &str| {
        serde_json::json!({ "at": format!("2026-11-28T14:00:{second:02}.000Z"), "event": event, "path": "/l", "why": null }).to_string() + "\n"
    };
    let lines = line(0, &[member(1, "holds")])
        + &line(1, &[member(1, "holds"), member(2, "waits")])
        + &at(2, "disconnected")
        + &at(4, "connected")
        + &line(5, &[member(1, "holds")])
        + &line(6, &[]);
    let picture = drawn(&[], lines.clone()).await;
    assert_eq!(picture.code, Some(0), "{picture:#?}");
    assert!(picture.stdout.contains("class=\"break\""), "{picture:#?}");
    let all = told(&picture.stdout);
    assert!(all[0].contains("web<1> pid 1 \"job 1\", token 1") && all[0].contains("after holding for 6s"), "{all:#?}");
    assert!(all[1].contains("went without the lock 2026-11-28T14:00:05.000Z, after 4s"), "{all:#?}");
    for (arguments, rows) in
        [(&["--from", "2026-11-28T14:00:06Z"][..], 1), (&["--to", "2026-11-28T14:00:00.5Z"], 1), (&["--lock", "/l"], 2)]
    {
        assert_eq!(told(&drawn(arguments, lines.clone()).await.stdout).len(), rows, "{arguments:?}");
    }
    let none = drawn(&["--lock", "/other"], lines).await;
    assert_eq!(
        (none.code, none.stderr.as_str()),
        (Some(64), "zklock: nobody held or waited: there is nothing to draw\n")
    );
}

#[support::judged]
async fn a_timeline_refuses_too_many_rows_and_foreign_lines() {
    let many = (0..2_001).map(|number| line(number as u64, &[member(number, "holds")])).collect::<String>();
    let refused = drawn(&[], many.clone()).await;
    assert_eq!(refused.code, Some(64));
    assert!(
        refused.stderr.contains("from 2026-11-28T14:00:00.000Z to 2026-11-28T14:33:20.000Z alone")
            && refused.stderr.contains("more than the 2000 rows")
            && refused.stderr.contains("--from, --to or --lock"),
        "{refused:#?}"
    );
    let drawn_part = drawn(&["--from", "2026-11-28T14:00:02Z"], many).await;
    assert_eq!((drawn_part.code, told(&drawn_part.stdout).len()), (Some(0), 2_000));
    let (all, from) = ((0..2_001).map(|number| member(number, "waits")).collect::<Vec<_>>(), "2026-11-28T14:00:01Z");
    let stay = drawn(&["--from", from], line(0, &all)).await;
    assert!(stay.code == Some(64) && stay.stderr.contains("more than the 2000 rows"), "{:?}", stay.stderr);
    let foreign = drawn(&[], line(0, &[]) + "{\"path\":1}\n").await;
    assert_eq!(foreign.code, Some(65));
    assert!(foreign.stderr.contains("standard input: line 2 is no line of zklock watch --json"), "{foreign:#?}");
    let wrong = drawn(&["--from", "yesterday"], String::new()).await;
    assert!(wrong.code == Some(64) && wrong.stderr.contains("a time is like"), "{wrong:#?}");
    let missing = run(&["timeline", "/nowhere/lines"]).await;
    assert!(missing.code == Some(64) && missing.stderr.contains("cannot read /nowhere/lines"), "{missing:#?}");
}
