#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Install what is missing on a Debian machine: tools/setup.sh build|test
set -eu

build_packages="cmake gcc libc6-dev make pkg-config libjansson-dev libpng-dev"
test_packages="ca-certificates g++ binutils git clang libclang-rt-dev libomp-dev clang-format libcmocka-dev libsimde-dev python3 python3-venv"
what=${1:-build}
case $what in
build) packages=$build_packages ;;
test) packages="$build_packages $test_packages" ;;
*)
    echo "usage: tools/setup.sh build|test" >&2
    exit 2
    ;;
esac

if ! command -v apt-get >/dev/null; then
    echo "setup: this is no Debian system, so nothing is installed; needed are: $packages"
    exit 0
fi

is_installed() {
    dpkg-query -W -f '${Status}' "$1" 2>/dev/null | grep -q ' installed$'
}

missing=
for package in $packages; do
    is_installed "$package" || missing="$missing $package"
done
# One test opens a page in it, and is skipped without.
browser=
[ "$what" = build ] || is_installed chromium || browser=chromium
[ -n "$missing$browser" ] || exit 0

install="apt-get install -y --no-install-recommends"
if [ "$(id -u)" = 0 ]; then
    as_root=
elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
    as_root="sudo -n"
elif [ -z "$missing" ]; then
    exit 0
else
    echo "setup: packages are missing and only root can install them. Run:" >&2
    echo "    sudo apt-get update && sudo $install$missing" >&2
    exit 1
fi
echo "setup: installing with apt-get:$missing $browser"
$as_root apt-get update -q || [ -z "$missing" ]
# debconf would ask questions on a bare machine.
quiet_install="env DEBIAN_FRONTEND=noninteractive $install"
[ -z "$missing" ] || $as_root $quiet_install $missing
[ -z "$browser" ] || $as_root $quiet_install $browser || echo "setup: goes on without $browser"
