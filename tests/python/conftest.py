# SPDX-License-Identifier: Apache-2.0
"""Hypothesis profiles: "ci" is short and repeats itself exactly, MXATTN_HYPOTHESIS=long draws many new cases."""

import os

# Waiting threads sleep instead of spinning, and NumPy's small products stay on one: test runners share cores.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from hypothesis import HealthCheck, settings  # noqa: E402

COMMON = {"deadline": None, "suppress_health_check": list(HealthCheck)}
settings.register_profile("ci", max_examples=60, derandomize=True, database=None, **COMMON)
settings.register_profile("long", max_examples=2000, **COMMON)
settings.load_profile(os.environ.get("MXATTN_HYPOTHESIS", "ci"))
