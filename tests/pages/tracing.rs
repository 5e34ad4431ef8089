//! The snippets of `docs/tracing.md`.

use std::io::Read;
use std::sync::{Mutex, MutexGuard, PoisonError};

use zk_rwlock::{Error, Memory};

async fn work(zk: &Memory) -> Result<(), Error> {
    let lock = zk_rwlock::RwLock::new(zk, "/locks/orders")?;
    lock.write().label("migrate v42").await?.release().await
}

/// Returns a lock that keeps these tests from running at the same time. The places of the spans in the code are reached before a
/// subscriber is made: a place that a thread without a subscriber reaches first at that moment may be taken for unwanted.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    pollster::block_on(work(&Memory::new())).expect("free");
    one
}

/// Does the work under the subscriber of this thread. Another test may have reached a span at the moment in which the subscriber
/// was made, and the span would then be unwanted for ever.
fn traced_work() -> Result<(), Error> {
    tracing::callsite::rebuild_interest_cache();
    pollster::block_on(work(&Memory::new()))
}

/// Waits until the condition holds: a span that ends on a thread of the library is closed by the thread for events.
fn eventually(holds: impl Fn() -> bool) {
    (0..2_000).take_while(|_| !holds()).for_each(|_| std::thread::sleep(std::time::Duration::from_millis(10)));
}

#[test]
fn into_a_file() {
    let _alone = alone();
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
    tracing::subscriber::with_default(set(), traced_work).expect("free");
    eventually(|| std::fs::read_to_string(path).is_ok_and(|lines| lines.contains("\"held\":\"")));
    let lines = std::fs::read_to_string(path).expect("written");
    let of = |span: &str| {
        let mut lines = lines.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON"));
        let is_its_end =
            |line: &serde_json::Value| line["span"]["name"] == span && line["fields"]["message"] == "close";
        lines.rfind(is_its_end).expect(span)["span"].clone()
    };
    assert!(of("acquire")["waited"].is_string() && of("acquire")["path"] == "/locks/orders", "{lines}");
    assert!(of("hold")["held"].is_string() && of("hold")["label"] == "migrate v42", "{lines}");
}

#[test]
fn into_open_telemetry() {
    let _alone = alone();
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
    tracing::subscriber::with_default(subscriber, traced_work).expect("free");
    provider.force_flush().expect("exported");
    eventually(|| exporter.get_finished_spans().is_ok_and(|spans| spans.len() == 2));
    let spans = exporter.get_finished_spans().expect("kept");
    let names: Vec<_> = spans.iter().map(|span| span.name.to_string()).collect();
    assert_eq!(names, ["acquire", "hold"]);
    assert!(spans[1].attributes.iter().any(|it| it.key.as_str() == "token"), "{:?}", spans[1].attributes);
}

#[test]
fn as_a_picture() {
    let _alone = alone();
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
    tracing::subscriber::with_default(subscriber, traced_work).expect("free");
    drop(written);
    let mut text = String::new();
    std::fs::File::open(path).expect("written").read_to_string(&mut text).expect("text");
    let events: Vec<serde_json::Value> = serde_json::from_str(&text).expect("JSON");
    let begins: Vec<_> =
        events.iter().filter(|it| it["ph"] == "b").map(|it| it["name"].as_str().expect("a name")).collect();
    assert_eq!(begins, ["acquire", "hold"]);
}
