# SPDX-License-Identifier: Apache-2.0
"""Hypothesis settings: few examples that repeat exactly; MXATTN_EXAMPLES=N draws N new ones for each test."""

import os

# Waiting threads sleep instead of spinning, and NumPy's small products stay on one: test runners share cores.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from hypothesis import HealthCheck, settings  # noqa: E402

COMMON = {"deadline": None, "database": None, "suppress_health_check": list(HealthCheck)}
settings.register_profile("fixed", max_examples=50, derandomize=True, **COMMON)
settings.register_profile("new", max_examples=int(os.environ.get("MXATTN_EXAMPLES", 1)), **COMMON)
settings.load_profile("new" if "MXATTN_EXAMPLES" in os.environ else "fixed")
