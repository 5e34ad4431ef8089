//! How many permits a semaphore has, as far as its handle knows.

use crate::error::error::Error;
use crate::error::permits::PermitsError;
use crate::sync::Mutex;

/// The number of a semaphore's permits, as its handle knows it. All clones of the handle share this.
#[derive(Debug)]
pub(crate) struct PermitLimit(Mutex<KnownNumber>);

#[derive(Clone, Copy, Debug)]
enum KnownNumber {
    Nothing,
    /// The user gave it. It has not been compared with the ensemble's yet.
    Given(u32),
    /// The ensemble had it when it was last looked at.
    Seen(u32),
}

impl PermitLimit {
    pub(crate) fn new(given: Option<u32>) -> PermitLimit {
        PermitLimit(Mutex::new(given.map_or(KnownNumber::Nothing, KnownNumber::Given)))
    }

    /// The number to begin with, if the ensemble has none.
    pub(crate) fn known(&self) -> Option<u32> {
        match *self.0.lock() {
            KnownNumber::Nothing => None,
            KnownNumber::Given(number) | KnownNumber::Seen(number) => Some(number),
        }
    }

    /// The ensemble has this number. From now on the handle goes by what the ensemble has.
    ///
    /// # Errors
    /// The user gave another number, and this is the handle's first look.
    pub(crate) fn sees(&self, path: &str, number: u32) -> Result<(), Error> {
        let mut known = self.0.lock();
        match *known {
            KnownNumber::Given(ours) if ours != number => Err(of(path, PermitsError::Other { ours, theirs: number })),
            _ => {
                *known = KnownNumber::Seen(number);
                Ok(())
            }
        }
    }

    /// The number was changed for all by this handle.
    pub(crate) fn is_set(&self, number: u32) {
        *self.0.lock() = KnownNumber::Seen(number);
    }

    /// Refuses what cannot be had by what the user gave. Returns whether the ensemble has to be asked first, because it may
    /// have fewer.
    pub(crate) fn check(&self, path: &str, wanted: u32) -> Result<bool, Error> {
        if wanted == 0 {
            return Err(Error::invalid("no permits are asked for; at least one is"));
        }
        match *self.0.lock() {
            KnownNumber::Given(permits) if wanted > permits => Err(too_few(path, wanted, permits)),
            KnownNumber::Given(_) => Ok(false),
            KnownNumber::Seen(permits) => Ok(wanted > permits),
            KnownNumber::Nothing => Ok(wanted > 1),
        }
    }
}

/// What is wrong with the number of the semaphore at this path.
pub(crate) fn of(path: &str, reason: PermitsError) -> Error {
    Error::Permits { path: path.to_owned(), reason }
}

pub(crate) fn too_few(path: &str, wanted: u32, permits: u32) -> Error {
    of(path, PermitsError::TooFew { wanted, permits })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a handle says of so many permits that are wanted: ask the ensemble first, or not, or that they are too many.
    fn check(limit: &PermitLimit, wanted: u32) -> Result<bool, u32> {
        limit.check("/s", wanted).map_err(|error| match error {
            Error::Permits { reason: PermitsError::TooFew { wanted: asked, permits }, .. } if asked == wanted => {
                permits
            }
            other => panic!("{other}"),
        })
    }

    #[test]
    fn more_permits_than_the_user_gave_are_refused_without_a_request() {
        let limit = PermitLimit::new(Some(3));
        assert_eq!(limit.known(), Some(3));
        assert_eq!([1, 2, 3, 4].map(|wanted| check(&limit, wanted)), [Ok(false), Ok(false), Ok(false), Err(3)]);
    }

    #[test]
    fn more_permits_than_were_seen_are_asked_for() {
        let unknown = PermitLimit::new(None);
        assert_eq!(unknown.known(), None);
        assert_eq!([1, 2].map(|wanted| check(&unknown, wanted)), [Ok(false), Ok(true)]);
        let limit = PermitLimit::new(Some(3));
        limit.is_set(5);
        assert_eq!(limit.known(), Some(5));
        assert_eq!([4, 5, 6].map(|wanted| check(&limit, wanted)), [Ok(false), Ok(false), Ok(true)]);
    }

    #[test]
    fn no_permits_are_never_asked_for() {
        for limit in [PermitLimit::new(None), PermitLimit::new(Some(1))] {
            assert!(matches!(limit.check("/s", 0), Err(Error::InvalidInput(_))));
        }
    }

    #[test]
    fn another_number_than_the_user_gave_is_refused_at_the_first_look_alone() {
        let limit = PermitLimit::new(Some(3));
        assert!(matches!(
            limit.sees("/s", 4),
            Err(Error::Permits { reason: PermitsError::Other { ours: 3, theirs: 4 }, .. })
        ));
        assert_eq!(limit.known(), Some(3));
        assert!(limit.sees("/s", 3).is_ok() && limit.sees("/s", 4).is_ok());
        assert_eq!(limit.known(), Some(4));
        let unknown = PermitLimit::new(None);
        assert!(unknown.sees("/s", 2).is_ok());
        assert_eq!(unknown.known(), Some(2));
    }
}
