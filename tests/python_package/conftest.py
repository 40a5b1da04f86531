# SPDX-License-Identifier: Apache-2.0
"""Threads that wait for each other in turns, PyTorch's and the library's, wait without spinning."""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("OMP_NUM_THREADS", "2")
