//! Reads raw results: files with a line of JSON for each measurement, each file from one run.

use serde_json::Value;

pub(crate) type Outcome<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// The results of the comparison of libraries, of the growth of costs, and of the simulated mass reconnects.
#[derive(Debug)]
pub(crate) struct Results {
    pub(crate) compared: Vec<Line>,
    pub(crate) growth: Vec<Line>,
    pub(crate) storms: Vec<Line>,
}

#[derive(Debug)]
pub(crate) struct Line(Value);

/// The median of a figure over several rounds, with the least and the greatest value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Median {
    pub(crate) value: f64,
    pub(crate) least: f64,
    pub(crate) most: f64,
}

/// Parses the lines of a file. Refuses lines of different runs, because figures of different days or machines are not
/// comparable.
pub(crate) fn of_one_run(text: &str) -> Outcome<Vec<Line>> {
    let lines: Vec<Line> = text.lines().map(|line| Ok(Line(serde_json::from_str(line)?))).collect::<Outcome<_>>()?;
    let run = lines.first().map_or("", |line| line.text("run"));
    match lines.iter().position(|line| line.text("run") != run || run.is_empty()) {
        Some(other) => Err(format!("line {} is not of the run {run:?}, in which the file begins", other + 1).into()),
        None => Ok(lines),
    }
}

impl Results {
    /// Parses the texts of `results.jsonl`, `growth.jsonl` and `storms.jsonl`.
    pub(crate) fn read(compared: &str, growth: &str, storms: &str) -> Outcome<Results> {
        let read = |file: &str, text: &str| of_one_run(text).map_err(|error| format!("{file}: {error}"));
        let (compared, growth) = (read("results.jsonl", compared)?, read("growth.jsonl", growth)?);
        Ok(Results { compared, growth, storms: read("storms.jsonl", storms)? })
    }

    /// Returns the median of `figure` over the rounds of one peer in one case. `None` if there are no rounds.
    pub(crate) fn median(
        &self,
        [place, case, peer]: [&str; 3],
        figure: impl Fn(&Line) -> Option<f64>,
    ) -> Option<Median> {
        let lines = self.compared.iter().filter(|line| line.is(place, case) && line.text("peer") == peer);
        let mut values = lines.map(figure).collect::<Option<Vec<f64>>>()?;
        values.sort_by(f64::total_cmp);
        let middle = values.len() / 2;
        let value = match values.len() {
            0 => return None,
            even if even.is_multiple_of(2) => f64::midpoint(values[middle - 1], values[middle]),
            _ => values[middle],
        };
        Some(Median { value, least: values[0], most: *values.last()? })
    }
}

impl Line {
    /// Returns the text of this field. Empty if the line has no such field.
    pub(crate) fn text(&self, name: &str) -> &str {
        self.0[name].as_str().unwrap_or_default()
    }

    pub(crate) fn number(&self, name: &str) -> Option<f64> {
        self.0[name].as_f64()
    }

    pub(crate) fn is(&self, place: &str, case: &str) -> bool {
        (self.text("place"), self.text("case")) == (place, case)
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
