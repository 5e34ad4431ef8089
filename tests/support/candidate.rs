//! A candidate for leadership whose work never ends by itself. It reports when a term begins and when the work of a
//! term is dropped. Use it to test who leads, and for how long.

use std::future::pending;

use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use zk_rwlock::leadership::Term;
use zk_rwlock::{Error, Leadership};

use super::scene::soon;

/// An event in a candidate's campaign.
#[derive(Debug)]
pub enum TermEvent {
    Leads(Term),
    /// The work of the term with this number was dropped.
    Dropped(i64),
}

/// A candidate whose campaign runs in a task of its own.
pub struct Candidate {
    pub leadership: Leadership,
    pub campaign: JoinHandle<Result<Option<()>, Error>>,
    pub events: mpsc::UnboundedReceiver<TermEvent>,
}

/// Sends [`TermEvent::Dropped`] with the term's number when it is dropped.
struct ReportsDrop(mpsc::UnboundedSender<TermEvent>, i64);

impl Drop for ReportsDrop {
    fn drop(&mut self) {
        let _nobody_listens = self.0.send(TermEvent::Dropped(self.1));
    }
}

/// Returns the work of a candidate. The work sends [`TermEvent::Leads`] when a term begins, and ends only when it is
/// dropped.
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

    /// Waits for the next term and returns it. Fails if the term does not begin soon.
    pub async fn leads(&mut self) -> Term {
        match soon("the term", self.events.recv()).await.expect("the candidate campaigns") {
            TermEvent::Leads(term) => term,
            TermEvent::Dropped(term) => panic!("the work of term {term} was dropped"),
        }
    }

    /// Waits until the work of a term is dropped, and returns the term's number. Fails if that does not happen soon.
    pub async fn is_dropped(&mut self) -> i64 {
        match soon("the end of the term", self.events.recv()).await.expect("the candidate campaigns") {
            TermEvent::Dropped(term) => term,
            TermEvent::Leads(term) => panic!("{term:?} began"),
        }
    }
}
