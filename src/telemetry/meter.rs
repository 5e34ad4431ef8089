//! What is counted and measured, with the feature `metrics`; knows aims and labels, and decides nothing. Without the
//! feature nothing is here.

use crate::queue::mode::Aim;
#[cfg(feature = "metrics")]
use crate::queue::mode::Mode;

#[cfg(feature = "metrics")]
use {crate::telemetry::metrics as names, ::metrics, tokio::time::Instant};

/// When an acquisition began.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Began(#[cfg(feature = "metrics")] Option<Instant>);

impl Began {
    pub(crate) fn now() -> Began {
        Began(
            #[cfg(feature = "metrics")]
            Some(Instant::now()),
        )
    }
}

/// A hold, measured when it ends.
#[derive(Debug, Default)]
pub(crate) struct HoldTimer(#[cfg(feature = "metrics")] Option<(Aim, Instant)>);

impl HoldTimer {
    #[cfg_attr(not(feature = "metrics"), allow(unused_variables, reason = "nothing is measured"))]
    pub(crate) fn begin(aim: Aim) -> HoldTimer {
        HoldTimer(
            #[cfg(feature = "metrics")]
            Some((aim, Instant::now())),
        )
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
        if let Some((aim, began)) = self.0 {
            metrics::histogram!(names::HOLD_SECONDS, "mode" => label(aim)).record(began.elapsed());
        }
    }
}

/// A removal of an own node, counted as pending until it is dropped.
#[derive(Debug)]
pub(crate) struct Removal(());

impl Removal {
    pub(crate) fn begin() -> Removal {
        #[cfg(feature = "metrics")]
        metrics::gauge!(names::REMOVALS_PENDING).increment(1.0);
        Removal(())
    }
}

impl Drop for Removal {
    fn drop(&mut self) {
        #[cfg(feature = "metrics")]
        metrics::gauge!(names::REMOVALS_PENDING).decrement(1.0);
    }
}

/// A node that is kept, counted until it is dropped.
#[derive(Debug)]
pub(crate) struct KeptNode(());

impl KeptNode {
    pub(crate) fn begin() -> KeptNode {
        #[cfg(feature = "metrics")]
        metrics::gauge!(names::KEPT_NODES).increment(1.0);
        KeptNode(())
    }

    #[cfg_attr(not(feature = "metrics"), allow(unused_variables, reason = "nothing is measured"))]
    pub(crate) fn given_up(self, cause: &'static str) {
        #[cfg(feature = "metrics")]
        metrics::counter!(names::KEPT_GIVEN_UP, "cause" => cause).increment(1);
    }
}

impl Drop for KeptNode {
    fn drop(&mut self) {
        #[cfg(feature = "metrics")]
        metrics::gauge!(names::KEPT_NODES).decrement(1.0);
    }
}

#[cfg_attr(not(feature = "metrics"), allow(unused_variables, reason = "nothing is measured"))]
pub(crate) fn waited(aim: Aim, began: Began) {
    #[cfg(feature = "metrics")]
    if let Began(Some(began)) = began {
        metrics::histogram!(names::ACQUIRE_WAIT_SECONDS, "mode" => label(aim)).record(began.elapsed());
    }
}

#[cfg_attr(not(feature = "metrics"), allow(unused_variables, reason = "nothing is measured"))]
pub(crate) fn granted(aim: Aim, kind: &'static str) {
    #[cfg(feature = "metrics")]
    metrics::counter!(names::GRANTS, "mode" => label(aim), "kind" => kind).increment(1);
}

#[cfg_attr(not(feature = "metrics"), allow(unused_variables, reason = "nothing is measured"))]
pub(crate) fn entered(aim: Aim, others: usize) {
    #[cfg(feature = "metrics")]
    metrics::histogram!(names::QUEUE_LENGTH, "mode" => label(aim)).record(others as f64);
}

#[cfg_attr(not(feature = "metrics"), allow(unused_variables, reason = "nothing is measured"))]
pub(crate) fn would_block(aim: Aim) {
    #[cfg(feature = "metrics")]
    metrics::counter!(names::WOULD_BLOCK, "mode" => label(aim)).increment(1);
}

#[cfg_attr(not(feature = "metrics"), allow(unused_variables, reason = "nothing is measured"))]
pub(crate) fn timed_out(aim: Aim) {
    #[cfg(feature = "metrics")]
    metrics::counter!(names::TIMEOUTS, "mode" => label(aim)).increment(1);
}

#[cfg_attr(not(feature = "metrics"), allow(unused_variables, reason = "nothing is measured"))]
pub(crate) fn lost(cause: &'static str) {
    #[cfg(feature = "metrics")]
    metrics::counter!(names::LOSSES, "cause" => cause).increment(1);
}

pub(crate) fn recovered() {
    #[cfg(feature = "metrics")]
    metrics::counter!(names::RECOVERIES).increment(1);
}

pub(crate) fn heartbeat() {
    #[cfg(feature = "metrics")]
    metrics::counter!(names::HEARTBEATS).increment(1);
}

#[cfg(feature = "metrics")]
fn label(aim: Aim) -> &'static str {
    match aim {
        Aim::Lock(Mode::Read) => "read",
        Aim::Lock(Mode::Write) => "write",
        Aim::Permit => "permit",
    }
}
