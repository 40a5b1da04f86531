# SPDX-License-Identifier: Apache-2.0
# Thin: CMakeLists.txt builds, tools/ does the rest. Missing packages are installed by tools/setup.sh.
BUILD := build/release
PREFIX ?= /usr/local
PYTHON ?= python3
MAKEFLAGS += --no-print-directory
DATA := $(wildcard data/*.safetensors)

.PHONY: all setup demo test bench install format clean

all: setup
	cmake -S . -B $(BUILD) -DMXA_BUILD_TESTS=OFF
	cmake --build $(BUILD) --parallel

setup:
	tools/setup.sh build

# Mixed precision on the Q, K and V of a real model: errors, time, and which tiles are high.
demo: all
	@for file in $(DATA); do echo "== $$file"; $(BUILD)/mxattn compare $$file --causal || exit 1; done
	@echo "== which tiles are high (H) and low (L) in causal attention over 2048 tokens"
	@$(BUILD)/mxattn map --q-len 2048 --kv-len 2048 --causal

test:
	tools/setup.sh test
	tools/test.sh

# PYTHON with PyTorch in it adds a comparison: make bench PYTHON=path/to/python
bench: all
	$(BUILD)/mxattn bench --shapes bench/shapes.txt
	if command -v $(PYTHON) >/dev/null; then $(PYTHON) bench/peer_torch.py $(BUILD)/mxattn; fi

install: all
	cmake --install $(BUILD) --prefix $(PREFIX)

format:
	git ls-files '*.c' '*.h' '*.cpp' | xargs clang-format -i

clean:
	rm -rf build
