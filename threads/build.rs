//! Sets the `cfg` with which the library is built for shuttle. Only this package sets it.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cfg=shuttle");
    // The library's code names these features, and this package does not have them. Without this line rustc would warn.
    println!("cargo::rustc-check-cfg=cfg(feature, values(\"json\", \"tls\", \"metrics\", \"sasl-digest-md5\"))");
}
