//! Who of those in the way has left, by what the leader says: a server may keep a node that the ensemble no longer has.

use std::sync::Arc;

use crate::queue::contender::Contender;
use crate::queue::dialect::Dialect;
use crate::queue::mode::Mode;
use crate::session::contract::Session;
use crate::session::ghosts::passes;
use crate::session::presence::{self, check};

/// How many contenders in the way an error names: it must come in time.
pub(crate) const NAMED: usize = 8;

/// Asks the leader for these nodes, which the server shows in a directory. Returns those that are ghosts for this mode.
pub(crate) async fn among<N: AsRef<str>>(
    session: &Arc<dyn Session>,
    directory: &str,
    names: &[N],
    (dialect, mode): (Dialect, Mode),
) -> Vec<Arc<str>> {
    let checks: Vec<_> = names.iter().map(|name| check(format!("{directory}/{}", name.as_ref()), None)).collect();
    let gone = presence::failing(session, &checks).await;
    let gone = gone.into_iter().map(|index| names[index].as_ref().into()).collect();
    left(session, directory, gone, (dialect, mode)).await
}

/// As [`among`], of names that the leader does not have: those whose contenders have left. Logs those that are news.
pub(crate) async fn left(
    session: &Arc<dyn Session>,
    directory: &str,
    gone: Vec<Arc<str>>,
    (dialect, mode): (Dialect, Mode),
) -> Vec<Arc<str>> {
    // A server that has missed a downgrade does not show the reader, which a writer waits for. Another one does.
    let as_reader = |name: &Arc<str>| {
        let writer = Contender::parse_as(name, dialect).filter(|it| it.mode() == Mode::Write)?;
        Some(check(format!("{directory}/{}", writer.downgraded()), None))
    };
    let readers: Vec<_> = gone.iter().enumerate().filter_map(|(index, name)| Some((index, as_reader(name)?))).collect();
    let (of, checks): (Vec<_>, Vec<_>) = readers.into_iter().unzip();
    let mut by = vec![Mode::Write; gone.len()];
    for (index, is_there) in of.into_iter().zip(presence::ask(session, &checks).await) {
        if is_there != Ok(false) {
            by[index] = Mode::Read;
        }
    }
    let found: Vec<_> = gone.into_iter().zip(by).collect();
    let ghosts = session.upkeep().ghosts();
    let news = found.iter().filter(|(name, by)| ghosts.enter(directory, name, *by));
    let news: Vec<_> = news.map(|(name, _)| Arc::clone(name)).collect();
    presence::report_listed(session, directory, news);
    found.into_iter().filter(|(_, by)| passes(mode, *by)).map(|(name, _)| name).collect()
}

/// As [`among`], of contenders in the way in the order of arrival: asks until [`NAMED`] are known that may be there. Returns
/// the ghosts before and between them.
pub(crate) async fn ahead(
    session: &Arc<dyn Session>,
    directory: &str,
    mut in_the_way: &[&str],
    (dialect, mode): (Dialect, Mode),
) -> Vec<Arc<str>> {
    let (mut ghosts, mut there) = (Vec::new(), 0);
    while there < NAMED && !in_the_way.is_empty() {
        let (first, rest) = in_the_way.split_at(in_the_way.len().min(NAMED - there));
        let found = among(session, directory, first, (dialect, mode)).await;
        there += first.len() - found.len();
        ghosts.extend(found);
        in_the_way = rest;
    }
    ghosts
}
