# SPDX-License-Identifier: Apache-2.0
"""Numbers and structures of <mxattn/mxattn.h> for ctypes."""

import ctypes as C

import ml_dtypes
import numpy as np

STATUSES = (
    "OK ERR_ARG ERR_SHAPE ERR_FORMAT ERR_RULE ERR_LAYOUT ERR_ALIGN ERR_NONFINITE ERR_SCALE ERR_UNSUPPORTED "
    "ERR_WORKSPACE ERR_MEMORY ERR_DEVICE ERR_FILE"
).split()
FORMATS = dict(
    zip("none f32 f16 bf16 mxfp8 mxfp8-e5m2 mxfp6 mxfp6-e2m3 mxfp4 mxint8 nvfp4 fp8 int8".split(), range(13))
)
RULES = {"default": 0, "floor": 1, "rceil": 2, "even": 3}
LEVELS = {"default": 0, "none": 1, "tensor": 2, "head": 3, "token_block": 4, "token": 5}
AXES = {"head": 0, "token": 1}
POLICIES = {"propagate": 0, "error": 1, "sanitize": 2}
LAYOUTS = {"row": 0, "tile_128x4": 1, "amd": 2}
FOREIGN = {"ggml_mxfp4": 0, "ggml_nvfp4": 1, "gpt_oss": 2, "ggml_q8_0": 3}
SMOOTH = {None: 0, "prefix": 1, "full": 2, "given": 3}
PV = {None: 0, "f16": 1, "bf16": 2}
DTYPES = {np.dtype(np.float32): 0, np.dtype(np.float16): 1, np.dtype(ml_dtypes.bfloat16): 2}
DEVICE_CPU = -1
OFFSET_AUTO = -(2**63)


class Tensor(C.Structure):
    _fields_ = [("data", C.c_void_p), ("dtype", C.c_int), ("shape", C.c_int64 * 4), ("stride", C.c_int64 * 4)]


class FormatInfo(C.Structure):
    _fields_ = [
        ("format", C.c_int),
        ("name", C.c_char_p),
        ("element_bits", C.c_int),
        ("block", C.c_int),
        ("scale", C.c_int),
        ("quantized", C.c_bool),
        ("largest", C.c_double),
        ("default_rule", C.c_int),
        ("default_level", C.c_int),
    ]


class QuantOpts(C.Structure):
    _fields_ = [
        ("size", C.c_size_t),
        ("rule", C.c_int),
        ("level", C.c_int),
        ("axis", C.c_int),
        ("nonfinite", C.c_int),
        ("layout", C.c_int),
        ("nvfp4", C.c_uint),
        ("fill_tail", C.c_bool),
        ("rotate", C.c_bool),
        ("mean", C.c_void_p),
        ("g", C.c_void_p),
        ("threads", C.c_int),
        ("device", C.c_int),
        ("stream", C.c_void_p),
    ]


class Packed(C.Structure):
    _fields_ = [
        ("codes", C.c_void_p),
        ("scales", C.c_void_p),
        ("g", C.c_void_p),
        ("nonfinite_tiles", C.c_void_p),
    ]


class PackedSize(C.Structure):
    _fields_ = [
        (name, C.c_int64)
        for name in (
            "matrices rows cols row_bytes scale_cols matrix_scale_bytes code_bytes scale_bytes g_count "
            "tile_count"
        ).split()
    ]


class RecipeStruct(C.Structure):
    _fields_ = [
        ("size", C.c_size_t),
        ("exact", C.c_bool),
        ("low_q", C.c_int),
        ("low_k", C.c_int),
        ("high_q", C.c_int),
        ("high_k", C.c_int),
        ("diag_window", C.c_int64),
        ("sink_window", C.c_int64),
        ("rotate", C.c_bool),
        ("smooth_k", C.c_int),
        ("rule_q", C.c_int),
        ("rule_k", C.c_int),
        ("level_q", C.c_int),
        ("level_k", C.c_int),
        ("pv", C.c_int),
        ("v", C.c_int),
        ("rotate_v", C.c_bool),
    ]


class Problem(C.Structure):
    _fields_ = [
        ("size", C.c_size_t),
        *((name, C.c_int64) for name in "batch heads heads_kv q_len kv_len head_dim head_dim_v".split()),
        *((name, C.c_int) for name in "q_dtype k_dtype v_dtype out_dtype".split()),
        ("softmax_scale", C.c_float),
        ("softcap", C.c_float),
        ("causal", C.c_bool),
        *((name, C.c_int64) for name in "window_left window_right q_offset".split()),
        ("cu_seqlens_q", C.c_void_p),
        ("cu_seqlens_k", C.c_void_p),
        ("device", C.c_int),
        ("threads", C.c_int),
    ]


class AttentionArgs(C.Structure):
    _fields_ = [
        ("size", C.c_size_t),
        *((name, C.POINTER(Tensor)) for name in "q k v out".split()),
        *((name, C.c_void_p) for name in "lse sinks mean g_q g_k work".split()),
        ("work_bytes", C.c_size_t),
        ("stream", C.c_void_p),
    ]


class TileRange(C.Structure):
    _fields_ = [("q_first", C.c_int64), ("q_count", C.c_int64), ("k_count", C.c_int64)]


class ImplInfo(C.Structure):
    _fields_ = [(name, C.c_char_p) for name in "op name format needs".split()] + [("available", C.c_bool)]
