//! Tests of the pages in `docs/`, and of the programs that the pages show.

mod architecture;
mod chapters;
mod cost;
mod examples;
mod fault_table;
mod front_page;
mod guide;
mod kubernetes;
mod layers;
mod links;
mod migrations;
mod monitoring;
mod nemesis;
mod performance_doc;
mod pictures;
mod promises;
mod service;
mod snippets;

// The code that makes the tables and plots of `docs/performance.md`.
#[path = "../../examples/common/chart.rs"]
mod chart;
#[path = "../../examples/performance/report/mod.rs"]
mod report;

// The code that reads the results of `make nemesis` and makes their table.
#[path = "../nemesis/results.rs"]
mod nemesis_results;
