//! A member of a queue as people see it: by its name alone, and by what its node says.

use crate::queue::contender::Contender;
use crate::queue::dialect::Dialect;
use crate::queue::member::{Blockers, Member, MemberState};
use crate::queue::metadata::{self, Said};
use crate::queue::mode::Mode;
use crate::queue::permits;
use crate::queue::turn::Turn;
use crate::session::request::Stat;

/// A contender as its name shows it.
pub(crate) fn contender(contender: &Contender, turn: &Turn) -> Member {
    let state = match turn {
        Turn::Granted => MemberState::Holds,
        Turn::Behind(other) => MemberState::Waits { behind: other.name().to_owned() },
        Turn::Evicted => MemberState::Stuck,
    };
    let keeps = contender.keeps();
    Member { keeps, ..member(contender.name(), contender.mode(), state, contender.host()) }
}

/// A holder of permits as the name of its node shows it; `None` if the name is no permit's.
pub(super) fn holder(name: &str) -> Option<Member> {
    let by = permits::parse(name)?;
    Some(Member { permits: Some(by.count), ..member(name, Mode::Write, MemberState::Holds, by.host) })
}

fn member(node: &str, mode: Mode, state: MemberState, host: &str) -> Member {
    Member {
        mode,
        permits: None,
        state,
        host: host.to_owned(),
        pid: None,
        label: None,
        session: None,
        since: None,
        token: None,
        keeps: false,
        is_own: false,
        node: node.to_owned(),
    }
}

/// The same member, with what its node says of it.
pub(super) fn with_node(member: &Member, dialect: Dialect, is_own: bool, (data, stat): &(Vec<u8>, Stat)) -> Member {
    let Said { host, pid, label, permits } = match Contender::parse_as(&member.node, dialect) {
        Some(contender) => Said::of(&contender, Some(data)),
        None => Said { host: member.host.clone(), permits: member.permits, ..metadata::read(data) },
    };
    Member {
        permits: permits.filter(|_| dialect == Dialect::Native),
        host,
        pid,
        label,
        session: Some(stat.ephemeral_owner),
        since: Some(stat.ctime),
        token: Some(stat.czxid),
        is_own,
        ..member.clone()
    }
}

/// A contender of this process that is in the way. `note` is what its node says.
pub(crate) fn blocked_by(holder: &Contender, note: &[u8], token: i64) -> Blockers {
    let Said { host, pid, label, .. } = Said::of(holder, Some(note));
    let member = Member { host, pid, label, token: Some(token), is_own: true, ..contender(holder, &Turn::Granted) };
    Blockers { ahead: 1, first: vec![member] }
}
