//! Who leads, as the queue shows it.

use std::fmt;
use std::time::SystemTime;

use crate::queue::contender::Contender;
use crate::queue::dialect::Dialect;
use crate::queue::metadata::Said;
use crate::queue::mode::Mode;
use crate::queue::turn::{self, Turn};
use crate::session::request::Stat;

/// Who leads. Given by [`Leadership::leader`](crate::Leadership::leader) and
/// [`Leadership::changes`](crate::Leadership::changes).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leader {
    /// The [number](crate::Term::number) of its term.
    pub term: i64,
    /// The host that it gives; empty if it gives none.
    pub host: String,
    /// The process id that it gives.
    pub pid: Option<u32>,
    /// What it [publishes](crate::LeadershipBuilder::data) of itself.
    pub data: Option<String>,
    /// The ensemble's number for the session that owns its node.
    pub session: i64,
    /// When it became a candidate for this term, on the ensemble's clock.
    pub since: SystemTime,
}

impl Leader {
    pub(crate) fn of(contender: &Contender, data: &[u8], stat: Stat) -> Leader {
        let Said { host, pid, label, .. } = Said::of(contender, Some(data));
        let (term, session, since) = (stat.czxid, stat.ephemeral_owner, stat.ctime);
        Leader { term, host, pid, data: label, session, since }
    }
}

/// One line for people.
impl fmt::Display for Leader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.host)?;
        if let Some(pid) = self.pid {
            write!(f, " pid {pid}")?;
        }
        if let Some(data) = &self.data {
            write!(f, " {data:?}")?;
        }
        write!(f, " in term {}", self.term)
    }
}

/// The contender that leads, of those in the queue. A reader in front leads nothing, and lets nobody lead.
pub(crate) fn leading(dialect: Dialect, names: &[String]) -> Option<Contender> {
    let first = turn::turns(dialect, names).into_iter().next();
    first.filter(|(contender, turn)| contender.mode() == Mode::Write && *turn == Turn::Granted).map(|(first, _)| first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_writer_leads_unless_a_reader_or_a_tie_is_before_it() {
        let leading = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
            leading(Dialect::Native, &names).map(|leads| leads.name().to_owned())
        };
        let [one, two] = ["web-1~aaaaaaaa-WRITE-0000000001", "web-2~bbbbbbbb-WRITE-0000000002"];
        assert_eq!(leading(&[two, "stranger", one]).as_deref(), Some(one));
        assert_eq!(leading(&["web-3~cccccccc-READ-0000000000", one]), None);
        assert_eq!(leading(&[one, "web-3~cccccccc-WRITE-0000000001", two]), None);
        assert_eq!(leading(&[]), None);
    }
}
