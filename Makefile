# SPDX-License-Identifier: Apache-2.0
# Thin: CMakeLists.txt builds, tools/ does the rest. Missing packages are installed by tools/setup.sh.
BUILD := build/release
PREFIX ?= /usr/local
PYTHON ?=
BENCH ?=
MAKEFLAGS += --no-print-directory
DATA := $(wildcard data/*.safetensors)

.PHONY: all setup demo test test-torch bench install format clean

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

# The Python package with PyTorch and Transformers, which this installs (docs/testing.md says how much); after it, make
# test runs them too.
test-torch:
	tools/setup.sh test
	tools/venv.sh .venv-torch tests/python_package/requirements_torch.txt
	cmake -S . -B build/gcc -DMXA_BUILD_TESTS=ON -DMXA_WERROR=ON
	cmake --build build/gcc --parallel
	MXATTN_LIB=$(CURDIR)/build/gcc/libmxattn.so MXATTN_COMMAND=$(CURDIR)/build/gcc/mxattn \
		.venv-torch/bin/python -m pytest -q -rs tests/python_package

# Against other software on this processor; bench/cpu.sh says what it installs. PYTHON may have PyTorch already, and
# BENCH holds options, such as --quick.
bench: all
	tools/setup.sh test
	PYTHON=$(PYTHON) bench/cpu.sh --build $(BUILD) $(BENCH)

install: all
	cmake --install $(BUILD) --prefix $(PREFIX)

format:
	git ls-files '*.c' '*.h' '*.cpp' | xargs clang-format -i

clean:
	rm -rf build
