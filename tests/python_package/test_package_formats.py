# SPDX-License-Identifier: Apache-2.0
"""quantize() and dequantize() against the bytes of the C calls."""

import ml_dtypes
import mxa
import mxattn
import numpy as np
import pytest
from package_inputs import BF16

RNG = np.random.default_rng(0)
X = RNG.standard_normal((2, 3, 130, 64), dtype=np.float32)
OPTIONS = [
    ("mxfp8", {}, {}),
    ("mxfp8-e5m2", {"rule": "floor"}, {"rule": "floor"}),
    ("mxfp6", {"axis": "token", "fill_tail": True}, {"axis": "token", "fill_tail": True}),
    ("mxfp4", {"scale_layout": "tile_128x4"}, {"layout": "tile_128x4"}),
    ("mxfp4", {"rotate": True, "level": "token"}, {"rotate": True, "level": "token"}),
    ("mxint8", {"rule": "even"}, {"rule": "even"}),
    ("nvfp4", {"nvfp4": ("pow2_g", "four_over_six"), "level": "head"}, {"options": 4 | 8, "level": "head"}),
    ("nvfp4", {"nvfp4": "scale_up", "scale_layout": "amd"}, {"options": 1, "layout": "amd"}),
    ("fp8", {"level": "token_block"}, {"level": "token_block"}),
    ("int8", {"level": "tensor"}, {"level": "tensor"}),
    ("bf16", {}, {}),
]


@pytest.mark.parametrize("dtype", [np.float32, np.float16, BF16])
@pytest.mark.parametrize("name,options,c_options", OPTIONS)
def test_bytes_of_the_c_call(name, options, c_options, dtype):
    x = X.astype(dtype)
    got, want = mxattn.quantize(x, name, **options), mxa.quantize(x, name, **c_options)
    assert (got.codes == want.codes).all() and got.shape == x.shape and got.n_bad == 0
    assert (got.scales is None) == (want.scales.size == 0) and (got.g is None) == (want.g.size == 0)
    assert got.scales is None or (got.scales == want.scales).all()
    assert got.g is None or (got.g == want.g).all()
    assert got.nbytes == want.codes.nbytes + want.scales.nbytes + want.g.nbytes
    assert (mxattn.dequantize(got) == mxa.dequantize(want)).all()
    half = mxattn.dequantize(got, dtype="bfloat16")
    assert half.dtype == BF16 and (half == mxa.dequantize(want, BF16)).all()


def test_float8_of_ml_dtypes():
    """Codes of MXFP8 are casts of x / scale, and scales powers of two."""
    got = mxattn.quantize(X, "mxfp8")
    scale = np.exp2(got.scales.reshape(2, 3, 130, 2).astype(np.float64) - 127).repeat(32, axis=3)
    want = (X / scale).astype(np.float32).astype(ml_dtypes.float8_e4m3fn)
    assert (got.codes.reshape(X.shape) == want.view(np.uint8)).all()


def test_mean_factors_layout_and_out():
    mean = X.mean(axis=2)
    got = mxattn.quantize(X, "mxfp4", mean=mean)
    want = mxa.quantize(X, "mxfp4", mean=mean)
    assert (got.codes == want.codes).all()
    assert (mxattn.dequantize(got) == mxa.dequantize(want)).all()

    g = np.linspace(0.01, 0.02, 6, dtype=np.float32)
    got = mxattn.quantize(X, "int8", level="head", g=g)
    assert (got.g == g).all() and (got.codes == mxa.quantize(X, "int8", level="head", g=g).codes).all()

    tokens = np.ascontiguousarray(X.swapaxes(1, 2))
    again = mxattn.quantize(tokens, "int8", layout="bshd", level="head", g=g)
    assert (again.codes == got.codes).all()
    out = np.empty(tokens.shape, np.float16)
    assert mxattn.dequantize(again, layout="bshd", out=out) is out
    assert (out.swapaxes(1, 2) == mxattn.dequantize(got, dtype="float16")).all()


def test_nonfinite():
    x = X.copy()
    x[0, 0, 0, 0] = np.nan
    assert mxattn.quantize(x, "mxfp4").n_bad == 1
    assert np.isnan(mxattn.dequantize(mxattn.quantize(x, "mxfp4"))[0, 0, 0, :32]).all()
    assert np.isfinite(mxattn.dequantize(mxattn.quantize(x, "mxfp4", nonfinite="sanitize"))).all()
    with pytest.raises(ValueError, match="NaN"):
        mxattn.quantize(x, "mxfp4", nonfinite="error")


def test_formats():
    assert mxattn.formats() == tuple(name for name in mxa.FORMATS if name != "none")
