//! What is measured of locks that are kept between uses, and beside what; knows not how drivers are run.

/// Who runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Driver {
    Raw,
    Ours,
}

/// How far the server is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Link {
    Near,
    /// Ten milliseconds each way.
    Far,
}

/// One case: its name, what its lines say that their workload is, how far the server is, and each driver with its
/// arguments. The numbers of operations differ because the times of one do, a thousandfold.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) workload: &'static str,
    pub(crate) link: Link,
    pub(crate) drives: &'static [(Driver, &'static str)],
}

#[rustfmt::skip]
pub(crate) const CASES: [Case; 8] = [
    Case { name: "kept-read-1", workload: "kept", link: Link::Near, drives: &[
        (Driver::Raw, "--workload read --ops 1000"),
        (Driver::Ours, "--workload read --ops 1000"),
        (Driver::Ours, "--workload read --ops 2000000 --keep"),
        (Driver::Ours, "--workload read --ops 4000000 --local"),
    ]},
    Case { name: "kept-read-64", workload: "kept", link: Link::Near, drives: &[
        (Driver::Raw, "--workload contend --n 64 --ops 4000 --sessions 1"),
        (Driver::Ours, "--workload read --n 64 --ops 4000"),
        (Driver::Ours, "--workload read --n 64 --ops 4000000 --keep"),
        (Driver::Ours, "--workload read --n 64 --ops 8000000 --local"),
    ]},
    Case { name: "kept-write-1", workload: "kept", link: Link::Near, drives: &[
        (Driver::Raw, "--workload write --ops 1000"),
        (Driver::Ours, "--workload write --ops 1000"),
        (Driver::Ours, "--workload write --ops 2000000 --keep"),
        (Driver::Ours, "--workload write --ops 4000000 --local"),
    ]},
    Case { name: "kept-write-8", workload: "kept", link: Link::Near, drives: &[
        (Driver::Raw, "--workload contend --n 8 --ops 4000 --sessions 1"),
        (Driver::Ours, "--workload write --n 8 --ops 4000"),
        (Driver::Ours, "--workload write --n 8 --ops 800000 --keep"),
        (Driver::Ours, "--workload write --n 8 --ops 2000000 --local"),
    ]},
    Case { name: "kept-mix-5", workload: "kept", link: Link::Near, drives: &[
        (Driver::Raw, "--workload mix --n 8 --ops 2000 --sessions 8"),
        (Driver::Ours, "--workload mix --n 8 --ops 4000 --write-one-in 20 --apart"),
        (Driver::Ours, "--workload mix --n 8 --ops 4000 --write-one-in 20 --apart --keep"),
        (Driver::Ours, "--workload mix --n 8 --ops 2000 --write-one-in 20"),
        (Driver::Ours, "--workload mix --n 8 --ops 2000 --write-one-in 20 --keep"),
        (Driver::Ours, "--workload mix --n 8 --ops 2000 --write-one-in 20 --local"),
    ]},
    Case { name: "kept-mix-50", workload: "kept", link: Link::Near, drives: &[
        (Driver::Raw, "--workload mix --n 8 --ops 2000 --sessions 8"),
        (Driver::Ours, "--workload mix --n 8 --ops 2000 --write-one-in 2 --apart"),
        (Driver::Ours, "--workload mix --n 8 --ops 2000 --write-one-in 2 --apart --keep"),
        (Driver::Ours, "--workload mix --n 8 --ops 2000 --write-one-in 2"),
        (Driver::Ours, "--workload mix --n 8 --ops 2000 --write-one-in 2 --keep"),
        (Driver::Ours, "--workload mix --n 8 --ops 2000 --write-one-in 2 --local"),
    ]},
    Case { name: "keepers-100", workload: "keepers", link: Link::Near, drives: &[
        (Driver::Raw, "--workload keepers --n 100 --ops 5 --sessions 100"),
        (Driver::Ours, "--workload keepers --n 100 --ops 5"),
        (Driver::Ours, "--workload keepers --n 100 --ops 5 --keep"),
    ]},
    Case { name: "keepers-100-far", workload: "keepers", link: Link::Far, drives: &[
        (Driver::Raw, "--workload keepers --n 100 --ops 5 --sessions 100"),
        (Driver::Ours, "--workload keepers --n 100 --ops 5"),
        (Driver::Ours, "--workload keepers --n 100 --ops 5 --keep"),
    ]},
];
