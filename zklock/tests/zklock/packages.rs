//! Tests of the Debian package, and of the address where `cargo binstall` finds an archive.

use super::*;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Returns a `dpkg` that installs into this directory as if it were a system of its own. The list of installed packages
/// there has no C library.
fn dpkg(system: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new("dpkg");
    command.arg(format!("--root={}", system.display())).args([
        "--force-not-root",
        "--force-depends",
        "--force-bad-path",
    ]);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    command
}

/// Returns the files of the system below `usr`.
fn files(system: &Path) -> Vec<String> {
    let list = std::process::Command::new("find").arg(system.join("usr")).args(["-type", "f"]).output().unwrap();
    let prefix = format!("{}/", system.display());
    let mut files: Vec<String> =
        String::from_utf8(list.stdout).unwrap().lines().map(|line| line.replacen(&prefix, "", 1)).collect();
    files.sort();
    files
}

#[support::judged]
async fn the_debian_package_installs_runs_and_uninstalls() {
    let place = scratch();
    let (out, system) = (place.path().join("out"), place.path().join("system"));
    let mut make = Command::new("make");
    make.current_dir(root()).args(["deb", &format!("PROGRAM={}", binary()), &format!("OUT={}", out.display())]);
    make.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let made = make.output().await.unwrap();
    assert!(made.status.success(), "{made:?}");
    let package = fs::read_dir(&out).unwrap().next().unwrap().unwrap().path();

    for directory in ["info", "updates", "triggers"] {
        fs::create_dir_all(system.join("var/lib/dpkg").join(directory)).unwrap();
    }
    fs::write(system.join("var/lib/dpkg/status"), "").unwrap();
    let installed = ended(dpkg(&system, &["-i", &package.display().to_string()])).await;
    assert_eq!(installed.code, Some(0), "{installed:#?}");
    let share = "usr/share";
    let mut expected = vec![
        "usr/bin/zklock".to_owned(),
        format!("{share}/bash-completion/completions/zklock"),
        format!("{share}/doc/zklock/changelog.gz"),
        format!("{share}/doc/zklock/copyright"),
        format!("{share}/fish/vendor_completions.d/zklock.fish"),
        format!("{share}/zsh/vendor-completions/_zklock"),
    ];
    let pages = ["", "-ask", "-break", "-check", "-forget", "-ls", "-permits", "-timeline", "-watch"];
    expected.extend(pages.map(|page| format!("{share}/man/man1/zklock{page}.1.gz")));
    expected.sort();
    assert_eq!(files(&system), expected);

    for (shell, place) in [
        ("bash", "bash-completion/completions/zklock"),
        ("zsh", "zsh/vendor-completions/_zklock"),
        ("fish", "fish/vendor_completions.d/zklock.fish"),
    ] {
        let packed = fs::read_to_string(system.join(share).join(place)).unwrap();
        assert_eq!(packed, run(&["completions", shell]).await.stdout);
    }

    let mut zklock = Command::new(system.join("usr/bin/zklock"));
    prepare(&mut zklock, &shared_server().address());
    zklock.args(["/zklock/packaged", "-c", "exit 6"]);
    assert_eq!(ended(zklock).await.code, Some(6));

    let removed = ended(dpkg(&system, &["-r", "zklock"])).await;
    assert_eq!(removed.code, Some(0), "{removed:#?}");
    assert_eq!(files(&system), Vec::<String>::new());
}

#[test]
fn binstall_finds_the_archive_of_make_binary() {
    let read = |file: &str| fs::read_to_string(root().join(file)).unwrap();
    let (manifest, makefile) = (read("zklock/Cargo.toml"), read("Makefile"));
    assert!(manifest.contains(
        "/v{ version }/zklock-{ version }-{ target }.tar.gz\"\nbin-dir = \"zklock-{ version }-{ target }/{ bin }\""
    ));
    assert!(
        makefile.contains("name=zklock-$$version-$$target")
            && makefile.contains("tar -czf \"$$name.tar.gz\" \"$$name\"")
    );
}
