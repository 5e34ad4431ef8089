//! Checks the SQL, figures and tables of `docs/guide.md`, `docs/fencing.md`, `docs/errors.md` and `docs/coming-from.md`. `tests/pages` runs the Rust code of
//! these pages, and `zklock/tests/` their shell commands.

use std::collections::BTreeSet;

use rusqlite::{Connection, TransactionBehavior};
use sqlparser::dialect::{Dialect, MySqlDialect, PostgreSqlDialect, SQLiteDialect};
use sqlparser::parser::Parser;
use support::page::{blocks, rows};
use zk_rwlock::{Memory, RwLock};

const GUIDE: &str = include_str!("../../docs/guide.md");
const FENCING: &str = include_str!("../../docs/fencing.md");
const ERRORS: &str = include_str!("../../docs/errors.md");
const COMING_FROM: &str = include_str!("../../docs/coming-from.md");

/// Returns the SQL statements of a fenced block, without comments.
fn statements(block: &str) -> Vec<String> {
    let code: Vec<&str> = block.lines().filter(|line| !line.starts_with("--")).collect();
    code.join("\n").split(';').map(str::trim).filter(|statement| !statement.is_empty()).map(str::to_owned).collect()
}

/// Returns a database that the first statements of the block have set up, and the statements that a holder sends.
fn set_up(block: &str) -> (Connection, Vec<String>) {
    let database = Connection::open_in_memory().expect("SQLite is bundled");
    let mut of_holders = Vec::new();
    for statement in statements(block) {
        if statement.contains('?') {
            of_holders.push(statement);
        } else {
            database.execute_batch(&statement).expect("valid SQL");
        }
    }
    (database, of_holders)
}

/// Returns the fencing tokens of two successive holders.
fn tokens() -> (i64, i64) {
    let lock = RwLock::new(&Memory::new(), "/locks/orders").expect("valid");
    let token = || lock.write().blocking().expect("free").fencing_token();
    (token(), token())
}

#[test]
fn a_fence_refuses_only_earlier_holders() {
    let (mut database, of_holders) = set_up(blocks(FENCING, "sql sqlite")[0]);
    let [fence] = of_holders.try_into().expect("one statement");
    database.execute_batch("CREATE TABLE work (holder INTEGER NOT NULL)").expect("valid SQL");
    let (earlier, later) = tokens();
    let mut transaction_of = |token: i64| {
        let transaction = database.transaction_with_behavior(TransactionBehavior::Immediate).expect("free");
        if transaction.execute(&fence, [token]).expect("valid SQL") == 0 {
            return false;
        }
        transaction.execute("INSERT INTO work VALUES (?1)", [token]).expect("valid SQL");
        transaction.commit().expect("durable");
        true
    };
    assert!(transaction_of(earlier) && transaction_of(earlier), "one holder does several");
    assert!(transaction_of(later));
    assert!(!transaction_of(earlier), "it comes too late");
    assert!(transaction_of(later));
    let mut work = database.prepare("SELECT holder FROM work ORDER BY rowid").expect("valid SQL");
    let done: Vec<i64> = work.query_map([], |row| row.get(0)).expect("rows").map(|row| row.expect("a row")).collect();
    assert_eq!(done, [earlier, earlier, later, later]);
}

#[test]
fn a_token_in_a_row_refuses_only_earlier_holders() {
    let (database, of_holders) = set_up(blocks(FENCING, "sql sqlite")[1]);
    let [update, upsert] = of_holders.try_into().expect("two statements");
    let (earlier, later) = tokens();
    let write = |sql: &str, token: i64, result: &str| database.execute(sql, (token, result, 7)).expect("valid SQL");
    let result = || database.query_row("SELECT result FROM part WHERE id = 7", [], |row| row.get::<_, String>(0));

    assert_eq!(write(&update, earlier, "of nothing"), 0, "there is no such row yet");
    assert_eq!(write(&upsert, earlier, "first"), 1);
    assert_eq!(write(&upsert, earlier, "second"), 1);
    assert_eq!(write(&update, later, "third"), 1);
    for late in [&update, &upsert] {
        assert_eq!(write(late, earlier, "too late"), 0);
        assert_eq!(result().as_deref(), Ok("third"));
    }
    assert_eq!(write(&upsert, later, "fourth"), 1);
    assert_eq!(result().as_deref(), Ok("fourth"));
}

#[test]
fn every_sql_block_parses_for_its_database() {
    let dialects: [(&str, &dyn Dialect, usize); 4] = [
        ("sql postgres", &PostgreSqlDialect {}, 2),
        ("sql psql", &PostgreSqlDialect {}, 1),
        ("sql mysql", &MySqlDialect {}, 3),
        ("sql sqlite", &SQLiteDialect {}, 2),
    ];
    let mut all = 0;
    for (words, dialect, expected) in dialects {
        let found = blocks(FENCING, words);
        assert_eq!(found.len(), expected, "{words}");
        all += found.len();
        for block in found {
            for statement in statements(block) {
                let parsed = Parser::parse_sql(dialect, &statement);
                assert!(parsed.is_ok(), "{words}: {statement}: {parsed:?}");
            }
        }
    }
    assert_eq!(FENCING.matches("```sql").count(), all, "a block says for which database it is");
    assert!(Parser::parse_sql(&PostgreSqlDialect {}, "UPDATE lock_fence SET WHERE").is_err());
}

/// The fence must compare by `<=`, because `<` would refuse a holder's second transaction. In MySQL an update must
/// change something, or it counts as no row.
#[test]
fn every_fence_compares_with_at_most() {
    for (words, token) in [("sql postgres", "$1"), ("sql mysql", "?"), ("sql sqlite", "?1")] {
        for statement in blocks(FENCING, words).into_iter().flat_map(statements) {
            if statement.starts_with("UPDATE") {
                assert!(statement.ends_with(&format!("token <= {token}")), "{statement}");
                assert_eq!(statement.contains("writes = writes + 1"), words == "sql mysql", "{statement}");
            }
        }
    }
}

#[test]
fn the_table_of_session_timeouts_follows_from_the_lease() {
    let section = GUIDE.split("\n## Choosing a session timeout\n").nth(1).expect("the section");
    let rows: Vec<_> = rows(section.split("\n## ").next().expect("its text"));
    assert_eq!(rows.len(), 4);
    for row in rows {
        let timeout: f64 = row[0].strip_suffix(" s").expect("seconds").parse().expect("a number");
        assert_eq!(row[1], row[0]);
        assert_eq!(row[2], format!("{:.1} s", timeout * 5.0 / 6.0));
        assert_eq!(row[3], format!("{:.0}", 3600.0 / (timeout / 5.0)));
    }
}

#[test]
fn every_error_and_every_loss_has_a_row() {
    let variants = |source: &str, of: &str| -> BTreeSet<String> {
        let body = source.split(&format!("pub enum {of} {{\n")).nth(1).expect("the enum").split("\n}\n").next();
        let names = body.expect("its end").lines().filter_map(|line| line.strip_prefix("    "));
        let names = names.filter(|name| name.starts_with(|first: char| first.is_ascii_uppercase()));
        names.map(|name| format!("`{of}::{}`", name.split([' ', '(', ',']).next().expect("a name"))).collect()
    };
    let mut expected = variants(include_str!("../../src/error/error.rs"), "Error");
    expected.extend(variants(include_str!("../../src/session/request.rs"), "Loss"));
    expected.extend(variants(include_str!("../../src/error/value.rs"), "ValueError"));
    let told: BTreeSet<String> = rows(ERRORS)
        .iter()
        .filter(|row| row.len() == 3 && row[2].len() > 5 && row[0].contains("::"))
        .map(|row| row[0].to_owned())
        .collect();
    assert!(expected.len() > 15);
    assert_eq!(told, expected);
}

/// Each reason in the table must be a text of the library or of the operating system, and must occur in a test with a
/// real server.
#[test]
fn every_reason_for_no_session_occurs_in_a_test() {
    let words = |source: &str| source.replace("\\\n     ", "");
    let said = words(include_str!("../../src/zookeeper/probe.rs"));
    let heard = [include_str!("../session/reasons.rs"), include_str!("../session/security.rs")].map(words).concat();
    let section =
        ERRORS.split("## Why there is no session\n").nth(1).and_then(|rest| rest.split("In a program").next());
    let rows = rows(section.expect("the section"));
    assert_eq!(rows.len(), 15);
    for row in &rows {
        let reason = row[0].trim_matches('`');
        assert!(said.contains(reason) || reason == "Connection refused", "the library does not say {reason:?}");
        // These two reasons are exempt: no test has a machine that does not answer, or a running server that gives no
        // session.
        let needs_more = ["does not answer", "has not given a session"].contains(&reason);
        assert!(heard.contains(reason) || needs_more, "no test has {reason:?}");
    }
}

#[test]
fn the_classes_for_kazoo_are_the_tested_ones() {
    let classes = blocks(COMING_FROM, "python");
    assert_eq!(classes.len(), 1);
    assert!(include_str!("../interop/kazoo_peer.py").contains(classes[0]), "{}", classes[0]);
}

#[test]
fn our_column_is_in_the_example_below_each_table() {
    let mut compared = 0;
    for section in COMING_FROM.split("\n## ").skip(1) {
        let example = blocks(section, "rust").join("\n");
        let calls: Vec<&str> =
            rows(section).iter().filter_map(|row| row.last()?.strip_prefix('`')?.strip_suffix('`')).collect();
        for call in calls {
            if call.starts_with("zklock ") {
                continue;
            }
            // The call must occur literally in the example, which is compiled. The code around the call may differ.
            assert!(
                example.contains(call),
                "{call} is not in the example of: {}",
                section.lines().next().unwrap_or("")
            );
            compared += 1;
        }
    }
    assert!(compared > 30, "{compared}");
}
