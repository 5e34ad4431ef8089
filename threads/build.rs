//! Sets the `cfg` by which only this package is built with shuttle.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cfg=shuttle");
    // The library's features that this package does not have.
    println!("cargo::rustc-check-cfg=cfg(feature, values(\"json\", \"tls\", \"metrics\", \"sasl-digest-md5\"))");
}
