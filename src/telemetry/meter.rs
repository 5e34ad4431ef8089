//! What is counted and measured, with the feature `metrics`; knows aims and labels, and decides nothing. Without the
//! feature nothing is here.

use std::sync::Arc;

use crate::queue::mode::Aim;
#[cfg(feature = "metrics")]
use crate::queue::mode::Mode;

#[cfg(feature = "metrics")]
use {crate::telemetry::metrics as names, crate::telemetry::recorder, ::metrics::Key, tokio::time::Instant};

/// An acquisition, counted as waiting until this is dropped.
#[derive(Debug, Default)]
pub(crate) struct WaitTimer(#[cfg(feature = "metrics")] Option<Present>);

impl WaitTimer {
    #[cfg_attr(not(feature = "metrics"), allow(unused_variables, reason = "nothing is measured"))]
    pub(crate) fn begin(aim: Aim, path: &Arc<str>) -> WaitTimer {
        WaitTimer(
            #[cfg(feature = "metrics")]
            Some(Present::begin(names::WAITING, aim, path)),
        )
    }

    pub(crate) fn granted(&self) {
        #[cfg(feature = "metrics")]
        if let Some(Present { aim, began, .. }) = &self.0 {
            let key = Key::from_parts(names::ACQUIRE_WAIT_SECONDS, &[("mode", label(*aim))]);
            recorder::measure(key, began.elapsed().as_secs_f64());
        }
    }
}

/// A hold, counted until it ends, and measured then.
#[derive(Debug, Default)]
pub(crate) struct HoldTimer(#[cfg(feature = "metrics")] Option<Present>);

impl HoldTimer {
    #[cfg_attr(not(feature = "metrics"), allow(unused_variables, reason = "nothing is measured"))]
    pub(crate) fn begin(aim: Aim, path: &Arc<str>) -> HoldTimer {
        HoldTimer(
            #[cfg(feature = "metrics")]
            Some(Present::begin(names::HOLDING, aim, path)),
        )
    }

    /// A downgrade: the hold of one mode ends here, and that of the other mode begins.
    pub(crate) fn goes_on_as_read(&mut self) {
        #[cfg(feature = "metrics")]
        if let Some(Present { path, .. }) = &self.0 {
            *self = HoldTimer::begin(Aim::Lock(Mode::Read), &Arc::clone(path));
        }
    }

    pub(crate) fn is_running(&self) -> bool {
        #[cfg(feature = "metrics")]
        return self.0.is_some();
        #[cfg(not(feature = "metrics"))]
        false
    }
}

#[cfg(feature = "metrics")]
impl Drop for HoldTimer {
    fn drop(&mut self) {
        if let Some(Present { aim, began, .. }) = &self.0 {
            let key = Key::from_parts(names::HOLD_SECONDS, &[("mode", label(*aim))]);
            recorder::measure(key, began.elapsed().as_secs_f64());
        }
    }
}

/// What a gauge shows until it is dropped.
#[cfg(feature = "metrics")]
#[derive(Debug)]
struct Present {
    gauge: &'static str,
    aim: Aim,
    path: Arc<str>,
    began: Instant,
}

#[cfg(feature = "metrics")]
impl Present {
    fn begin(gauge: &'static str, aim: Aim, path: &Arc<str>) -> Present {
        let present = Present { gauge, aim, path: Arc::clone(path), began: Instant::now() };
        recorder::raise(present.key(), 1);
        present
    }

    fn key(&self) -> Key {
        let path = ::metrics::SharedString::from_shared(Arc::clone(&self.path));
        Key::from_parts(self.gauge, &[("path", path), ("mode", label(self.aim).into())])
    }
}

#[cfg(feature = "metrics")]
impl Drop for Present {
    fn drop(&mut self) {
        recorder::raise(self.key(), -1);
    }
}

/// A removal of an own node, counted as pending until it is dropped.
#[derive(Debug)]
pub(crate) struct Removal(());

impl Removal {
    pub(crate) fn begin() -> Removal {
        #[cfg(feature = "metrics")]
        recorder::raise(Key::from_static_name(names::REMOVALS_PENDING), 1);
        Removal(())
    }
}

impl Drop for Removal {
    fn drop(&mut self) {
        #[cfg(feature = "metrics")]
        recorder::raise(Key::from_static_name(names::REMOVALS_PENDING), -1);
    }
}

/// A node that is kept, counted until it is dropped.
#[derive(Debug)]
pub(crate) struct KeptNode(());

impl KeptNode {
    pub(crate) fn begin() -> KeptNode {
        #[cfg(feature = "metrics")]
        recorder::raise(Key::from_static_name(names::KEPT_NODES), 1);
        KeptNode(())
    }

    #[cfg_attr(not(feature = "metrics"), allow(unused_variables, reason = "nothing is measured"))]
    pub(crate) fn given_up(self, cause: &'static str) {
        #[cfg(feature = "metrics")]
        recorder::count(Key::from_parts(names::KEPT_GIVEN_UP, &[("cause", cause)]));
    }
}

impl Drop for KeptNode {
    fn drop(&mut self) {
        #[cfg(feature = "metrics")]
        recorder::raise(Key::from_static_name(names::KEPT_NODES), -1);
    }
}

#[cfg_attr(not(feature = "metrics"), allow(unused_variables, reason = "nothing is measured"))]
pub(crate) fn granted(aim: Aim, kind: &'static str) {
    #[cfg(feature = "metrics")]
    recorder::count(Key::from_parts(names::GRANTS, &[("mode", label(aim)), ("kind", kind)]));
}

#[cfg_attr(not(feature = "metrics"), allow(unused_variables, reason = "nothing is measured"))]
pub(crate) fn entered(aim: Aim, others: usize) {
    #[cfg(feature = "metrics")]
    recorder::measure(Key::from_parts(names::QUEUE_LENGTH, &[("mode", label(aim))]), others as f64);
}

#[cfg_attr(not(feature = "metrics"), allow(unused_variables, reason = "nothing is measured"))]
pub(crate) fn would_block(aim: Aim) {
    #[cfg(feature = "metrics")]
    recorder::count(Key::from_parts(names::WOULD_BLOCK, &[("mode", label(aim))]));
}

#[cfg_attr(not(feature = "metrics"), allow(unused_variables, reason = "nothing is measured"))]
pub(crate) fn timed_out(aim: Aim) {
    #[cfg(feature = "metrics")]
    recorder::count(Key::from_parts(names::TIMEOUTS, &[("mode", label(aim))]));
}

#[cfg_attr(not(feature = "metrics"), allow(unused_variables, reason = "nothing is measured"))]
pub(crate) fn lost(cause: &'static str) {
    #[cfg(feature = "metrics")]
    recorder::count(Key::from_parts(names::LOSSES, &[("cause", cause)]));
}

pub(crate) fn recovered() {
    #[cfg(feature = "metrics")]
    recorder::count(Key::from_static_name(names::RECOVERIES));
}

pub(crate) fn heartbeat() {
    #[cfg(feature = "metrics")]
    recorder::count(Key::from_static_name(names::HEARTBEATS));
}

#[cfg(feature = "metrics")]
fn label(aim: Aim) -> &'static str {
    match aim {
        Aim::Lock(Mode::Read) => "read",
        Aim::Lock(Mode::Write) => "write",
        Aim::Permit => "permit",
    }
}
