//! How a queue is printed.

use std::fmt;
use std::time::{Duration, SystemTime};

use crate::queue::done::Done;
use crate::queue::member::{Blockers, Member, MemberState, Queue};
use crate::queue::metadata::date;

impl fmt::Display for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.permits, self.free()) {
            (Some(all), Some(free)) => write!(f, "{}: {free} of {} free", self.path, permits(all))?,
            _ => write!(f, "{}:{}", self.path, if self.members.is_empty() { " free" } else { "" })?,
        }
        for member in &self.members {
            let state = match &member.state {
                MemberState::Holds if member.keeps => "keeps".to_owned(),
                MemberState::Holds => "holds".to_owned(),
                MemberState::Waits { behind } => format!("waits behind {behind}"),
                MemberState::Stuck => "is stuck".to_owned(),
            };
            write!(f, "\n  {member}, {state}")?;
        }
        if let Some(done) = &self.done {
            write!(f, "\n  last {done}")?;
        }
        Ok(())
    }
}

/// So many permits, in words.
fn permits(number: u32) -> String {
    match number {
        1 => "1 permit".to_owned(),
        many => format!("{many} permits"),
    }
}

/// What a process tells of itself, behind its host.
fn tell(f: &mut fmt::Formatter<'_>, pid: Option<u32>, label: Option<&String>) -> fmt::Result {
    let pid = pid.map(|pid| format!(" pid {pid}")).unwrap_or_default();
    let label = label.map(|label| format!(" {label:?}")).unwrap_or_default();
    write!(f, "{pid}{label}")
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let who = if self.host.is_empty() { &self.node } else { &self.host };
        match self.permits {
            Some(1) => write!(f, "PERMIT {who}")?,
            Some(many) => write!(f, "{many} PERMITS {who}")?,
            None => write!(f, "{} {who}", self.mode)?,
        }
        tell(f, self.pid, self.label.as_ref())?;
        if let Some(since) = self.since {
            // The clocks of two machines differ. An entry in the future counts as an entry of just now.
            let age = SystemTime::now().duration_since(since).unwrap_or(Duration::ZERO);
            let whole_seconds = Duration::from_secs(age.as_secs());
            let age = if whole_seconds.is_zero() {
                Duration::from_millis(u64::from(age.subsec_millis()))
            } else {
                whole_seconds
            };
            // When a lock was granted does not show from outside. The node of a permit is made by the grant.
            let is_permit = self.permits.is_some() && self.state == MemberState::Holds;
            let how = if is_permit { "granted" } else { "queued" };
            write!(f, " {how} {} ago", humantime::format_duration(age))?;
        }
        f.write_str(if self.is_own { " (this process)" } else { "" })
    }
}

/// By the ensemble's clock alone, so that a reader whose clock differs reads the same.
impl fmt::Display for Done {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "done at {}", humantime::format_rfc3339_seconds(date(self.at)))?;
        if !self.host.is_empty() {
            write!(f, " by {}", self.host)?;
        }
        tell(f, self.pid, self.label.as_ref())?;
        Ok(())
    }
}

impl fmt::Display for Blockers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.ahead == 0 {
            return f.write_str("nobody is known to be in the way");
        }
        let holders = || self.first.iter().filter(|member| member.state == MemberState::Holds);
        let named = |how: &str, keeps| {
            let all: Vec<_> = holders().filter(|member| member.keeps == keeps).map(Member::to_string).collect();
            (!all.is_empty()).then(|| format!("{how} by {}", all.join(" and ")))
        };
        let named = Vec::from_iter(named("held", false).into_iter().chain(named("kept", true)));
        match (named.as_slice(), self.first.first()) {
            ([], None) => write!(f, "{} ahead", self.ahead),
            // A reader waits for writers alone, and the one before it may wait for readers.
            ([], Some(next)) => write!(f, "behind {next}; {} ahead", self.ahead),
            (holders, _) => write!(f, "{}; {} ahead", holders.join(", "), self.ahead),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::read::contender as member;
    use crate::queue::contender::Contender;
    use crate::queue::turn::Turn;

    #[test]
    fn blockers_name_the_next_in_line_where_none_of_them_holds() {
        let contender = Contender::parse("web-1~k3v9x2ma-WRITE-0000000007").unwrap();
        let waits = member(&contender, &Turn::Behind(contender.clone()));
        let holds = member(&contender, &Turn::Granted);
        let text = |ahead, first: &[Member]| Blockers { ahead, first: first.to_vec() }.to_string();
        assert_eq!(text(0, &[]), "nobody is known to be in the way");
        assert_eq!(text(2, &[]), "2 ahead");
        assert_eq!(text(2, std::slice::from_ref(&waits)), "behind WRITE web-1; 2 ahead");
        assert_eq!(text(2, &[holds, waits]), "held by WRITE web-1; 2 ahead");
    }

    #[test]
    fn blockers_that_keep_are_told_from_those_that_surely_hold() {
        let reader = |name, turn: &Turn| member(&Contender::parse(name).unwrap(), turn);
        let plain = reader("web-1~k3v9x2ma-READ-0000000007", &Turn::Granted);
        let kept = reader("web-2~k3v9x2mb~keep-READ-0000000008", &Turn::Granted);
        let other = reader("web-3~k3v9x2mc~keep-READ-0000000009", &Turn::Granted);
        let behind = Turn::Behind(Contender::parse("web-1~k3v9x2ma-WRITE-0000000007").unwrap());
        let waits = reader("web-4~k3v9x2md~keep-READ-0000000010", &behind);
        let text = |first: &[&Member]| {
            Blockers { ahead: first.len(), first: first.iter().copied().cloned().collect() }.to_string()
        };
        assert_eq!(text(&[&kept]), "kept by READ web-2; 1 ahead");
        assert_eq!(text(&[&kept, &other]), "kept by READ web-2 and READ web-3; 2 ahead");
        assert_eq!(text(&[&kept, &plain, &other]), "held by READ web-1, kept by READ web-2 and READ web-3; 3 ahead");
        assert_eq!(text(&[&waits]), "behind READ web-4; 1 ahead", "what waits keeps nothing yet");
    }

    #[test]
    fn a_queue_shows_what_its_members_do() {
        let mut members: Vec<Member> =
            [("web-1~k3v9x2ma-READ-0000000007", Turn::Granted), ("web-2~k3v9x2mb~keep-READ-0000000008", Turn::Granted)]
                .map(|(name, turn)| member(&Contender::parse(name).unwrap(), &turn))
                .into();
        let waits = Contender::parse("web-3~k3v9x2mc~keep-WRITE-0000000009").unwrap();
        members.push(member(&waits, &Turn::Behind(Contender::parse(&members[1].node).unwrap())));
        let (dialect, path) = (waits.dialect(), "/lock".to_owned());
        let queue = Queue { path, dialect, members, done: None, permits: None };
        assert_eq!(
            queue.to_string(),
            "/lock:\n  READ web-1, holds\n  READ web-2, keeps\n  \
             WRITE web-3, waits behind web-2~k3v9x2mb~keep-READ-0000000008"
        );
    }
}
