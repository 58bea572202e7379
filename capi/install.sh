#!/bin/sh
# Installs the C library: header, static and shared library, pkg-config file.
#
#   capi/install.sh PREFIX            builds it first (release)
#   capi/install.sh PREFIX BUILT      installs libnearstate.a and .so from the folder BUILT
set -eu

if [ $# -lt 1 ] || [ $# -gt 2 ]; then
    echo "usage: $0 PREFIX [BUILT]" >&2
    exit 2
fi
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/.." && pwd)
mkdir -p "$1"
prefix=$(cd "$1" && pwd)

if [ $# -eq 2 ]; then
    built=$2
else
    (cd "$root" && cargo build --release --package nearstate-capi)
    built=${CARGO_TARGET_DIR:-$root/target}/release
fi
version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$root/Cargo.toml" | head -n 1)

mkdir -p "$prefix/include" "$prefix/lib/pkgconfig"
install -m 644 "$here/include/nearstate.h" "$prefix/include/"
install -m 644 "$built/libnearstate.a" "$prefix/lib/"
install -m 755 "$built/libnearstate.so" "$prefix/lib/libnearstate.so.0"
ln -sf libnearstate.so.0 "$prefix/lib/libnearstate.so"
sed -e "s|@PREFIX@|$prefix|" -e "s|@VERSION@|$version|" "$here/nearstate.pc.in" \
    > "$prefix/lib/pkgconfig/nearstate.pc"
