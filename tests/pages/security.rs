//! The snippets of `docs/security.md`.

#[expect(dead_code, reason = "it needs a server")]
async fn connecting(password: &str) -> Result<(), Box<dyn std::error::Error>> {
    // page: connecting
    use zk_rwlock::ZooKeeper;
    use zk_rwlock::security::Tls;

    let tls = Tls::from_ca_pem(&std::fs::read_to_string("ca.pem")?)?;
    let zk = ZooKeeper::builder().tls(tls).digest("billing", password).connect("zk1:2281,zk2:2281,zk3:2281").await?;
    // end
    zk.close().await;
    Ok(())
}
