//! Tests of the Kubernetes manifests: the containers run as processes, with a real ZooKeeper server.
//!
//! A process has the command and the environment of its container. The test replaces the address of ZooKeeper, the
//! programs in the image, and the directory of a secret.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Output, Stdio};

use saphyr::{LoadableYamlNode, Scalar, Yaml};
use serde_json::Value;
use support::program::program;
use support::scene::{SOON, eventually, line_becomes, soon};
use support::server::{Server, WITH_JAAS};
use tokio::process::{Child, Command};
use zk_rwlock::security::Sasl;
use zk_rwlock::{RwLock, ZooKeeper};

use crate::snippets::{read, root};

// ------------------------------------------------------------------------------------------------------- The manifests

fn value(yaml: &Yaml<'_>) -> Value {
    match yaml {
        Yaml::Value(Scalar::Null) => Value::Null,
        Yaml::Value(Scalar::Boolean(is)) => (*is).into(),
        Yaml::Value(Scalar::Integer(number)) => (*number).into(),
        Yaml::Value(Scalar::String(text)) => text.as_ref().into(),
        Yaml::Sequence(items) => items.iter().map(value).collect(),
        Yaml::Mapping(fields) => {
            fields.iter().map(|(name, field)| (name.as_str().expect("a name").to_owned(), value(field))).collect()
        }
        other => panic!("{other:?} is nothing that Kubernetes reads"),
    }
}

/// Returns the only object of a manifest.
fn manifest(name: &str) -> Value {
    let text = read(&root().join("examples/kubernetes").join(name));
    let documents = Yaml::load_from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
    assert_eq!(documents.len(), 1, "{name}");
    value(&documents[0])
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

#[track_caller]
fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("{value} is no text"))
}

/// Returns the pod spec of an object.
fn pod(object: &Value) -> &Value {
    match text(&object["kind"]) {
        "CronJob" => &object["spec"]["jobTemplate"]["spec"]["template"]["spec"],
        _ => &object["spec"]["template"]["spec"],
    }
}

fn containers(pod: &Value) -> impl Iterator<Item = &Value> {
    list(&pod["initContainers"]).iter().chain(list(&pod["containers"]))
}

// ------------------------------------------------------------------------------------------------------ The containers

fn environment(container: &Value) -> BTreeMap<String, String> {
    let env = list(&container["env"]).iter();
    env.map(|it| (text(&it["name"]).to_owned(), text(&it["value"]).to_owned())).collect()
}

/// Returns the container's command line, with variables replaced as the kubelet does.
fn words(container: &Value, environment: &BTreeMap<String, String>) -> Vec<String> {
    let words = list(&container["command"]).iter().chain(list(&container["args"]));
    let filled = |word: &Value| {
        environment.iter().fold(text(word).to_owned(), |word, (name, it)| word.replace(&format!("$({name})"), it))
    };
    words.map(filled).collect()
}

/// A stand-in for the cluster: it gives each container its environment.
struct Cluster<'server> {
    object: Value,
    server: &'server Server,
    /// A directory with `bin` (the image's programs), a directory for each secret, and the output of the programs.
    place: tempfile::TempDir,
}

impl Cluster<'_> {
    /// Makes a cluster. Creates the secret by the command that is in the manifest's comment.
    fn new<'server>(file: &str, server: &'server Server) -> Cluster<'server> {
        let place = tempfile::tempdir().expect("a directory can be made");
        fs::create_dir(place.path().join("bin")).expect("writable");
        std::os::unix::fs::symlink(program("zklock"), place.path().join("bin/zklock")).expect("writable");
        let shown = read(&root().join("examples/kubernetes").join(file));
        let (_, command) = shown.split_once("kubectl create secret generic ").expect("how the secret is made");
        let words: Vec<&str> = command.lines().next().expect("a line").split(' ').collect();
        let [name, literal] = words[..] else { panic!("{words:?}") };
        let (key, password) =
            literal.strip_prefix("--from-literal=").and_then(|it| it.split_once('=')).expect("one key");
        fs::create_dir(place.path().join(name)).expect("writable");
        fs::write(place.path().join(name).join(key), password).expect("writable");
        Cluster { object: manifest(file), server, place }
    }

    /// Adds a program to the image, as a shell script.
    fn install(&self, name: &str, script: &str) {
        let file = self.place.path().join("bin").join(name);
        fs::write(&file, format!("#!/bin/sh\ncd '{}'\n{script}", self.place.path().display())).expect("writable");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).expect("ours");
    }

    /// Returns the lines that the programs have written so far.
    fn log(&self) -> Vec<String> {
        let log = fs::read_to_string(self.place.path().join("log")).unwrap_or_default();
        log.lines().map(str::to_owned).collect()
    }

    /// Starts the container of a new pod, with some environment variables replaced.
    fn start(&self, container: &str, instead: &[(&str, &str)]) -> Child {
        let pod = pod(&self.object);
        let container = containers(pod).find(|it| it["name"] == container).expect("it is in the file");
        let mut environment = environment(container);
        environment.insert("ZK_HOSTS".to_owned(), self.server.address());
        environment.extend(instead.iter().map(|(name, it)| ((*name).to_owned(), (*it).to_owned())));
        let mut words = words(container, &environment);
        for mount in list(&container["volumeMounts"]) {
            let volume = list(&pod["volumes"]).iter().find(|it| it["name"] == mount["name"]).expect("checked");
            let secret = self.place.path().join(text(&volume["secret"]["secretName"])).display().to_string();
            words = words.iter().map(|word| word.replace(text(&mount["mountPath"]), &secret)).collect();
        }
        let path = format!("{}:/usr/bin:/bin", self.place.path().join("bin").display());
        let mut command = Command::new(self.place.path().join("bin").join(&words[0]));
        command.args(&words[1..]).env_clear().envs(&environment).env("PATH", path);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        command.spawn().expect("it can be run")
    }
}

async fn ended(pod: Child) -> (Option<i32>, String) {
    let Output { status, stderr, .. } = soon("the end", pod.wait_with_output()).await.expect("it ran");
    (status.code(), String::from_utf8(stderr).expect("text"))
}

#[support::judged]
async fn one_of_three_pods_migrates_and_no_later_pod() {
    // Limits sessions to two seconds, so that the lock of a killed pod is soon free.
    let server = tokio::task::spawn_blocking(|| Server::start_with(&["maxSessionTimeout=2000"], &[])).await.unwrap();
    let cluster = Cluster::new("deployment.yaml", &server);
    cluster.install("orders-migrate", "echo began >>log; while [ ! -e go-on ]; do sleep 0.02; done; echo done >>log");
    let zk = ZooKeeper::builder().digest("orders", "PASSWORD").connect_timeout(SOON);
    let zk = zk.connect(&server.address()).await.unwrap();
    let lock = RwLock::new(&zk, "/orders/migrate/v42").unwrap();

    let mut pods: Vec<Child> = (0..3).map(|_| cluster.start("migrate", &[])).collect();
    line_becomes(&lock, "W+ W- W-").await;
    eventually("the first migrates", || async { cluster.log() == ["began"] }).await;

    // Kills the pod that migrates.
    let queue = lock.queue().await.unwrap();
    let holder = queue.holders().next().expect("one migrates").pid;
    let killed = pods.iter().position(|pod| pod.id() == holder).expect("it is one of them");
    let mut killed = pods.remove(killed);
    killed.start_kill().unwrap();
    soon("the end", killed.wait()).await.unwrap();
    eventually("another one migrates", || async { cluster.log() == ["began", "began"] }).await;

    fs::write(cluster.place.path().join("go-on"), "").unwrap();
    let mut skipped = 0;
    for pod in pods {
        let (code, said) = ended(pod).await;
        assert_eq!(code, Some(0), "{said}");
        skipped += usize::from(said.contains("not run, because it was done"));
    }
    assert_eq!(skipped, 1, "one has migrated, the other has waited for it");
    // Starts a replacement for the killed pod, and a pod of a later day.
    for _ in 0..2 {
        let (code, said) = ended(cluster.start("migrate", &[])).await;
        assert!(code == Some(0) && said.contains("not run, because it was done"), "{code:?} {said}");
    }
    assert_eq!(cluster.log(), ["began", "began", "done"]);

    // The next version has a migration that fails. Kubernetes restarts the container, and after a fix the pod
    // continues.
    cluster.install("orders-migrate", "echo fails >>log; exit 3");
    for _ in 0..2 {
        assert_eq!(ended(cluster.start("migrate", &[("VERSION", "v43")])).await.0, Some(3));
    }
    cluster.install("orders-migrate", "echo \"$@\" >>log");
    for _ in 0..2 {
        assert_eq!(ended(cluster.start("migrate", &[("VERSION", "v43")])).await.0, Some(0));
    }
    assert_eq!(cluster.log()[3..], ["fails", "fails", "up"]);
}

#[test]
fn the_migration_is_that_of_the_image() {
    let object = manifest("deployment.yaml");
    for container in containers(pod(&object)) {
        let (_, tag) = text(&container["image"]).rsplit_once(':').expect("a tag");
        assert!(environment(container).get("VERSION").is_none_or(|version| version == tag), "{container}");
    }
}

fn with_user(password: &str) -> Server {
    let module = "org.apache.zookeeper.server.auth.DigestLoginModule";
    let users = format!("Server {{ {module} required user_report=\"{password}\"; }};\n");
    let lines = ["authProvider.1=org.apache.zookeeper.server.auth.SASLAuthenticationProvider"];
    Server::start_with_files(&[("jaas.conf", &users)], &lines, &WITH_JAAS)
}

#[support::judged]
async fn one_of_three_clusters_does_the_job() {
    let server = tokio::task::spawn_blocking(|| with_user("PASSWORD")).await.unwrap();
    let cluster = Cluster::new("cronjob.yaml", &server);
    let zk = ZooKeeper::builder().sasl(Sasl::digest_md5("report", "PASSWORD")).connect_timeout(SOON);
    let lock = RwLock::new(&zk.connect(&server.address()).await.unwrap(), "/cron/report").unwrap();
    // The pods start one after another, while another contender holds the lock, so that all of them wait. ZooKeeper
    // 3.8.0 confuses simultaneous SASL logins.
    let held = lock.write().await.unwrap();
    cluster.install("report", "echo \"$@\" >>log; mkdir tried 2>/dev/null && exit 3; echo done >>log");
    let mut pods = Vec::new();
    for waits in ["W+ W-", "W+ W- W-", "W+ W- W- W-"] {
        pods.push(cluster.start("report", &[]));
        line_becomes(&lock, waits).await;
    }
    held.release().await.unwrap();
    let mut ends = Vec::new();
    for pod in pods {
        ends.push(ended(pod).await);
    }
    let codes: Vec<_> = ends.iter().map(|(code, _)| *code).collect();
    assert_eq!(codes, [Some(3), Some(0), Some(0)], "{ends:?}");
    assert!(ends[2].1.contains("not run, because it was done"), "{ends:?}");
    assert_eq!(cluster.log(), ["--hourly", "--hourly", "done"]);
}

#[support::judged]
async fn the_job_fails_without_retry_on_a_permanent_error() {
    let server = tokio::task::spawn_blocking(|| with_user("another")).await.unwrap();
    let cluster = Cluster::new("cronjob.yaml", &server);
    let secret = cluster.place.path().join("report-zookeeper/sasl");
    let policy = &cluster.object["spec"]["jobTemplate"]["spec"]["podFailurePolicy"]["rules"][0];
    let hopeless =
        |code: i32| policy["action"] == "FailJob" && list(&policy["onExitCodes"]["values"]).contains(&code.into());
    let ends_with = async |expected: i32| {
        let (code, said) = ended(cluster.start("report", &[])).await;
        assert_eq!(code, Some(expected), "{said}");
    };
    cluster.install("report", "exit 1");
    ends_with(77).await;
    fs::write(&secret, "report:another").unwrap();
    ends_with(1).await;
    fs::set_permissions(cluster.place.path().join("bin/report"), fs::Permissions::from_mode(0o644)).unwrap();
    ends_with(126).await;
    fs::remove_file(cluster.place.path().join("bin/report")).unwrap();
    ends_with(127).await;
    fs::write(&secret, "no colon").unwrap();
    ends_with(64).await;
    assert!([64, 65, 77, 126, 127].into_iter().all(hopeless), "{policy}");
    // After a failed command, an unreachable server or a lost lock, the Job must not give up, because the next pod may
    // succeed.
    assert!(![1, 69, 71, 75, 76].into_iter().any(hopeless), "{policy}");
}
