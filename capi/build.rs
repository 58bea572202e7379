//! Gives the shared library its name for the loader: programs that were linked against one format
//! of calls do not start with another.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libnearstate.so.0");
}
