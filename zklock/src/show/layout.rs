//! Fits a table into the columns of a terminal: drops columns of the table and shortens cells.
//!
//! If the output is no terminal, no column is dropped and no cell is shortened. On a terminal that is too narrow, these
//! steps are taken one after the other until the table fits:
//! 1. SESSION is dropped.
//! 2. Cells take their brief form, if they have one.
//! 3. Cells with names, such as hosts and labels, are shortened, the widest first, down to a width of 12.
//! 4. The columns of [`MAY_GO`] are dropped one by one. Each of them stands there with a width. Before a column is
//!    dropped, the cells with names are shortened further, down to that width.
//!
//! TOKEN, PATH and WAITING are never dropped. If they alone are too wide, the lines are cut.

use crate::output::{shorten, shorten_in_the_middle, width};

/// The columns that may be dropped, in this order. Before a column is dropped, the cells that may be shortened are
/// shortened down to the width beside its name.
const MAY_GO: [(&str, usize); 12] = [
    ("PID", 12),
    ("TREND", 12),
    ("BEHIND", 8),
    ("QUEUED", 8),
    ("LONGEST", 8),
    ("LABEL", 8),
    ("HOLDER", 8),
    ("MODE", 8),
    ("HOST", 8),
    ("HELD", 1),
    ("STATE", 1),
    ("PLACE", 1),
];

/// The number of spaces between two columns.
const BETWEEN: usize = 2;

/// How the cells of a column are shortened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// The cells are not shortened, because a shortened number would be read as another number.
    Never,
    /// The cells are shortened in the middle, because names with the same beginning often differ at the end.
    Middle,
    End,
}

/// A column: its heading, and a cell for each row.
#[derive(Clone, Debug)]
pub(crate) struct Column {
    heading: &'static str,
    cells: Vec<String>,
    brief: Option<Vec<String>>,
    cut: Cut,
}

impl Column {
    pub(crate) fn new(heading: &'static str, cells: Vec<String>) -> Column {
        Column { heading, cells, brief: None, cut: Cut::Never }
    }

    /// Allows the cells to be shortened in this way.
    pub(crate) fn with_cut(self, cut: Cut) -> Column {
        Column { cut, ..self }
    }

    /// Sets a brief form of the cells for narrow terminals.
    pub(crate) fn with_brief_cells(self, brief: Vec<String>) -> Column {
        Column { brief: Some(brief), ..self }
    }

    fn width(&self) -> usize {
        self.cells.iter().map(|cell| width(cell)).max().unwrap_or(0).max(width(self.heading))
    }

    /// Returns the width down to which the cells may be shortened: `least`, or the width of the heading if that is
    /// greater. A column keeps its width if it is narrower already, or if its cells must not be shortened.
    fn narrowest(&self, least: usize) -> usize {
        match self.cut {
            Cut::Never => self.width(),
            Cut::Middle | Cut::End => self.width().min(least.max(width(self.heading))),
        }
    }

    fn shortened(mut self, most: usize) -> Column {
        for cell in &mut self.cells {
            *cell = if self.cut == Cut::Middle { shorten_in_the_middle(cell, most) } else { shorten(cell, most) };
        }
        self
    }
}

/// Returns the table as lines, the headings first. If `most` is given, each line is shortened to the width `most` if
/// necessary.
pub(crate) fn table_lines(mut columns: Vec<Column>, most: Option<usize>) -> Vec<String> {
    if let Some(most) = most {
        columns = fit_columns(columns, most);
    }
    let headings = columns.iter().map(|column| column.heading).collect();
    let rows = columns.iter().map(|column| column.cells.len()).min().unwrap_or(0);
    let cells = |row: usize| columns.iter().map(|column| column.cells[row].as_str()).collect();
    let widths: Vec<usize> = columns.iter().map(Column::width).collect();
    std::iter::once(headings)
        .chain((0..rows).map(cells))
        .map(|cells: Vec<&str>| {
            let padded =
                cells.iter().zip(&widths).map(|(cell, widest)| format!("{cell}{:1$}", "", widest - width(cell)));
            let line = padded.collect::<Vec<_>>().join(&" ".repeat(BETWEEN)).trim_end().to_owned();
            // A table of a single column may still be wider than the terminal.
            most.map_or(line.clone(), |most| shorten(&line, most))
        })
        .collect()
}

/// Returns the lines in at most `rows` rows. If lines are left out, the last row says how many. Needs one row even if
/// `rows` is zero, unless there are no lines.
pub(crate) fn limit_rows(rows: usize, mut lines: Vec<String>, columns: usize) -> Vec<String> {
    if lines.len() > rows {
        let left_out = lines.split_off(rows.saturating_sub(1)).len();
        lines.push(shorten(&format!("... and {left_out} more"), columns));
    }
    lines
}

fn fit_columns(mut columns: Vec<Column>, most: usize) -> Vec<Column> {
    if total_width(&columns, Column::width) > most {
        columns.retain(|column| column.heading != "SESSION");
    }
    if total_width(&columns, Column::width) > most {
        for column in &mut columns {
            column.cells = column.brief.take().unwrap_or_else(|| std::mem::take(&mut column.cells));
        }
    }
    for (goes, least) in MAY_GO {
        if total_width(&columns, |column| column.narrowest(least)) <= most {
            return shorten_widest(columns, most, least);
        }
        columns.retain(|column| column.heading != goes);
    }
    columns
}

/// Shortens the widest columns until the table fits into `most`, or no column may get narrower ([`Column::narrowest`]).
fn shorten_widest(columns: Vec<Column>, most: usize, least: usize) -> Vec<Column> {
    let mut widths: Vec<usize> = columns.iter().map(Column::width).collect();
    let narrowest: Vec<usize> = columns.iter().map(|column| column.narrowest(least)).collect();
    let mut excess = total_width(&columns, Column::width).saturating_sub(most);
    while excess > 0 {
        let may = (0..columns.len()).filter(|&at| widths[at] > narrowest[at]);
        let Some(widest) = may.max_by_key(|&at| widths[at]) else { break };
        widths[widest] -= 1;
        excess -= 1;
    }
    columns.into_iter().zip(widths).map(|(column, width)| column.shortened(width)).collect()
}

fn total_width(columns: &[Column], width: impl Fn(&Column) -> usize) -> usize {
    columns.iter().map(width).sum::<usize>() + BETWEEN * columns.len().saturating_sub(1)
}

/// Replaces the domain that all hosts share by an ellipsis. Hosts without a domain stay as they are.
pub(crate) fn without_shared_domain(hosts: &[String]) -> Vec<String> {
    // A host that ends with a digit counts as an IP address, which has dots but no domain.
    let has_domain = |host: &&String| host.contains('.') && !host.ends_with(|last: char| last.is_ascii_digit());
    let mut named = hosts.iter().filter(has_domain);
    let domain = |host: &'_ str| host.find('.').map_or(String::new(), |dot| host[dot..].to_owned());
    let Some(first) = named.next() else { return hosts.to_vec() };
    let shared = named.fold(domain(first), |mut shared, host| {
        while !domain(host).ends_with(&shared) {
            shared = shared[1..].find('.').map_or(String::new(), |dot| shared[dot + 1..].to_owned());
        }
        shared
    });
    let brief = |host: &String| match host.strip_suffix(&shared) {
        Some(rest) if !shared.is_empty() && has_domain(&host) => format!("{rest}…"),
        _ => host.clone(),
    };
    hosts.iter().map(brief).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADINGS: [&str; 10] =
        ["PLACE", "STATE", "MODE", "HOST", "PID", "LABEL", "QUEUED", "SESSION", "BEHIND", "TOKEN"];

    fn columns(rows: &[[&str; 10]]) -> Vec<Column> {
        let cells = |at: usize| rows.iter().map(|row| row[at].to_owned()).collect::<Vec<_>>();
        let column = |(at, heading): (usize, &&'static str)| match *heading {
            "HOST" => Column::new(heading, cells(at))
                .with_cut(Cut::Middle)
                .with_brief_cells(without_shared_domain(&cells(at))),
            "LABEL" => Column::new(heading, cells(at)).with_cut(Cut::End),
            "BEHIND" => {
                let places = cells(at).iter().map(|cell| cell.split(' ').next().unwrap().to_owned()).collect();
                Column::new(heading, cells(at)).with_brief_cells(places)
            }
            _ => Column::new(heading, cells(at)),
        };
        HEADINGS.iter().enumerate().map(column).collect()
    }

    fn headings(lines: &[String]) -> Vec<&str> {
        lines[0].split_whitespace().collect()
    }

    /// Returns tables with few short cells up to tables with many long cells, which have characters of width two and
    /// zero, too.
    fn tables() -> Vec<Vec<[&'static str; 10]>> {
        let plain = ["1", "holds", "WRITE", "web-17", "4711", "backup", "3s", "0x100000a", "-", "4294967301"];
        let long = [
            "2147483647",
            "waits",
            "16 PERMITS",
            "orders-api-7d9f8b6c5d-x2k4j.orders.svc.cluster.local",
            "4194304",
            "a label that is as long as one may be here",
            "1month 12days",
            "0x7fffffffffffffff",
            "2147483646 orders-api-7d9f8b6c5d-x2k4j.orders.svc.cluster.local",
            "9223372036854775807",
        ];
        let wide = [
            "3",
            "stuck",
            "READ",
            "日本語のホスト名前",
            "-",
            "日本語ラベルe\u{301}\u{2764}\u{fe0f}です",
            "2m 1s",
            "none",
            "2 日本語",
            "-",
        ];
        vec![vec![], vec![plain], vec![plain, long], vec![long; 3], vec![plain, wide], vec![wide, long, plain]]
    }

    #[test]
    fn every_line_fits_and_every_token_is_whole() {
        for rows in tables() {
            for most in 1..=260 {
                let lines = table_lines(columns(&rows), Some(most));
                assert_eq!(lines.len(), rows.len() + 1);
                for line in &lines {
                    assert!(width(line) <= most, "{most}: {line:?}");
                }
                let digits = rows.iter().map(|row| row[9].len()).max().unwrap_or(0).max("TOKEN".len());
                if most >= digits {
                    assert!(lines[0].ends_with("TOKEN"), "{most}: {lines:#?}");
                    let tokens = rows.iter().zip(&lines[1..]).all(|(row, line)| line.ends_with(row[9]));
                    assert!(tokens, "{most}: {lines:#?}");
                }
            }
        }
    }

    #[test]
    fn a_wider_terminal_never_shows_fewer_columns() {
        for rows in tables() {
            let mut before = 0;
            for most in 20..=260 {
                let lines = table_lines(columns(&rows), Some(most));
                let shown = headings(&lines);
                let mut rest = HEADINGS.iter();
                assert!(shown.iter().all(|heading| rest.any(|other| other == heading)), "{shown:?}");
                assert!(shown.len() >= before, "{most}: {shown:?}");
                before = shown.len();
            }
            let whole = table_lines(columns(&rows), None);
            assert_eq!(headings(&whole), HEADINGS);
            for (row, line) in rows.iter().zip(&whole[1..]) {
                assert!(row.iter().all(|cell| line.contains(cell)), "{line:?}");
            }
        }
    }

    #[test]
    fn columns_align_with_wide_characters() {
        for rows in tables() {
            for most in [60, 80, 132] {
                let lines = table_lines(columns(&rows), Some(most));
                let start = width(lines[0].rsplit_once(' ').map_or("", |(before, _)| before));
                for (row, line) in rows.iter().zip(&lines[1..]) {
                    let before = line.strip_suffix(row[9]).unwrap();
                    assert_eq!(width(before.trim_end_matches(' ')).max(start + 1), start + 1, "{line:?}");
                    assert_eq!(width(before), start + 1, "{lines:#?}");
                }
            }
        }
    }

    #[test]
    fn columns_are_dropped_and_shortened_in_order() {
        let row = [
            "1",
            "holds",
            "WRITE",
            "web-frontend-blue-17",
            "4711",
            "backup",
            "3s",
            "0x100004f2a5b0001",
            "-",
            "4294967301",
        ];
        let at = |most| table_lines(columns(&[row]), Some(most));
        assert_eq!(headings(&at(111)), HEADINGS);
        let without = |gone: &[&str]| HEADINGS.into_iter().filter(|name| !gone.contains(name)).collect::<Vec<_>>();
        for most in [90, 82] {
            assert_eq!(headings(&at(most)), without(&["SESSION"]));
        }
        assert!(at(84)[1].contains("  web-frontend-blue-17  4711  "), "{:#?}", at(84));
        assert!(at(79)[1].contains("  web-fron…blue-17  4711  "), "{:#?}", at(79));
        assert!(at(71)[1].contains("  web-fro…lue-17  "), "{:#?}", at(71));
        assert_eq!(headings(&at(71)), without(&["SESSION", "PID"]));
        assert_eq!(headings(&at(30)), ["PLACE", "STATE", "TOKEN"]);
        assert_eq!(headings(&at(16)), ["TOKEN"]);
    }

    #[test]
    fn a_table_that_just_fits_is_unchanged() {
        let widest = |lines: &[String]| lines.iter().map(|line| width(line)).max().unwrap_or(0);
        let row =
            ["1", "holds", "WRITE", "a.x.example", "4711", "backup", "3s", "0x100004f2a5b0001", "2 a", "4294967301"];
        let other = ["2", "waits", "READ", "b.x.example", "4712", "report", "1s", "0x100004f2a5b0002", "1 a", "-"];
        let at = |most| table_lines(columns(&[row, other]), Some(most));
        let whole = table_lines(columns(&[row, other]), None);
        assert_eq!(at(widest(&whole)), whole);
        let without_session = at(widest(&whole) - 1);
        assert!(!without_session[0].contains("SESSION") && without_session[1].contains("a.x.example"));
        assert_eq!(at(widest(&without_session)), without_session);
        let brief = at(widest(&without_session) - 1);
        assert!(brief[1].contains(" a… ") && brief[0].contains("PID"), "{brief:#?}");
    }

    #[test]
    fn a_shared_domain_is_cut_from_hosts() {
        for (hosts, brief) in [
            (&["a.x.example", "b.x.example"][..], &["a…", "b…"][..]),
            (&["a.x.example", "b.y.example"], &["a.x…", "b.y…"]),
            (&["a.x.example", "-", "plain"], &["a…", "-", "plain"]),
            (&["a.example", "b.test"], &["a.example", "b.test"]),
            (&["web.example", "a.web.example"], &["web…", "a.web…"]),
            (&["10.0.0.1", "10.1.0.1"], &["10.0.0.1", "10.1.0.1"]),
            (&["日本.example", "10.0.0.1"], &["日本…", "10.0.0.1"]),
            (&[".", "a."], &["…", "a…"]),
            (&[], &[]),
        ] {
            let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
            assert_eq!(without_shared_domain(&hosts), brief);
        }
    }
}
