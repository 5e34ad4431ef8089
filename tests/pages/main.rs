//! The Rust snippets of the pages, compiled and run. A page shows the code between `// page: HEADING` and `// end`, without
//! the code between `// hidden` and `// shown`. `make pages` copies the snippets into the pages.

mod coming_from;
mod cost;
mod guide;
mod migrations;
mod operating;
mod readme;
mod security;
mod serving;
mod tracing;
