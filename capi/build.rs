//! Sets the soname of the shared library, so that the loader does not start a program with an
//! incompatible version.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libnearstate.so.0");
}
