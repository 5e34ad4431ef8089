//! The files for Kubernetes: whether a cluster would take them, and what their containers do as processes on a real server.
//!
//! A pod is a process here: the very command and environment of its container. Only what a cluster gives is replaced: where
//! ZooKeeper is, the programs of the image, and the directory of a secret.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Output, Stdio};

use saphyr::{LoadableYamlNode, Scalar, Yaml};
use serde_json::Value;
use support::program::program;
use support::scene::{SOON, eventually, line_becomes, soon};
use support::server::Server;
use tokio::process::{Child, Command};
use zk_rwlock::security::Sasl;
use zk_rwlock::{RwLock, ZooKeeper};

use crate::snippets::{files, read, root};

// ---------------------------------------------------------------------------------------------------------------
// Reading them

/// The objects of a file.
fn objects(file: &Path) -> Vec<Value> {
    let text = read(file);
    let documents = Yaml::load_from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    documents.iter().map(value).collect()
}

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

fn manifest(name: &str) -> Value {
    let mut objects = objects(&root().join("examples/kubernetes").join(name));
    assert_eq!(objects.len(), 1, "{name}");
    objects.remove(0)
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

#[track_caller]
fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("{value} is no text"))
}

/// The spec of the pods that an object makes.
fn pod(object: &Value) -> &Value {
    match text(&object["kind"]) {
        "CronJob" => &object["spec"]["jobTemplate"]["spec"]["template"]["spec"],
        _ => &object["spec"]["template"]["spec"],
    }
}

fn containers(pod: &Value) -> impl Iterator<Item = &Value> {
    list(&pod["initContainers"]).iter().chain(list(&pod["containers"]))
}

// ---------------------------------------------------------------------------------------------------------------
// Their shape

/// What Kubernetes knows of the objects that we show. A field with `!` has to be there.
const FIELDS: &str = "
Deployment: apiVersion!=apps/v1 kind!=Deployment metadata!:Meta spec!:DeploymentSpec
DeploymentSpec: replicas:int selector!:Selector template!:Template strategy:Strategy progressDeadlineSeconds:int
CronJob: apiVersion!=batch/v1 kind!=CronJob metadata!:Meta spec!:CronJobSpec
CronJobSpec: schedule!:str timeZone:str concurrencyPolicy=Allow|Forbid|Replace startingDeadlineSeconds:int jobTemplate!:JobTemplate
JobTemplate: spec!:JobSpec
JobSpec: backoffLimit:int activeDeadlineSeconds:int podFailurePolicy:FailurePolicy template!:Template
FailurePolicy: rules!:[FailureRule]
FailureRule: action!=FailJob|Ignore|Count onExitCodes:ExitCodes onPodConditions:[PodCondition]
ExitCodes: containerName:str operator!=In|NotIn values!:[int]
PodCondition: type!:str status!=True|False|Unknown
Meta: name:str labels:{str}
Selector: matchLabels!:{str}
Template: metadata:Meta spec!:Pod
Pod: restartPolicy=Always|OnFailure|Never terminationGracePeriodSeconds:int securityContext:Security initContainers:[Container] containers!:[Container] volumes:[Volume]
Security: runAsNonRoot:bool runAsUser:int runAsGroup:int fsGroup:int
Container: name!:str image!:str command:[str] args:[str] env:[Env] ports:[Port] volumeMounts:[Mount] readinessProbe:Probe livenessProbe:Probe lifecycle:Lifecycle
Env: name!:str value:str
Port: name:str containerPort!:int
Mount: name!:str mountPath!:str readOnly:bool
Probe: httpGet!:HttpGet periodSeconds:int timeoutSeconds:int failureThreshold:int
HttpGet: path!:str port!:str
Lifecycle: preStop:Handler
Handler: sleep!:Sleep
Sleep: seconds!:int
Volume: name!:str secret!:Secret
Secret: secretName!:str defaultMode:int
";

/// What is wrong with the value's shape, the first fault first.
fn faults(of: &str, value: &Value, place: &str) -> Vec<String> {
    let wrong = |what: &str| vec![format!("{place} is not {what}: {value}")];
    if let Some(item) = of.strip_prefix('[').and_then(|of| of.strip_suffix(']')) {
        let Some(items) = value.as_array().filter(|items| !items.is_empty()) else { return wrong("a list") };
        return items.iter().enumerate().flat_map(|(n, it)| faults(item, it, &format!("{place}[{n}]"))).collect();
    }
    match of {
        "str" => return if value.is_string() { Vec::new() } else { wrong("text") },
        "int" => return if value.as_i64().is_some_and(|it| it >= 0) { Vec::new() } else { wrong("a number") },
        "bool" => return if value.is_boolean() { Vec::new() } else { wrong("true or false") },
        _ => {}
    }
    let Some(object) = value.as_object() else { return wrong("an object") };
    if of == "{str}" {
        return object.iter().flat_map(|(name, it)| faults("str", it, &format!("{place}.{name}"))).collect();
    }
    let known = FIELDS.lines().find_map(|line| line.strip_prefix(of)?.strip_prefix(": ")).expect("it is in the table");
    let mut found = Vec::new();
    let mut left = object.clone();
    for field in known.split(' ') {
        let name = field.split([':', '=', '!']).next().expect("a name");
        match left.remove(name) {
            None if field.contains('!') => found.push(format!("{place}.{name} is missing")),
            None => {}
            Some(value) => match field.split_once('=') {
                Some((_, words)) if value.as_str().is_some_and(|it| words.split('|').any(|word| word == it)) => {}
                Some((_, words)) => found.push(format!("{place}.{name} is none of {words}: {value}")),
                None => {
                    let (_, of) = field.split_once(':').expect("a field has a type");
                    found.extend(faults(of, &value, &format!("{place}.{name}")));
                }
            },
        }
    }
    found.extend(left.keys().map(|name| format!("{place}.{name} is nothing that Kubernetes knows")));
    found
}

/// What a cluster refuses although each field is right by itself.
fn contradictions(object: &Value) -> Vec<String> {
    let (pod, spec) = (pod(object), &object["spec"]);
    let mut found = Vec::new();
    let mut expect = |holds: bool, what: String| found.extend((!holds).then_some(what));
    let is_label = |name: &str| {
        let inner = name.bytes().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-');
        inner && !name.is_empty() && name.len() <= 63 && !name.starts_with('-') && !name.ends_with('-')
    };
    let name = text(&object["metadata"]["name"]);
    expect(is_label(name) && name.len() <= 52, format!("the name {name}"));
    let volumes: Vec<&str> = list(&pod["volumes"]).iter().map(|volume| text(&volume["name"])).collect();
    let mut names = Vec::new();
    for container in containers(pod) {
        let name = text(&container["name"]);
        expect(is_label(name) && !names.contains(&name), format!("the container's name {name}"));
        names.push(name);
        for mount in list(&container["volumeMounts"]) {
            expect(volumes.contains(&text(&mount["name"])), format!("{name} mounts {}", mount["name"]));
            expect(text(&mount["mountPath"]).starts_with('/'), format!("{name} mounts at {}", mount["mountPath"]));
        }
        let ports: Vec<&Value> = list(&container["ports"]).iter().map(|port| &port["name"]).collect();
        for probe in
            ["readinessProbe", "livenessProbe"].map(|probe| &container[probe]).into_iter().filter(|it| !it.is_null())
        {
            expect(
                ports.contains(&&probe["httpGet"]["port"]),
                format!("{name} has no port {}", probe["httpGet"]["port"]),
            );
            expect(probe["timeoutSeconds"].as_i64() < probe["periodSeconds"].as_i64(), format!("{name}: {probe}"));
        }
        // A name that is not defined here is left as it is, also if the image defines it.
        let words = words(container, &environment(container));
        expect(!words.iter().any(|word| word.contains("$(")), format!("{name} has {words:?}"));
    }
    match text(&object["kind"]) {
        "Deployment" => {
            let labels = &spec["template"]["metadata"]["labels"];
            let selected = spec["selector"]["matchLabels"].as_object().expect("checked");
            expect(selected.iter().all(|(name, it)| labels[name] == *it), "the selector finds no pod".to_owned());
            expect(pod["restartPolicy"].is_null(), "the pods of a deployment are always started again".to_owned());
        }
        _ => {
            let (restart, policy) = (&pod["restartPolicy"], &spec["jobTemplate"]["spec"]["podFailurePolicy"]);
            expect(
                restart == "Never" || restart == "OnFailure" && policy.is_null(),
                format!("restartPolicy {restart}"),
            );
            for rule in list(&policy["rules"]) {
                expect(rule["onExitCodes"].is_null() != rule["onPodConditions"].is_null(), format!("{rule}"));
                let codes = &rule["onExitCodes"];
                expect(codes.is_null() || names.contains(&text(&codes["containerName"])), format!("{codes}"));
                let mut values: Vec<i64> = list(&codes["values"]).iter().filter_map(Value::as_i64).collect();
                values.dedup();
                expect(values.is_sorted() && values.len() == list(&codes["values"]).len(), format!("{codes}"));
                expect(!(codes["operator"] == "In" && values.contains(&0)), format!("{codes}: 0 is no failure"));
            }
            expect(text(&spec["schedule"]).split(' ').count() == 5, format!("the schedule {}", spec["schedule"]));
        }
    }
    found
}

fn all_faults(object: &Value) -> Vec<String> {
    let kind = object["kind"].as_str().filter(|kind| ["Deployment", "CronJob"].contains(kind)).expect("a kind");
    let found = faults(kind, object, kind);
    if found.is_empty() { contradictions(object) } else { found }
}

#[test]
fn a_cluster_would_take_the_files() {
    let files = files("examples/kubernetes", "yaml");
    assert_eq!(files.len(), 2);
    for file in files {
        for object in objects(&file) {
            assert_eq!(all_faults(&object), Vec::<String>::new(), "{}", file.display());
        }
    }
}

/// If the check let everything pass, the test before would prove nothing.
#[test]
fn a_slip_in_a_file_for_kubernetes_is_found() {
    let slips = [
        ("deployment.yaml", "initContainers:", "initContainer:", "nothing that Kubernetes knows"),
        ("deployment.yaml", "replicas: 3", "replicas: three", "is not a number"),
        ("deployment.yaml", "path: /ready", "uri: /ready", "httpGet.path is missing"),
        ("deployment.yaml", "value: \"30\"", "value: 30", "is not text"),
        ("deployment.yaml", "$(VERSION)", "$(RELEASE)", "$(RELEASE)"),
        ("deployment.yaml", "port: http", "port: web", "has no port"),
        ("deployment.yaml", "- name: zookeeper\n          secret", "- name: secrets\n          secret", "mounts"),
        (
            "deployment.yaml",
            "labels:\n        app.kubernetes.io/name: orders",
            "labels:\n        app: orders",
            "selector",
        ),
        ("cronjob.yaml", "restartPolicy: Never", "restartPolicy: Always", "restartPolicy"),
        ("cronjob.yaml", "concurrencyPolicy: Forbid", "concurrencyPolicy: Skip", "is none of"),
        ("cronjob.yaml", "containerName: report", "containerName: job", "containerName"),
        ("cronjob.yaml", "[64, 65", "[65, 64", "values"),
        ("cronjob.yaml", "0 * * * *", "0 * * *", "the schedule"),
    ];
    for (file, right, wrong, what) in slips {
        let text = read(&root().join("examples/kubernetes").join(file));
        assert!(text.contains(right), "{file}: {right}");
        let documents = Yaml::load_from_str(&text.replacen(right, wrong, 1)).expect("it is YAML");
        let found = all_faults(&value(&documents[0]));
        assert!(found.iter().any(|fault| fault.contains(what)), "{right} -> {wrong}: {found:?}");
    }
}

// ---------------------------------------------------------------------------------------------------------------
// What their containers do

fn environment(container: &Value) -> BTreeMap<String, String> {
    let env = list(&container["env"]).iter();
    env.map(|it| (text(&it["name"]).to_owned(), text(&it["value"]).to_owned())).collect()
}

/// The container's command line, as the kubelet reads it.
fn words(container: &Value, environment: &BTreeMap<String, String>) -> Vec<String> {
    let words = list(&container["command"]).iter().chain(list(&container["args"]));
    let filled = |word: &Value| {
        environment.iter().fold(text(word).to_owned(), |word, (name, it)| word.replace(&format!("$({name})"), it))
    };
    words.map(filled).collect()
}

/// What a cluster gives to a container.
struct Cluster<'server> {
    object: Value,
    server: &'server Server,
    /// With `bin`, the image's programs; a directory for each secret; and what the programs write.
    place: tempfile::TempDir,
}

impl Cluster<'_> {
    /// The secret is made by the command that the file shows.
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

    /// One of the image's programs.
    fn install(&self, name: &str, script: &str) {
        let file = self.place.path().join("bin").join(name);
        fs::write(&file, format!("#!/bin/sh\ncd '{}'\n{script}", self.place.path().display())).expect("writable");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).expect("ours");
    }

    /// What the programs have said so far.
    fn log(&self) -> Vec<String> {
        let log = fs::read_to_string(self.place.path().join("log")).unwrap_or_default();
        log.lines().map(str::to_owned).collect()
    }

    /// Starts this container of a new pod, with other values for some of its variables.
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

#[tokio::test]
async fn of_three_pods_one_migrates_and_a_later_one_does_not() {
    // Sessions of two seconds at most, so that the lock of a pod that was killed is soon free.
    let server = tokio::task::spawn_blocking(|| Server::start_with(&["maxSessionTimeout=2000"], &[])).await.unwrap();
    let cluster = Cluster::new("deployment.yaml", &server);
    cluster.install("orders-migrate", "echo began >>log; while [ ! -e go-on ]; do sleep 0.02; done; echo done >>log");
    let zk = ZooKeeper::builder().digest("orders", "PASSWORD").connect_timeout(SOON);
    let zk = zk.connect(&server.address()).await.unwrap();
    let lock = RwLock::new(&zk, "/orders/migrate/v42").unwrap();

    let mut pods: Vec<Child> = (0..3).map(|_| cluster.start("migrate", &[])).collect();
    line_becomes(&lock, "W+ W- W-").await;
    eventually("the first migrates", || async { cluster.log() == ["began"] }).await;

    // The node of the pod that migrates dies.
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
    // The pod that replaces the one that died, and one of a later day.
    for _ in 0..2 {
        let (code, said) = ended(cluster.start("migrate", &[])).await;
        assert!(code == Some(0) && said.contains("not run, because it was done"), "{code:?} {said}");
    }
    assert_eq!(cluster.log(), ["began", "began", "done"]);

    // The next version has a migration that fails. Its container is started again, and its pods go on once it is mended.
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
    let options = ["-Djava.security.auth.login.config={home}/jaas.conf"];
    Server::start_with_files(&[("jaas.conf", &users)], &lines, &options)
}

#[tokio::test]
async fn of_three_clusters_one_does_the_job_and_if_it_fails_another() {
    let server = tokio::task::spawn_blocking(|| with_user("PASSWORD")).await.unwrap();
    let cluster = Cluster::new("cronjob.yaml", &server);
    let zk = ZooKeeper::builder().sasl(Sasl::digest_md5("report", "PASSWORD")).connect_timeout(SOON);
    let lock = RwLock::new(&zk.connect(&server.address()).await.unwrap(), "/cron/report").unwrap();
    // They start behind another holder, so that all of them wait. Servers of 3.8.0 mix up logins that come together.
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

#[tokio::test]
async fn the_job_fails_for_good_where_another_try_would_be_of_no_use() {
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
    // A failed command, no server, a lock that was lost: the next pod may have more luck.
    assert!(![1, 69, 71, 75, 76].into_iter().any(hopeless), "{policy}");
}
