# SPDX-License-Identifier: Apache-2.0
"""Which libmxattn_cuda.so a process takes, and what it says of one that is there but cannot be loaded."""
import os
import shutil
import subprocess
import sys

import mxa

ASK = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
library.mxa_error_text.restype = ctypes.c_char_p
print(library.mxa_device_count(), library.mxa_error_text().decode())
"""


def answer_of(folder):
    library = shutil.copy(mxa.lib()._name, folder / "libmxattn.so")
    environment = {name: value for name, value in os.environ.items() if name != "MXA_CUDA_LIBRARY"}
    done = subprocess.run([sys.executable, "-c", ASK, library], capture_output=True, text=True, check=True,
                          env=environment)
    return done.stdout


def test_absent(tmp_path):
    assert answer_of(tmp_path).startswith("0 device: CUDA needs libmxattn_cuda.so beside libmxattn.so or in ")


def test_broken(tmp_path):
    """The reason is the file's own, not that the linker's search path has none."""
    (tmp_path / "libmxattn_cuda.so").write_bytes(b"no library")
    answer = answer_of(tmp_path)
    assert answer.startswith("0 device: libmxattn_cuda.so beside libmxattn.so cannot be loaded: ")
    assert str(tmp_path) in answer and "No such file" not in answer
