//! How a queue is printed; knows the clock, and nothing of how the queue was read.

use std::fmt;
use std::time::{Duration, SystemTime};

use crate::queue::member::{Blockers, Member, MemberState, Queue};

impl fmt::Display for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.members.is_empty() {
            return write!(f, "{}: free", self.path);
        }
        write!(f, "{}:", self.path)?;
        for member in &self.members {
            let state = match &member.state {
                MemberState::Holds if member.keeps => "keeps".to_owned(),
                MemberState::Holds => "holds".to_owned(),
                MemberState::Waits { behind } => format!("waits behind {behind}"),
                MemberState::Stuck => "is stuck".to_owned(),
            };
            write!(f, "\n  {member}, {state}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let who = if self.host.is_empty() { &self.node } else { &self.host };
        write!(f, "{} {who}", self.mode)?;
        if let Some(pid) = self.pid {
            write!(f, " pid {pid}")?;
        }
        if let Some(label) = &self.label {
            write!(f, " {label:?}")?;
        }
        if let Some(since) = self.since {
            // The clocks of two machines differ. An entry in the future counts as an entry of just now.
            let age = SystemTime::now().duration_since(since).unwrap_or(Duration::ZERO);
            let whole_seconds = Duration::from_secs(age.as_secs());
            let age = if whole_seconds.is_zero() {
                Duration::from_millis(u64::from(age.subsec_millis()))
            } else {
                whole_seconds
            };
            write!(f, " for {}", humantime::format_duration(age))?;
        }
        Ok(())
    }
}

impl fmt::Display for Blockers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.ahead == 0 {
            return f.write_str("nobody is known to be in the way");
        }
        let holders = self.first.iter().filter(|member| member.state == MemberState::Holds);
        let named: Vec<String> = holders.map(Member::to_string).collect();
        match (named.as_slice(), self.first.first()) {
            ([], None) => write!(f, "{} ahead", self.ahead),
            // The holder has left since the listing. One of the waiters holds the lock now, or soon will.
            ([], Some(next)) => write!(f, "behind {next}; {} ahead", self.ahead),
            (holders, _) => write!(f, "held by {}; {} ahead", holders.join(" and "), self.ahead),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::contender::Contender;
    use crate::queue::turn::Turn;
    use crate::snapshot::read::member;

    #[test]
    fn blockers_name_the_next_in_line_when_the_holder_has_just_left() {
        let contender = Contender::parse("web-1~k3v9x2ma-WRITE-0000000007").unwrap();
        let waits = member(&contender, &Turn::Behind(contender.clone()), None);
        let holds = member(&contender, &Turn::Granted, None);
        let text = |ahead, first: &[Member]| Blockers { ahead, first: first.to_vec() }.to_string();
        assert_eq!(text(0, &[]), "nobody is known to be in the way");
        assert_eq!(text(2, &[]), "2 ahead");
        assert_eq!(text(2, std::slice::from_ref(&waits)), "behind WRITE web-1; 2 ahead");
        assert_eq!(text(2, &[holds, waits]), "held by WRITE web-1; 2 ahead");
    }
}
