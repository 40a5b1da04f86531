# SPDX-License-Identifier: Apache-2.0
"""Structures and numbers of <mxattn/mxattn.h> for ctypes."""

import ctypes as C

DTYPE_F32, DTYPE_F16, DTYPE_BF16 = 0, 1, 2
DEVICE_CPU, DEVICE_CUDA_0 = -1, 0
OFFSET_AUTO = -(2**63)
TILE = 128
PAGE_KINDS = 2  # pages of low rows, of high rows

ERR_MEMORY, ERR_DEVICE, ERR_FILE = 11, 12, 13

RULES = {None: 0, "floor": 1, "rceil": 2, "even": 3}
LEVELS = {None: 0, "none": 1, "tensor": 2, "head": 3, "token_block": 4, "token": 5}
AXES = {"head": 0, "token": 1}
NONFINITE = {"propagate": 0, "error": 1, "sanitize": 2}
SCALE_LAYOUTS = {"row": 0, "tile_128x4": 1, "amd": 2}
NVFP4_OPTIONS = {"scale_up": 1, "flush_tiny": 2, "pow2_g": 4, "four_over_six": 8}


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


class PackedBuffers(C.Structure):
    _fields_ = [(name, C.c_void_p) for name in ("codes", "scales", "g", "nonfinite_tiles")]


class PackedSize(C.Structure):
    _fields_ = [
        (name, C.c_int64)
        for name in (
            "matrices",
            "rows",
            "cols",
            "row_bytes",
            "scale_cols",
            "matrix_scale_bytes",
            "code_bytes",
            "scale_bytes",
            "g_count",
            "tile_count",
        )
    ]


class Recipe(C.Structure):
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
        ("batch", C.c_int64),
        ("heads", C.c_int64),
        ("heads_kv", C.c_int64),
        ("q_len", C.c_int64),
        ("kv_len", C.c_int64),
        ("head_dim", C.c_int64),
        ("head_dim_v", C.c_int64),
        ("q_dtype", C.c_int),
        ("k_dtype", C.c_int),
        ("v_dtype", C.c_int),
        ("out_dtype", C.c_int),
        ("softmax_scale", C.c_float),
        ("softcap", C.c_float),
        ("causal", C.c_bool),
        ("window_left", C.c_int64),
        ("window_right", C.c_int64),
        ("q_offset", C.c_int64),
        ("cu_seqlens_q", C.c_void_p),
        ("cu_seqlens_k", C.c_void_p),
        ("device", C.c_int),
        ("threads", C.c_int),
    ]


class AttentionArgs(C.Structure):
    """q, k, v, out are addresses of Tensor: a number is set faster than a pointer object."""

    _fields_ = [
        ("size", C.c_size_t),
        *((name, C.c_void_p) for name in ("q", "k", "v", "out")),
        *((name, C.c_void_p) for name in ("lse", "sinks", "mean", "g_q", "g_k")),
        ("work", C.c_void_p),
        ("work_bytes", C.c_size_t),
        ("stream", C.c_void_p),
    ]


class TileRange(C.Structure):
    _fields_ = [("q_first", C.c_int64), ("q_count", C.c_int64), ("k_count", C.c_int64)]


class CacheOpts(C.Structure):
    _fields_ = [
        ("size", C.c_size_t),
        *((name, C.c_int64) for name in ("batch", "heads_kv", "head_dim", "head_dim_v", "page_tokens")),
        ("recipe", C.c_void_p),
        ("mean", C.c_void_p),
        ("g_v", C.c_void_p),
        ("rewind", C.c_int64),
        ("pages", C.c_int64 * PAGE_KINDS),
        ("memory", C.c_void_p * PAGE_KINDS),
        ("threads", C.c_int),
        ("device", C.c_int),
    ]


class CacheAttendArgs(C.Structure):
    """q and out are addresses of Tensor."""

    _fields_ = [
        ("size", C.c_size_t),
        *((name, C.c_void_p) for name in ("q", "out", "counts", "lse", "sinks")),
        ("softmax_scale", C.c_float),
        ("softcap", C.c_float),
        ("window_left", C.c_int64),
        ("work", C.c_void_p),
        ("work_bytes", C.c_size_t),
        ("max_length", C.c_int64),
    ]
