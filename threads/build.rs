//! Says to the compiler that this package, and no other, is built with shuttle.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cfg=shuttle");
    // Of the library, without what it can also be built with.
    println!("cargo::rustc-check-cfg=cfg(feature, values(\"json\", \"tls\", \"metrics\", \"sasl-digest-md5\"))");
}
