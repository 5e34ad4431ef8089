//! Tests of the advice that `zklock check` gives about servers that disagree and about ghosts. An operator who follows
//! the advice destroys no data that a majority has.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex};

use support::ensemble::Ensemble;
use support::scene::*;
use support::server::shared_server;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use zk_rwlock::RwLock;

use crate::check::{assert_clean, check};
use crate::{ended, server_lock, zklock_on};

/// The changes that a proxy makes to a server's answers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Altered {
    /// The id of a session to leave out of the answers to `dump`.
    pub(crate) session: Option<i64>,
    /// A prefix: names that begin with it are left out of each listing.
    pub(crate) names: Option<&'static str>,
    /// Whether the proxy answers each transaction as a leader without the node would: the first node that the
    /// transaction checks does not exist.
    pub(crate) refuses: bool,
}

/// Starts a proxy that forwards every connection to the server and alters its answers. Returns the proxy's address.
pub(crate) fn altered(listener: TcpListener, server: String, altered: Altered) -> String {
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let (server, altered) = (server.clone(), altered.clone());
            tokio::spawn(async move {
                let (mut word, mut upstream) = ([0; 4], TcpStream::connect(&server).await.unwrap());
                client.read_exact(&mut word).await.unwrap();
                upstream.write_all(&word).await.unwrap();
                match altered.session {
                    // If the first byte is zero, the four bytes are the length of a frame. Otherwise they are a
                    // four-letter word.
                    _ if word[0] == 0 => drop(alter(client, upstream, u32::from_be_bytes(word), altered).await),
                    Some(session) if &word == b"dump" => forget(client, upstream, session).await,
                    _ => drop(copy_bidirectional(&mut client, &mut upstream).await),
                }
            });
        }
    });
    address
}

/// Forwards an answer to `dump` without this session.
async fn forget(mut client: TcpStream, mut upstream: TcpStream, session: i64) {
    let mut answer = String::new();
    upstream.read_to_string(&mut answer).await.unwrap();
    let (sessions, nodes) = answer.split_once("ephemeral nodes dump:").unwrap();
    let lines = sessions.lines().filter(|line| line.trim() != format!("{session:#x}"));
    let told = format!("{}\nephemeral nodes dump:{nodes}", lines.collect::<Vec<_>>().join("\n"));
    client.write_all(told.as_bytes()).await.unwrap();
}

async fn frame(from: &mut (impl AsyncReadExt + Unpin), length: Option<u32>) -> io::Result<Vec<u8>> {
    let length = match length {
        Some(length) => length,
        None => from.read_u32().await?,
    };
    let mut frame = vec![0; length as usize];
    from.read_exact(&mut frame).await?;
    Ok(frame)
}

fn number(frame: &[u8], at: usize) -> i32 {
    i32::from_be_bytes(frame[at..at + 4].try_into().unwrap())
}

fn framed(frame: &[u8]) -> Vec<u8> {
    [&(frame.len() as u32).to_be_bytes(), frame].concat()
}

/// Forwards one connection, whose first frame has this length, and alters the answers to listings and transactions.
async fn alter(client: TcpStream, server: TcpStream, first: u32, altered: Altered) -> io::Result<()> {
    let asked = Arc::new(Mutex::new(HashMap::new()));
    let ((mut client, mut to_client), (mut server, mut to_server)) = (client.into_split(), server.into_split());
    let hello = frame(&mut client, Some(first)).await?;
    to_server.write_all(&hello).await?;
    to_client.write_all(&framed(&frame(&mut server, None).await?)).await?;
    let requests = Arc::clone(&asked);
    tokio::spawn(async move {
        while let Ok(request) = frame(&mut client, None).await {
            requests.lock().unwrap().insert(number(&request, 0), number(&request, 4));
            if to_server.write_all(&framed(&request)).await.is_err() {
                break;
            }
        }
    });
    loop {
        let mut answer = frame(&mut server, None).await?;
        let op = asked.lock().unwrap().remove(&number(&answer, 0));
        match (op, altered.names) {
            (Some(8 | 12), Some(hidden)) if number(&answer, 12) == 0 => answer = without(&answer, hidden),
            (Some(14), _) if altered.refuses => {
                answer.truncate(12);
                let no_node = (-101_i32).to_be_bytes();
                answer
                    .extend([&[0; 4][..], &[0xff; 4], &[0], &no_node, &no_node, &[0xff; 4], &[1], &[0xff; 4]].concat());
            }
            _ => {}
        }
        to_client.write_all(&framed(&answer)).await?;
    }
}

/// Returns an answer to a listing without the names that begin with `hidden`.
fn without(answer: &[u8], hidden: &str) -> Vec<u8> {
    let (mut names, mut at) = (Vec::new(), 20);
    for _ in 0..number(answer, 16) {
        let end = at + 4 + number(answer, at) as usize;
        if !answer[at + 4..end].starts_with(hidden.as_bytes()) {
            names.push(&answer[at..end]);
        }
        at = end;
    }
    [&answer[..16], &(names.len() as i32).to_be_bytes(), &names.concat(), &answer[at..]].concat()
}

/// Starts a proxy in front of a server of the ensemble and returns its address. If `lacks` is set, the proxy leaves the
/// nodes of the host "ghost" out of listings.
async fn in_front_of(ensemble: &Ensemble, number: usize, lacks: bool) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let alters = Altered { names: lacks.then_some("ghost~"), ..Altered::default() };
    altered(listener, ensemble.server(number).address(), alters)
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn data_is_deleted_only_on_a_follower_differing_alone() {
    let path = "/zklock/advice/differs";
    let ensemble = Ensemble::start();
    let zk = connect(&ensemble.addresses()).await;
    let held = RwLock::builder(&zk, path).host("ghost").build().unwrap().write().await.unwrap();
    let (leader, followers) = (ensemble.leader(), ensemble.followers());
    // Returns the line that `check` prints about the holder's node, and the addresses of the servers. `asked` has the
    // indices of the servers that `check` asks. `lacking` has the indices of the servers that hide the node.
    let told = async |lacking: &[usize], asked: &[usize]| {
        let mut names = Vec::new();
        for number in 0..3 {
            names.push(in_front_of(&ensemble, number, lacking.contains(&number)).await);
        }
        let servers = asked.iter().map(|number| names[*number].as_str()).collect::<Vec<_>>().join(",");
        let odd = check(&servers, path).await;
        let lines: Vec<_> = odd.stdout.lines().filter(|line| line.contains(": ghost~")).collect();
        assert!(odd.code == Some(1) && lines.len() == 1, "{odd:#?}");
        (lines[0].to_owned(), names)
    };

    let (cure, names) = told(&followers[..1], &[0, 1, 2]).await;
    let alone = format!(": {} alone differs: stop it, delete its data, and start it", names[followers[0]]);
    assert!(cure.ends_with(&alone), "{cure}");
    // Here `check` asks only two of the three servers, one of them twice in the second and third case.
    for asked in [&[followers[0], leader][..], &[followers[0], leader, leader], &[followers[0], followers[0], leader]] {
        let (cure, _) = told(&followers[..1], asked).await;
        assert!(cure.ends_with("so delete no data on any server"), "{asked:?}: {cure}");
    }
    for lacking in [&[leader][..], &followers] {
        let (cure, names) = told(lacking, &[0, 1, 2]).await;
        let restart = format!("delete no data, restart the leader {}, and check again", names[leader]);
        assert!(cure.contains(&restart) && !cure.contains("delete its data"), "{lacking:?}: {cure}");
    }
    assert!(held.is_held());
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn following_the_advice_about_a_ghost_removes_it() {
    let path = "/zklock/advice/ghost";
    let (zk, lock) = server_lock(path).await;
    let held = lock.write().await.unwrap();
    let (id, token) = (session(&zk).await.id(), held.fencing_token().to_string());
    let server = async |refuses| {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let alters = Altered { session: Some(id), refuses, ..Altered::default() };
        altered(listener, shared_server().address(), alters)
    };
    let odd = check(&server(true).await, path).await;
    assert!(odd.code == Some(1) && odd.stdout.contains("the leader does not have the node"), "{odd:#?}");
    assert!(!odd.stdout.contains("zklock break"), "{odd:#?}");

    let server = server(false).await;
    let odd = check(&server, path).await;
    assert!(odd.code == Some(1) && odd.stdout.contains(&format!("zklock break {path} {token}\n")), "{odd:#?}");
    let followed = ended(zklock_on(&server, &["break", "-y", path, &token])).await;
    assert_eq!(followed.code, Some(0), "{followed:#?}");
    assert_clean(&check(&server, path).await, path, "on 1 of 1 servers");
}
