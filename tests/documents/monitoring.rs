//! Compares the dashboard and the alert rules of `examples/monitoring/` with the metrics that the library describes, and parses
//! the files beside them. `make monitoring` runs them with a real Prometheus.

use std::collections::BTreeSet;
use std::path::PathBuf;

use saphyr::{LoadableYamlNode, Yaml};
use serde_json::Value;

use crate::snippets::{read, root};

fn file(name: &str) -> PathBuf {
    root().join("examples/monitoring").join(name)
}

/// Returns the names of the metrics in a text.
fn names_in(text: &str) -> BTreeSet<String> {
    let words = text.split(|letter: char| !(letter.is_ascii_lowercase() || letter == '_'));
    words.filter(|word| word.starts_with("zk_rwlock_")).map(str::to_owned).collect()
}

#[test]
fn the_dashboard_and_the_rules_name_only_metrics_of_the_library() {
    let described = names_in(&read(&root().join("src/telemetry/names.rs")));
    for name in ["dashboard.json", "rules.yml", "rules_test.yml"] {
        let named = names_in(&read(&file(name)));
        assert!(!named.is_empty(), "{name}");
        for metric in named {
            let histogram = ["_bucket", "_count", "_sum"].iter().find_map(|part| metric.strip_suffix(part));
            assert!(described.contains(histogram.unwrap_or(&metric)), "{name}: the library has no {metric}");
        }
    }
}

#[test]
fn each_panel_has_a_query_and_each_alert_a_test() {
    let dashboard: Value = serde_json::from_str(&read(&file("dashboard.json"))).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    assert!(panels.len() > 10);
    for panel in panels {
        let queries = panel["targets"].as_array().expect("queries");
        let is_ours = |query: &Value| !names_in(query["expr"].as_str().expect("a query")).is_empty();
        assert!(!queries.is_empty() && queries.iter().all(is_ours), "{}", panel["title"]);
    }
    let (rules, tests) = (read(&file("rules.yml")), read(&file("rules_test.yml")));
    let alerts: Vec<_> = rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert!(alerts.len() > 3);
    for alert in alerts {
        let alert = alert.split(' ').next().expect("a name");
        assert!(tests.contains(&format!("- alertname: {alert}\n")), "{alert} never fires in rules_test.yml");
    }
}

#[test]
fn the_files_that_compose_mounts_exist_and_are_yaml() {
    let compose = read(&file("compose.yml"));
    let mounts = compose.lines().filter_map(|line| line.trim().strip_prefix("- ./")?.split(':').next());
    let mounts: Vec<_> = mounts.chain(["compose.yml", "rules_test.yml"]).collect();
    assert_eq!(mounts.len(), 7);
    for name in mounts {
        // JSON is YAML, too.
        let documents = Yaml::load_from_str(&read(&file(name))).unwrap_or_else(|error| panic!("{name}: {error}")).len();
        assert_eq!(documents, 1, "{name}");
    }
}
