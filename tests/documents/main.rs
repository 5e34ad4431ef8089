//! The pages, and the programs that they show.

mod architecture;
mod chapters;
mod examples;
mod fault_table;
mod front_page;
mod guide;
mod kubernetes;
mod layers;
mod links;
mod migrations;
mod nemesis;
mod performance_doc;
mod service;
mod snippets;

// Makes the tables and plots of `docs/performance.md`.
#[path = "../../examples/common/chart.rs"]
mod chart;
#[path = "../../examples/performance/report/mod.rs"]
mod report;

// The results of `make nemesis`, and their table.
#[path = "../nemesis/results.rs"]
mod nemesis_results;
