//! The snippets of `docs/tracing.md`.

use std::io::Read;
use std::sync::{Mutex, PoisonError};

use zk_rwlock::{Error, Memory};

async fn work(zk: &Memory) -> Result<(), Error> {
    let lock = zk_rwlock::RwLock::new(zk, "/locks/orders")?;
    lock.write().label("migrate v42").await?.release().await
}

/// Repeats a test of a page until it returns `true`, up to 20 times, while no other test of this file runs.
///
/// A thread of another test may be the first to reach the place of a span, and may take the span for unwanted at the moment
/// in which this test makes its subscriber. The next rebuild of what is wanted mends that.
fn until_told(mut told: impl FnMut() -> bool) {
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    assert!((0..20).any(|_| told()), "the span of the hold is missing");
}

/// Does the work under the subscriber of this thread.
fn traced_work() {
    tracing::callsite::rebuild_interest_cache();
    pollster::block_on(work(&Memory::new())).expect("free");
}

/// Waits until the condition holds: a span that ends on a thread of the library is closed by the thread for events.
fn eventually(holds: impl Fn() -> bool) {
    (0..200).take_while(|_| !holds()).for_each(|_| std::thread::sleep(std::time::Duration::from_millis(10)));
}

#[test]
fn into_a_file() {
    until_told(told_into_a_file);
}

fn told_into_a_file() -> bool {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("spans.jsonl");
    let path = path.to_str().expect("a plain name");
    let set = || {
        // page: into-a-file
        use tracing_subscriber::filter::{LevelFilter, Targets};
        use tracing_subscriber::fmt::format::FmtSpan;
        use tracing_subscriber::prelude::*;

        let file = std::fs::File::create(path).expect("writable");
        let spans = tracing_subscriber::fmt::layer().json().with_span_events(FmtSpan::CLOSE).with_writer(file);
        let only = Targets::new().with_target("zk_rwlock", LevelFilter::DEBUG);
        let subscriber = tracing_subscriber::registry().with(spans.with_filter(only));
        // end
        subscriber
    };
    tracing::subscriber::with_default(set(), traced_work);
    eventually(|| std::fs::read_to_string(path).is_ok_and(|lines| lines.contains("\"held\":\"")));
    let lines = std::fs::read_to_string(path).expect("written");
    if !lines.contains("\"held\":\"") {
        return false;
    }
    let of = |span: &str| {
        let mut lines = lines.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON"));
        let is_its_end =
            |line: &serde_json::Value| line["span"]["name"] == span && line["fields"]["message"] == "close";
        lines.rfind(is_its_end).expect(span)["span"].clone()
    };
    assert!(of("acquire")["waited"].is_string() && of("acquire")["path"] == "/locks/orders", "{lines}");
    assert!(of("hold")["held"].is_string() && of("hold")["label"] == "migrate v42", "{lines}");
    true
}

#[test]
fn into_open_telemetry() {
    until_told(told_into_open_telemetry);
}

fn told_into_open_telemetry() -> bool {
    let exporter = opentelemetry_sdk::trace::InMemorySpanExporter::default();
    let yours = exporter.clone();
    let set = || {
        // page: into-opentelemetry
        use opentelemetry::trace::TracerProvider as _;
        use opentelemetry_sdk::trace::SdkTracerProvider;
        use tracing_subscriber::filter::{LevelFilter, Targets};
        use tracing_subscriber::prelude::*;

        let provider = SdkTracerProvider::builder().with_simple_exporter(yours).build();
        let spans = tracing_opentelemetry::layer().with_tracer(provider.tracer("orders"));
        let only = Targets::new().with_target("zk_rwlock", LevelFilter::DEBUG);
        let subscriber = tracing_subscriber::registry().with(spans.with_filter(only));
        // end
        (subscriber, provider)
    };
    let (subscriber, provider) = set();
    tracing::subscriber::with_default(subscriber, traced_work);
    provider.force_flush().expect("exported");
    eventually(|| exporter.get_finished_spans().is_ok_and(|spans| spans.len() == 2));
    let spans = exporter.get_finished_spans().expect("kept");
    let names: Vec<_> = spans.iter().map(|span| span.name.to_string()).collect();
    if names == ["acquire"] {
        return false;
    }
    assert_eq!(names, ["acquire", "hold"]);
    assert!(spans[1].attributes.iter().any(|it| it.key.as_str() == "token"), "{:?}", spans[1].attributes);
    true
}

#[test]
fn as_a_picture() {
    until_told(told_as_a_picture);
}

fn told_as_a_picture() -> bool {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("trace.json");
    let path = path.to_str().expect("a plain name");
    let set = || {
        // page: as-a-picture-in-perfetto
        use tracing_chrome::{ChromeLayerBuilder, TraceStyle};
        use tracing_subscriber::filter::{LevelFilter, Targets};
        use tracing_subscriber::prelude::*;

        // Keep `written` until the program ends: its drop writes the end of the file.
        let layer = ChromeLayerBuilder::new().file(path).trace_style(TraceStyle::Async).include_args(true);
        let (spans, written) = layer.build();
        let only = Targets::new().with_target("zk_rwlock", LevelFilter::DEBUG);
        let subscriber = tracing_subscriber::registry().with(spans.with_filter(only));
        // end
        (subscriber, written)
    };
    let (subscriber, written) = set();
    tracing::subscriber::with_default(subscriber, traced_work);
    drop(written);
    let mut text = String::new();
    std::fs::File::open(path).expect("written").read_to_string(&mut text).expect("text");
    let events: Vec<serde_json::Value> = serde_json::from_str(&text).expect("JSON");
    let begins: Vec<_> =
        events.iter().filter(|it| it["ph"] == "b").map(|it| it["name"].as_str().expect("a name")).collect();
    if begins == ["acquire"] {
        return false;
    }
    assert_eq!(begins, ["acquire", "hold"]);
    true
}
