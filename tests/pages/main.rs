//! The Rust of the pages, compiled and run. A page shows what stands here between `// page: HEADING` and `// end`, but for what
//! is between `// hidden` and `// shown`; `make pages` puts it there. Knows nothing of what the pages say about it.

mod coming_from;
mod cost;
mod guide;
mod operating;
mod readme;
mod security;
