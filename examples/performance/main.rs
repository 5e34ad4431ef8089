//! Makes the tables and plots of `docs/performance.md` from the raw results that are committed beside them.
//!
//! ```text
//! cargo run --release --example performance -- docs/performance --page docs/performance.md
//! ```
//!
//! Reads `results.jsonl` in the directory, writes the plots beside it, and makes anew what stands in the page between
//! its markers. Without a page it writes all tables into `tables.md`. `--with target/performance/results.jsonl` puts what
//! `make performance` has measured into the results first.

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
    /// Where results.jsonl is, and the plots are to be
    directory: PathBuf,
    /// First replace the results of the drivers, servers and workloads that this file has newer ones of
    #[arg(long, value_name = "FILE")]
    with: Option<PathBuf>,
    /// The page whose tables are made anew [default: all tables are written into DIRECTORY/tables.md]
    #[arg(long, value_name = "FILE")]
    page: Option<PathBuf>,
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

fn run(arguments: &Arguments) -> Outcome<()> {
    let file = arguments.directory.join("results.jsonl");
    if let Some(newer) = &arguments.with {
        write(&file, &report::results::renewed(&read(&file)?, &read(newer)?)?)?;
    }
    let results = Results::read(&read(&file)?)?;
    for (file, svg) in report::plots::svgs(&results) {
        write(&arguments.directory.join(file), &svg)?;
    }
    match &arguments.page {
        Some(page) => write(page, &report::fill(&read(page)?, &results)?),
        None => write(&arguments.directory.join("tables.md"), &report::every_table(&results)?),
    }
}

fn read(file: &Path) -> Outcome<String> {
    fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()).into())
}

fn write(file: &Path, text: &str) -> Outcome<()> {
    println!("{}", file.display());
    fs::write(file, text).map_err(|error| format!("{}: {error}", file.display()).into())
}
