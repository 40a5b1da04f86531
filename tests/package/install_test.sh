#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Install a build, move it, and use it as others would: tests/package/install_test.sh BUILD
set -euo pipefail

build=$(cd "$1" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cmake --install "$build" --prefix "$work/first"
mv "$work/first" "$work/moved"
libs=$(dirname "$(find "$work/moved" -name 'libmxattn.so')")
export PKG_CONFIG_PATH=$libs/pkgconfig

echo "-- pkg-config, C and C++, shared"
gcc -Wall -Wextra -Werror "$here/consumer/consumer.c" -o "$work/c" $(pkg-config --cflags --libs mxattn)
g++ -Wall -Wextra -Werror "$here/consumer/consumer_cxx.cpp" -o "$work/cxx" $(pkg-config --cflags --libs mxattn)
LD_LIBRARY_PATH=$libs "$work/c"
LD_LIBRARY_PATH=$libs "$work/cxx"

echo "-- pkg-config, static"
private=$(pkg-config --static --libs mxattn | sed 's/-lmxattn//')
gcc "$here/consumer/consumer.c" -o "$work/static" $(pkg-config --cflags mxattn) "$libs/libmxattn.a" $private
"$work/static"
if readelf -d "$work/static" | grep -q mxattn; then
    echo "the static program needs the shared library"
    exit 1
fi

echo "-- CMake package"
cmake -S "$here/consumer" -B "$work/build" -DCMAKE_PREFIX_PATH="$work/moved"
cmake --build "$work/build"
for program in consumer_c consumer_cxx consumer_static; do
    "$work/build/$program"
done

echo "-- command"
"$work/moved/bin/mxattn" info
if [ -e "$libs/libmxattn_cuda.so" ] && "$work/moved/bin/mxattn" info | grep "needs libmxattn_cuda.so"; then
    echo "the CUDA library beside libmxattn.so is not found"
    exit 1
fi
