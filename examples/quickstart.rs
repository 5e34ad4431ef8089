//! Readers share the lock, a writer has it alone, and everyone can see who is in the way. Without `--zookeeper` the
//! example needs no server.
//!
//! ```text
//! cargo run --example quickstart
//! cargo run --example quickstart -- --zookeeper 127.0.0.1:2181
//! ```

mod common;

use std::process::ExitCode;
use std::time::Duration;

use tokio::sync::oneshot;
use zk_rwlock::RwLock;

/// Readers share the lock, a writer has it alone, and everyone can see who is in the way
#[derive(clap::Parser)]
struct Arguments {
    #[command(flatten)]
    backend: common::Backend,
}

#[tokio::main]
async fn main() -> ExitCode {
    common::exit(run(common::arguments()).await)
}

async fn run(Arguments { backend }: Arguments) -> common::Result<()> {
    // Each client has a session of its own, as on three machines.
    let web_1 = open(&backend, "web-1").await?;
    let web_2 = open(&backend, "web-2").await?;
    let admin = open(&backend, "admin").await?;

    println!("1. Nobody has asked for the lock yet.");
    println!("{}", admin.queue().await?);

    println!("\n2. Readers hold it together.");
    let first = web_1.read().label("serve pages").await?;
    let second = web_2.read().label("serve pages").await?;
    println!("{}", admin.queue().await?);

    println!("\n3. A writer has to wait for them. If it cannot wait, it is told who is in the way.");
    match admin.write().timeout(Duration::from_millis(300)).await {
        Ok(_) => return Err("the writer came in beside the readers".into()),
        Err(error) if error.is_timeout() => println!("{error}"),
        Err(error) => return Err(error.into()),
    }

    println!("\n4. It tries once more, and waits for as long as it takes.");
    let (now, waits) = oneshot::channel();
    let mut now = Some(now);
    let acquire = admin.write().label("rotate keys").on_wait(move |progress| {
        println!("admin waits at {progress}");
        if let Some(now) = now.take() {
            let _ = now.send(());
        }
    });
    let writer = tokio::spawn(acquire.into_future());
    waits.await?;
    println!("{}", admin.queue().await?);

    println!("\n5. The readers leave, and the writer comes in.");
    first.release().await?;
    second.release().await?;
    let writer = writer.await??;
    println!("{}", admin.queue().await?);

    // A database that remembers the highest token can refuse a writer that lost the lock without noticing.
    println!("\n6. Each writer has a higher fencing token than all before it: this one {}.", writer.fencing_token());
    writer.run(tokio::time::sleep(Duration::from_millis(100))).await?; // the work; dropped if the lock is lost
    writer.release().await?;
    println!("{}", admin.queue().await?);
    Ok(())
}

async fn open(backend: &common::Backend, host: &str) -> common::Result<RwLock> {
    let zk = backend.connect().await?; // for example ZooKeeper::connect("127.0.0.1:2181")
    let path = format!("/zk-rwlock-examples/quickstart-{}", std::process::id()); // a lock of this run's own
    Ok(RwLock::builder(&zk, &path).host(host).build()?)
}
