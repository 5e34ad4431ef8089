//! Counters, gauges and histograms of the library. Without the feature `metrics` these functions do nothing.

#![cfg_attr(not(feature = "metrics"), allow(unused_variables, reason = "nothing is measured"))]

use std::sync::Arc;

use crate::queue::mode::{Aim, Mode};
#[cfg(feature = "metrics")]
use crate::telemetry::{metrics, names};

#[cfg(feature = "metrics")]
use {::metrics::Key, tokio::time::Instant};

/// Adds one to a gauge until this guard is dropped. The default guard has no gauge.
#[derive(Default)]
pub(crate) struct GaugeGuard(#[cfg(feature = "metrics")] Option<Raised>);

#[cfg(feature = "metrics")]
struct Raised {
    gauge: &'static str,
    /// The values of the labels `mode` and `path`, for a gauge that has them.
    lock: Option<(Aim, Arc<str>)>,
    began: Instant,
}

impl GaugeGuard {
    /// Adds one to the gauge. `lock` has the values of its labels, if the gauge has labels.
    pub(crate) fn new(gauge: &'static str, lock: Option<(Aim, &Arc<str>)>) -> GaugeGuard {
        GaugeGuard(
            #[cfg(feature = "metrics")]
            Some(Raised::begin(gauge, lock)),
        )
    }

    pub(crate) fn is_some(&self) -> bool {
        #[cfg(feature = "metrics")]
        return self.0.is_some();
        #[cfg(not(feature = "metrics"))]
        false
    }

    /// Records how long the acquisition has waited. Called when the lock is granted.
    pub(crate) fn granted(&self) {
        #[cfg(feature = "metrics")]
        self.0.iter().for_each(|raised| raised.measure(names::ACQUIRE_WAIT_SECONDS));
    }

    /// Moves the hold from mode `write` to mode `read` in the gauge, after a downgrade.
    pub(crate) fn change_to_read(&mut self) {
        #[cfg(feature = "metrics")]
        if let Some((_, path)) = self.0.as_ref().and_then(|held| held.lock.clone()) {
            *self = GaugeGuard::new(names::HOLDING, Some((Aim::Lock(Mode::Read), &path)));
        }
    }
}

#[cfg(feature = "metrics")]
impl Raised {
    fn begin(gauge: &'static str, lock: Option<(Aim, &Arc<str>)>) -> Raised {
        let lock = lock.map(|(aim, path)| (aim, Arc::clone(path)));
        let raised = Raised { gauge, lock, began: Instant::now() };
        metrics::raise(raised.key(), 1);
        raised
    }

    fn key(&self) -> Key {
        let Some((aim, path)) = &self.lock else { return Key::from_static_name(self.gauge) };
        let path = ::metrics::SharedString::from_shared(Arc::clone(path));
        Key::from_parts(self.gauge, &[("path", path), ("mode", label(*aim).into())])
    }

    fn measure(&self, histogram: &'static str) {
        if let Some((aim, _)) = &self.lock {
            metrics::measure(Key::from_parts(histogram, &[("mode", label(*aim))]), self.began.elapsed().as_secs_f64());
        }
    }
}

impl Drop for GaugeGuard {
    fn drop(&mut self) {
        #[cfg(feature = "metrics")]
        if let Some(raised) = &self.0 {
            if raised.gauge == names::HOLDING {
                raised.measure(names::HOLD_SECONDS);
            }
            metrics::raise(raised.key(), -1);
        }
    }
}

/// Adds one to a counter.
pub(crate) fn count(name: &'static str, labels: &[(&'static str, &'static str)]) {
    #[cfg(feature = "metrics")]
    metrics::count(Key::from_parts(name, labels));
}

/// Records the number of names in the directory at a contender's first listing, without its own. The names of nodes that are
/// not contenders count, too.
pub(crate) fn entered(aim: Aim, others: usize) {
    #[cfg(feature = "metrics")]
    metrics::measure(Key::from_parts(names::QUEUE_LENGTH, &[("mode", label(aim))]), others as f64);
}

/// Returns the value of the label `mode`.
pub(crate) fn label(aim: Aim) -> &'static str {
    match aim {
        Aim::Lock(Mode::Read) => "read",
        Aim::Lock(Mode::Write) => "write",
        Aim::Permit => "permit",
    }
}
