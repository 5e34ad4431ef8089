//! The attribute `#[support::judged]`: a test that is run again if it fails while the machine stands still.

use proc_macro::{Delimiter, Group, TokenStream, TokenTree};

/// Replaces `#[test]` or `#[tokio::test]`, with the arguments of the latter. Passes the test to
/// `support::rounds::judge`.
#[proc_macro_attribute]
pub fn judged(arguments: TokenStream, test: TokenStream) -> TokenStream {
    let tokens: Vec<TokenTree> = test.into_iter().collect();
    // An attribute is `#` and brackets. The function follows the attributes.
    let attributes = tokens.chunks(2).take_while(|pair| pair[0].to_string() == "#").count() * 2;
    let (attributes, inner) = tokens.split_at(attributes);
    let is_async = inner.iter().any(|token| token.to_string() == "async");
    let name = inner.iter().skip_while(|token| token.to_string() != "fn").nth(1).expect("a test has a name").clone();

    let how = how(&arguments.to_string());
    let call = if is_async { format!("judge({how}, {name})") } else { format!("judge_plain({name})") };
    let judge = parsed(&format!("::support::rounds::{call}"));
    let body = inner.iter().cloned().chain(judge).collect();
    let mut out = parsed("#[::core::prelude::v1::test]");
    out.extend(attributes.iter().cloned());
    out.extend([parsed("fn"), name.into(), parsed("()")]);
    out.extend([TokenTree::Group(Group::new(Delimiter::Brace, body))]);
    out
}

fn parsed(code: &str) -> TokenStream {
    code.parse().expect("Rust")
}

/// Returns the `How` for these arguments.
fn how(arguments: &str) -> String {
    let (mut has_threads, mut workers) = (false, "None".to_owned());
    for argument in arguments.split(',').map(str::trim).filter(|argument| !argument.is_empty()) {
        match argument.split_once('=').map(|(name, value)| (name.trim(), value.trim())) {
            Some(("flavor", "\"multi_thread\"")) => has_threads = true,
            Some(("worker_threads", number)) => workers = format!("Some({number})"),
            _ => panic!("no argument of a judged test: {argument}"),
        }
    }
    format!("::support::rounds::How {{ has_threads: {has_threads}, worker_threads: {workers} }}")
}
