//! Candidates whose work goes on until it is dropped, and tells when it begins and when it ends.

use std::future::pending;

use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use zk_rwlock::leadership::Term;
use zk_rwlock::{Error, Leadership};

use super::scene::soon;

/// What a candidate's work tells.
#[derive(Debug)]
pub enum TermEvent {
    Leads(Term),
    /// The work of the term of this number was dropped.
    Dropped(i64),
}

/// A candidate that campaigns as a task of its own.
pub struct Candidate {
    pub leadership: Leadership,
    pub campaign: JoinHandle<Result<Option<()>, Error>>,
    pub events: mpsc::UnboundedReceiver<TermEvent>,
}

/// Tells that the work was dropped.
struct ReportsDrop(mpsc::UnboundedSender<TermEvent>, i64);

impl Drop for ReportsDrop {
    fn drop(&mut self) {
        let _nobody_listens = self.0.send(TermEvent::Dropped(self.1));
    }
}

/// Work that goes on until it is dropped, and tells its news.
pub fn endless(
    events: mpsc::UnboundedSender<TermEvent>,
) -> impl FnMut(Term) -> std::pin::Pin<Box<dyn Future<Output = ()> + Send>> {
    move |term| {
        let reports_drop = ReportsDrop(events.clone(), term.number());
        let _nobody_listens = events.send(TermEvent::Leads(term));
        Box::pin(async move {
            let _reports_drop = reports_drop;
            pending().await
        })
    }
}

impl Candidate {
    pub fn campaigns(leadership: Leadership) -> Candidate {
        let (sender, events) = mpsc::unbounded_channel();
        let campaigning = leadership.clone();
        let campaign = tokio::spawn(async move { campaigning.lead(endless(sender)).await });
        Candidate { leadership, campaign, events }
    }

    /// The term that begins next, which must be soon.
    pub async fn leads(&mut self) -> Term {
        match soon("the term", self.events.recv()).await.expect("the candidate campaigns") {
            TermEvent::Leads(term) => term,
            TermEvent::Dropped(term) => panic!("the work of term {term} was dropped"),
        }
    }

    /// The number of the term whose work is dropped next, which must be soon.
    pub async fn is_dropped(&mut self) -> i64 {
        match soon("the end of the term", self.events.recv()).await.expect("the candidate campaigns") {
            TermEvent::Dropped(term) => term,
            TermEvent::Leads(term) => panic!("{term:?} began"),
        }
    }
}
