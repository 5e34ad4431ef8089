//! The raw results: one line of JSON for each run of a driver; knows nothing of how they are shown.

use serde_json::Value;

pub(crate) type Outcome<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

#[derive(Debug)]
pub(crate) struct Results(Vec<Run>);

/// One run of one driver.
#[derive(Debug)]
pub(crate) struct Run {
    /// Which server: what stands in the line before a comma.
    pub(crate) label: String,
    pub(crate) case: String,
    pub(crate) peer: String,
    pub(crate) workload: String,
    pub(crate) n: u64,
    line: Value,
}

/// The median of several runs, and between what it lies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Median {
    pub(crate) value: f64,
    pub(crate) least: f64,
    pub(crate) most: f64,
    pub(crate) runs: usize,
}

/// The lines of `results` without those of the drivers and cases that `newer` has on the same server, and then its lines.
#[allow(dead_code, reason = "the test of the page asks for nothing new")]
pub(crate) fn renewed(results: &str, newer: &str) -> Outcome<String> {
    let about = |line: &str| -> Outcome<[Value; 3]> {
        let line: Value = serde_json::from_str(line)?;
        Ok(["label", "case", "peer"].map(|name| line[name].clone()))
    };
    let again = newer.lines().map(about).collect::<Outcome<Vec<_>>>()?;
    let mut lines = String::new();
    for line in results.lines() {
        if !again.contains(&about(line)?) {
            lines.push_str(&format!("{line}\n"));
        }
    }
    Results::read(newer)?;
    Ok(lines + newer)
}

impl Results {
    /// Reads them; a line that is no result, or one with errors, is an error, and what a peer cannot do is left out.
    pub(crate) fn read(text: &str) -> Outcome<Results> {
        let mut runs = Vec::new();
        for (number, text) in (1..).zip(text.lines()) {
            let line: Value = serde_json::from_str(text).map_err(|error| format!("line {number}: {error}"))?;
            if line["unsupported"] == true {
                continue;
            }
            if line["errors"].as_u64() != Some(0) {
                return Err(format!("line {number} is a run that failed or saw errors").into());
            }
            let string = |name: &str| -> Outcome<String> {
                let found = line[name].as_str().ok_or_else(|| format!("line {number} has no {name}"))?;
                Ok(found.to_owned())
            };
            let label = string("label")?;
            runs.push(Run {
                label: label.split(',').next().unwrap_or_default().to_owned(),
                case: string("case")?,
                peer: string("peer")?,
                workload: string("workload")?,
                n: line["n"].as_u64().ok_or_else(|| format!("line {number} has no n"))?,
                line,
            });
        }
        Ok(Results(runs))
    }

    pub(crate) fn runs(&self) -> impl Iterator<Item = &Run> {
        self.0.iter()
    }

    /// The labels, in the order of their first lines.
    pub(crate) fn labels(&self) -> Vec<&str> {
        in_order_of_appearance(self.runs().map(|run| run.label.as_str()))
    }

    /// The median of what `figure` makes of the runs of one driver in one case; `None` if there are none.
    pub(crate) fn median(
        &self,
        label: &str,
        case: &str,
        peer: &str,
        figure: fn(&Run) -> Option<f64>,
    ) -> Option<Median> {
        let of_them =
            self.runs().filter(|run| (run.label.as_str(), run.case.as_str(), run.peer.as_str()) == (label, case, peer));
        let mut values = of_them.map(figure).collect::<Option<Vec<f64>>>()?;
        values.sort_by(f64::total_cmp);
        let middle = values.len() / 2;
        let value = match values.len() {
            0 => return None,
            even if even.is_multiple_of(2) => f64::midpoint(values[middle - 1], values[middle]),
            _ => values[middle],
        };
        Some(Median { value, least: values[0], most: *values.last()?, runs: values.len() })
    }
}

impl Run {
    pub(crate) fn number(&self, name: &str) -> Option<f64> {
        self.line[name].as_f64()
    }

    pub(crate) fn extra(&self, name: &str) -> Option<f64> {
        self.line["extra"][name].as_f64()
    }

    pub(crate) fn per_op(&self, name: &str) -> Option<f64> {
        Some(self.extra(name)? / self.number("ops")?)
    }
}

pub(crate) fn in_order_of_appearance<'t>(all: impl Iterator<Item = &'t str>) -> Vec<&'t str> {
    let mut seen = Vec::new();
    for one in all {
        if !seen.contains(&one) {
            seen.push(one);
        }
    }
    seen
}
