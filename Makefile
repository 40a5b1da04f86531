# SPDX-License-Identifier: Apache-2.0
# Thin: CMakeLists.txt builds, tools/ does the rest. Missing packages are installed by tools/setup.sh.
BUILD := build/release
PREFIX ?= /usr/local
DATA := $(wildcard data/*.safetensors)

.PHONY: all setup demo test bench install format clean

all: setup
	cmake -S . -B $(BUILD) -DMXA_BUILD_TESTS=OFF
	cmake --build $(BUILD) --parallel

setup:
	tools/setup.sh build

# Mixed precision on the Q, K and V of a real model: errors, time, and which tiles are high.
demo: all
	for file in $(DATA); do $(BUILD)/mxattn compare $$file --causal || exit 1; done
	$(BUILD)/mxattn map --q-len 2048 --kv-len 2048 --causal

test:
	tools/setup.sh test
	tools/test.sh

bench: all
	tools/setup.sh bench
	$(BUILD)/mxattn bench

install: all
	cmake --install $(BUILD) --prefix $(PREFIX)

format:
	git ls-files '*.c' '*.h' '*.cpp' | xargs clang-format -i

clean:
	rm -rf build
