//! Counters, gauges and histograms of the library. Without the feature `metrics`, the functions in this file record
//! nothing.

#![cfg_attr(not(feature = "metrics"), allow(unused_variables, reason = "nothing is measured"))]

use std::sync::Arc;
use std::time::Duration;

use crate::queue::mode::{AcquisitionAim, Mode};
#[cfg(feature = "metrics")]
use crate::telemetry::{metrics, names};

#[cfg(feature = "metrics")]
use {
    ::metrics::{Key, Label, SharedString},
    tokio::time::Instant,
};

/// The value of the label `path` in the metrics of one lock handle.
#[derive(Debug)]
#[cfg_attr(not(feature = "metrics"), allow(dead_code, reason = "nothing is measured"))]
pub(crate) struct PathLabel {
    value: Arc<str>,
    /// `true` if all metrics of the lock have the label. `false` if only the gauges of waiters and holders have the
    /// label.
    is_everywhere: bool,
}

impl PathLabel {
    /// Returns the label of the lock at `path`. If the user wants a label on all metrics of the lock, `chosen` is this
    /// label. This function then also creates the lock's counters of losses, with the value zero.
    pub(crate) fn new(path: &Arc<str>, chosen: Option<Arc<str>>) -> Arc<PathLabel> {
        let is_everywhere = chosen.is_some();
        let label = Arc::new(PathLabel { value: chosen.unwrap_or_else(|| Arc::clone(path)), is_everywhere });
        #[cfg(feature = "metrics")]
        if is_everywhere {
            metrics::create_zero_counters(
                metrics::LOSS_CAUSES.map(|cause| metric_key(names::LOSSES, Some(&label), &[("cause", cause)])),
            );
        }
        label
    }
}

/// Returns the key of a metric with these labels. The key also has the label `path` if the metric is one of the two
/// gauges named below, or if the user wants the label on all metrics.
#[cfg(feature = "metrics")]
fn metric_key(name: &'static str, path: Option<&PathLabel>, labels: &[(&'static str, &'static str)]) -> Key {
    let has_path = |path: &&PathLabel| path.is_everywhere || name == names::WAITING || name == names::HOLDING;
    let path = path.filter(has_path).map(|path| Label::new("path", SharedString::from_shared(Arc::clone(&path.value))));
    Key::from_parts(name, path.into_iter().chain(labels.iter().map(Label::from)).collect::<Vec<_>>())
}

/// Adds one to a gauge until this guard is dropped. For the gauge of holds, the drop also records for how long the
/// guard existed. The default guard has no gauge.
#[derive(Default)]
pub(crate) struct GaugeGuard(#[cfg(feature = "metrics")] Option<RaisedGauge>);

#[cfg(feature = "metrics")]
struct RaisedGauge {
    gauge: &'static str,
    /// The value of the label `mode`. `None` for a gauge without this label.
    aim: Option<AcquisitionAim>,
    path: Option<Arc<PathLabel>>,
    began: Instant,
}

impl GaugeGuard {
    /// Adds one to the gauge. `aim` gives the value of the gauge's label `mode`, and `path` the value of its label
    /// `path`. Each is `None` if the gauge does not have that label.
    pub(crate) fn new(gauge: &'static str, aim: Option<AcquisitionAim>, path: Option<&Arc<PathLabel>>) -> GaugeGuard {
        GaugeGuard(
            #[cfg(feature = "metrics")]
            Some(RaisedGauge::raise(gauge, aim, path.cloned())),
        )
    }

    pub(crate) fn is_raised(&self) -> bool {
        #[cfg(feature = "metrics")]
        return self.0.is_some();
        #[cfg(not(feature = "metrics"))]
        false
    }

    /// Called when the lock is granted. Records for how long the acquisition has waited, which is the time since this
    /// `GaugeGuard` was created.
    pub(crate) fn record_acquire_wait(&self) {
        #[cfg(feature = "metrics")]
        self.0.iter().for_each(|raised| raised.record_elapsed(names::ACQUIRE_WAIT_SECONDS));
    }

    /// After a downgrade: counts the hold in mode `read` instead of mode `write`.
    pub(crate) fn change_mode_to_read(&mut self) {
        #[cfg(feature = "metrics")]
        if let Some(path) = self.0.as_ref().and_then(|held| held.path.clone()) {
            *self = GaugeGuard::new(names::HOLDING, Some(AcquisitionAim::Lock(Mode::Read)), Some(&path));
        }
    }
}

#[cfg(feature = "metrics")]
impl RaisedGauge {
    fn raise(gauge: &'static str, aim: Option<AcquisitionAim>, path: Option<Arc<PathLabel>>) -> RaisedGauge {
        let raised = RaisedGauge { gauge, aim, path, began: Instant::now() };
        metrics::add_to_gauge(raised.key(gauge), 1);
        raised
    }

    fn key(&self, name: &'static str) -> Key {
        let mode = self.aim.map(|aim| ("mode", mode_label(aim)));
        metric_key(name, self.path.as_deref(), mode.as_slice())
    }

    fn record_elapsed(&self, histogram: &'static str) {
        metrics::record_measurement(self.key(histogram), self.began.elapsed().as_secs_f64());
    }
}

impl Drop for GaugeGuard {
    fn drop(&mut self) {
        #[cfg(feature = "metrics")]
        if let Some(raised) = &self.0 {
            if raised.gauge == names::HOLDING {
                raised.record_elapsed(names::HOLD_SECONDS);
            }
            metrics::add_to_gauge(raised.key(raised.gauge), -1);
        }
    }
}

/// Adds one to a counter. If the counter is about a lock, `path` is the label of that lock.
pub(crate) fn increment_counter(name: &'static str, path: Option<&PathLabel>, labels: &[(&'static str, &'static str)]) {
    #[cfg(feature = "metrics")]
    metrics::increment_counter(metric_key(name, path, labels));
}

/// Records for how long a session's connection was lost.
pub(crate) fn record_connection_break(length: Duration) {
    #[cfg(feature = "metrics")]
    metrics::record_measurement(metric_key(names::CONNECTION_BREAK_SECONDS, None, &[]), length.as_secs_f64());
}

/// Records the number of other nodes in the directory at a contender's first listing. Nodes that are not contenders
/// count, too.
pub(crate) fn record_queue_length(aim: AcquisitionAim, path: &PathLabel, others: usize) {
    #[cfg(feature = "metrics")]
    metrics::record_measurement(
        metric_key(names::QUEUE_LENGTH, Some(path), &[("mode", mode_label(aim))]),
        others as f64,
    );
}

/// Returns the value of the label `mode`.
pub(crate) fn mode_label(aim: AcquisitionAim) -> &'static str {
    match aim {
        AcquisitionAim::Lock(Mode::Read) => "read",
        AcquisitionAim::Lock(Mode::Write) => "write",
        AcquisitionAim::Permit => "permit",
    }
}
