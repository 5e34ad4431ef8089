//! Makes the tables and plots of `docs/performance.md` from raw results. The program uses no lock and needs no server.
//!
//! ```text
//! cargo run --release --example performance -- docs/performance docs/performance.md README.md
//! ```
//!
//! Reads `results.jsonl`, `growth.jsonl` and `storms.jsonl` in the directory, writes the plots there, and replaces the
//! text between the markers of the pages. Without a page it writes all tables into `tables.md`.

#[path = "../common/chart.rs"]
mod chart;
mod report;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use report::results::{Outcome, Results};

/// Makes the tables and plots of docs/performance.md from raw results
#[derive(Parser)]
struct Arguments {
    /// The directory of the results, and of the plots
    directory: PathBuf,
    /// The pages whose tables and figures are replaced [default: all tables are written into DIRECTORY/tables.md]
    pages: Vec<PathBuf>,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(Arguments { directory, pages }: &Arguments) -> Outcome<()> {
    // A missing file counts as empty, because not every run of the benchmarks makes all files.
    let lines = |file: &str| fs::read_to_string(directory.join(file)).unwrap_or_default();
    let results = Results::read(&lines("results.jsonl"), &lines("growth.jsonl"), &lines("storms.jsonl"))?;
    for (file, svg) in report::plots::svgs(&results) {
        write(&directory.join(file), &svg)?;
    }
    for page in pages {
        let text = fs::read_to_string(page).map_err(|error| format!("{}: {error}", page.display()))?;
        write(page, &report::fill(&text, &results)?)?;
    }
    if pages.is_empty() { write(&directory.join("tables.md"), &report::every_table(&results)) } else { Ok(()) }
}

fn write(file: &Path, text: &str) -> Outcome<()> {
    println!("{}", file.display());
    fs::write(file, text).map_err(|error| format!("{}: {error}", file.display()).into())
}
