//! The way to a lock directory; knows no sessions.

/// Each directory on the way to `path`, outermost first, with `path` itself.
pub(crate) fn steps(path: &str) -> impl Iterator<Item = &str> {
    path.match_indices('/').skip(1).map(|(at, _)| &path[..at]).chain(Some(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_lead_to_the_path() {
        assert_eq!(steps("/a/b/c").collect::<Vec<_>>(), ["/a", "/a/b", "/a/b/c"]);
        assert_eq!(steps("/a").collect::<Vec<_>>(), ["/a"]);
    }
}
