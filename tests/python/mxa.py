# SPDX-License-Identifier: Apache-2.0
"""Calls of <mxattn/mxattn.h> with NumPy arrays. Every output lies between guard bytes that are checked.

The library is $MXATTN_LIB, else the first of build/gcc and build/release that has one.
"""

import ctypes as C
import os
from functools import cache
from pathlib import Path

import numpy as np

from mxa_header import (  # noqa: F401
    AXES,
    DEVICE_CPU,
    DTYPES,
    FOREIGN,
    FORMATS,
    LAYOUTS,
    LEVELS,
    OFFSET_AUTO,
    POLICIES,
    PV,
    RULES,
    SMOOTH,
    STATUSES,
    AttentionArgs,
    FormatInfo,
    ImplInfo,
    Packed,
    PackedSize,
    Problem,
    QuantOpts,
    RecipeStruct,
    Tensor,
    TileRange,
)

ROOT = Path(__file__).resolve().parent.parent.parent
GUARD = 256  # bytes on each side of an output
GUARD_BYTE = 0xA5


class MxaError(Exception):
    def __init__(self, status, text):
        super().__init__(f"{STATUSES[status]}: {text}")
        self.status, self.text = STATUSES[status], text


@cache
def lib():
    built = [ROOT / "build" / folder / "libmxattn.so" for folder in ("gcc", "release")]
    found = next((path for path in built if path.exists()), built[0])
    library = C.CDLL(os.environ.get("MXATTN_LIB", str(found)))
    for name, result in {
        "mxa_version": C.c_char_p,
        "mxa_status_name": C.c_char_p,
        "mxa_error_text": C.c_char_p,
        "mxa_format_get": C.POINTER(FormatInfo),
        "mxa_format_find": C.POINTER(FormatInfo),
        "mxa_scale_bytes": C.c_int64,
        "mxa_recipe_text": C.c_size_t,
        "mxa_recipe_name": C.c_char_p,
        "mxa_plan_work_bytes": C.c_size_t,
        "mxa_plan_describe": C.c_size_t,
        "mxa_impl_at": C.c_bool,
        "mxa_cpu_amx_reason": C.c_char_p,
        "mxa_cpu_features": C.c_char_p,
    }.items():
        getattr(library, name).restype = result
    return library


def check(status):
    if status:
        raise MxaError(status, lib().mxa_error_text().decode())


def pointer(array):
    return None if array is None else C.c_void_p(array.ctypes.data)


def tensor(array):
    """A view with the strides of a 4-dimensional array."""
    t = Tensor(array.ctypes.data, DTYPES[array.dtype])
    t.shape[:] = array.shape
    t.stride[:] = [step // array.itemsize for step in array.strides]
    return t


class Guarded:
    """An output array between guard bytes, filled with 0xFF: NaN in every float type."""

    def __init__(self, shape, dtype, fill=0xFF):
        self.bytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        self.buffer = np.full(self.bytes + 2 * GUARD + 64, GUARD_BYTE, np.uint8)
        self.start = GUARD + -(self.buffer.ctypes.data + GUARD) % 64
        raw = self.buffer[self.start : self.start + self.bytes]
        raw[:] = fill
        self.array = raw.view(dtype).reshape(shape)

    def checked(self):
        end = self.start + self.bytes
        assert (self.buffer[: self.start] == GUARD_BYTE).all(), "bytes before an output were overwritten"
        assert (self.buffer[end:] == GUARD_BYTE).all(), "bytes after an output were overwritten"
        return self.array


# ---------------------------------------------------------------- quantising


def quant_opts(
    rule="default",
    level="default",
    axis="head",
    policy="propagate",
    layout="row",
    options=0,
    fill_tail=False,
    rotate=False,
    mean=None,
    g=None,
    threads=0,
):
    opts = QuantOpts()
    lib().mxa_quant_default(C.byref(opts))
    opts.rule, opts.level, opts.axis = RULES[rule], LEVELS[level], AXES[axis]
    opts.nonfinite, opts.layout, opts.nvfp4 = POLICIES[policy], LAYOUTS[layout], options
    opts.fill_tail, opts.rotate, opts.threads = fill_tail, rotate, threads
    opts.keep = [None if a is None else np.ascontiguousarray(a, np.float32) for a in (mean, g)]
    opts.mean, opts.g = (None if a is None else a.ctypes.data for a in opts.keep)
    return opts


class PackedArrays:
    """Guarded buffers of one quantised copy; arrays after done()."""

    def __init__(self, fmt, opts, shape):
        self.fmt, self.opts, self.shape = fmt, opts, shape
        self.size = packed_sizes(fmt, opts, shape)
        s = self.size
        self.guards = {
            "codes": Guarded((s.matrices, s.rows, s.row_bytes), np.uint8),
            "scales": Guarded((s.matrices, s.matrix_scale_bytes), np.uint8),
            "g": Guarded((s.g_count,), np.float32),
            "nonfinite_tiles": Guarded((s.tile_count,), np.uint8),
        }
        self.struct = Packed(*(g.array.ctypes.data if g.bytes else None for g in self.guards.values()))
        self.bad = -1

    def done(self, bad):
        for name, guard in self.guards.items():
            setattr(self, name, guard.checked())
        self.bad = bad
        return self


def packed_sizes(fmt, opts, shape):
    size = PackedSize()
    check(lib().mxa_packed_sizes(FORMATS[fmt], C.byref(opts), (C.c_int64 * 4)(*shape), C.byref(size)))
    return size


def quantize(x, fmt, **options):
    packed = PackedArrays(fmt, quant_opts(**options), x.shape)
    bad = C.c_int64(-1)
    check(
        lib().mxa_quantize(
            C.byref(tensor(x)), FORMATS[fmt], C.byref(packed.opts), C.byref(packed.struct), C.byref(bad)
        )
    )
    return packed.done(bad.value)


def quantize_pair(x, low, low_options, high, high_options):
    copies = [
        PackedArrays(f, quant_opts(**o), x.shape) for f, o in ((low, low_options), (high, high_options))
    ]
    bad = (C.c_int64 * 2)(-1, -1)
    args = [a for c in copies for a in (FORMATS[c.fmt], C.byref(c.opts), C.byref(c.struct))]
    check(lib().mxa_quantize_pair(C.byref(tensor(x)), *args, bad))
    return [c.done(n) for c, n in zip(copies, bad)]


def dequantize(packed, dtype=np.float32, opts=None):
    out = Guarded(packed.shape, dtype)
    t = tensor(out.array)
    check(
        lib().mxa_dequantize(
            C.byref(packed.struct), FORMATS[packed.fmt], C.byref(opts or packed.opts), C.byref(t)
        )
    )
    return out.checked()


def channel_mean(x, n_tokens=-1):
    out = Guarded((x.shape[0], x.shape[1], x.shape[3]), np.float32)
    check(lib().mxa_channel_mean(C.byref(tensor(x)), C.c_int64(n_tokens), pointer(out.array)))
    return out.checked()


def subtract_mean(x, mean):
    out = Guarded(x.shape, np.float32)
    mean = np.ascontiguousarray(mean, np.float32)
    check(lib().mxa_subtract_mean(C.byref(tensor(x)), pointer(mean), C.byref(tensor(out.array))))
    return out.checked()


def rotate(x):
    out = Guarded(x.shape, np.float32)
    check(lib().mxa_rotate(C.byref(tensor(x)), C.byref(tensor(out.array))))
    return out.checked()


def pack_codes(fmt, codes):
    """Rows are whole blocks, as the sizes of a quantised tensor with a filled tail."""
    codes = np.ascontiguousarray(codes)
    rows, cols = codes.shape
    size = packed_sizes(fmt, quant_opts(fill_tail=True), (1, 1, rows, cols))
    out = Guarded((rows, size.row_bytes), np.uint8)
    check(
        lib().mxa_pack_codes(
            FORMATS[fmt], pointer(codes), C.c_int64(rows), C.c_int64(cols), pointer(out.array)
        )
    )
    return out.checked()


def unpack_codes(fmt, packed, cols):
    packed = np.ascontiguousarray(packed)
    out = Guarded((packed.shape[0], cols), np.uint8)
    check(
        lib().mxa_unpack_codes(
            FORMATS[fmt], pointer(packed), C.c_int64(packed.shape[0]), C.c_int64(cols), pointer(out.array)
        )
    )
    return out.checked()


def scale_bytes(layout, rows, cols):
    return lib().mxa_scale_bytes(LAYOUTS[layout], C.c_int64(rows), C.c_int64(cols))


def relayout_scales(rows, cols, source, data, target):
    data = np.ascontiguousarray(data)
    out = Guarded((scale_bytes(target, rows, cols),), np.uint8)
    check(
        lib().mxa_relayout_scales(
            C.c_int64(rows),
            C.c_int64(cols),
            LAYOUTS[source],
            pointer(data),
            LAYOUTS[target],
            pointer(out.array),
        )
    )
    return out.checked()


def import_rows(kind, data, rows, cols, block):
    codes, scales = Guarded((rows, cols // 2), np.uint8), Guarded((rows, cols // block), np.uint8)
    out = Packed(codes.array.ctypes.data, scales.array.ctypes.data, None, None)
    sizes = [C.c_int64(n) for n in (data.size, rows, cols)]
    check(lib().mxa_import_rows(FOREIGN[kind], pointer(data), *sizes, C.byref(out)))
    return codes.checked(), scales.checked()


def import_vllm_page(page, heads, tokens, dim):
    shapes = [(heads, tokens, dim // 2), (heads, tokens, dim // 16)] * 2
    parts = [Guarded(shape, np.uint8) for shape in shapes]
    k, v = (Packed(a.array.ctypes.data, b.array.ctypes.data, None, None) for a, b in (parts[:2], parts[2:]))
    sizes = [C.c_int64(n) for n in (page.size, heads, tokens, dim)]
    check(lib().mxa_import_vllm_page(pointer(page), *sizes, C.byref(k), C.byref(v)))
    return [part.checked() for part in parts]


def import_multipliers(multipliers):
    multipliers = np.ascontiguousarray(multipliers, np.float32)
    out = Guarded(multipliers.shape, np.float32)
    check(lib().mxa_import_multipliers(pointer(multipliers), C.c_int64(multipliers.size), pointer(out.array)))
    return out.checked()


# ---------------------------------------------------------------- recipes and attention


def parse_recipe(text):
    struct = RecipeStruct()
    check(lib().mxa_recipe_parse(text.encode(), C.byref(struct)))
    return struct


def recipe_text(struct):
    size = lib().mxa_recipe_text(C.byref(struct), None, C.c_size_t(0))
    text = C.create_string_buffer(size + 1)
    assert lib().mxa_recipe_text(C.byref(struct), text, C.c_size_t(size + 1)) == size
    return text.value.decode()


def recipe_names():
    names = []
    while (name := lib().mxa_recipe_name(len(names))) is not None:
        names.append(name.decode())
    return names


def recipe_struct(recipe):
    """The C form of an oracle_attention.Recipe."""
    struct = RecipeStruct()
    lib().mxa_recipe_default(C.byref(struct))
    for name in ("low_q", "low_k", "high_q", "high_k"):
        setattr(struct, name, FORMATS[getattr(recipe, name) or "none"])
    struct.exact, struct.rotate = recipe.exact, recipe.rotate
    struct.diag_window, struct.sink_window = recipe.diag, recipe.sink
    struct.smooth_k, struct.pv = SMOOTH[recipe.smooth], PV[recipe.pv]
    struct.rule_q, struct.rule_k = RULES[recipe.rule_q or "default"], RULES[recipe.rule_k or "default"]
    struct.level_q, struct.level_k = LEVELS[recipe.level_q or "default"], LEVELS[recipe.level_k or "default"]
    return struct


def make_problem(q_shape, k_shape, dim_v, **options):
    """batch, heads, ... from the shapes of q and k; options are Problem's fields, cu_q and cu_k arrays."""
    p = Problem()
    cu_q, cu_k = options.pop("cu_q", None), options.pop("cu_k", None)
    batch = q_shape[0] if cu_q is None else len(cu_q) - 1
    sizes = (batch, q_shape[1], k_shape[1], q_shape[2], k_shape[2], q_shape[3])
    lib().mxa_problem_default(C.byref(p), *(C.c_int64(n) for n in sizes))
    p.head_dim_v = dim_v
    p.device = DEVICE_CPU
    p.keep = [None if cu is None else np.ascontiguousarray(cu, np.int32) for cu in (cu_q, cu_k)]
    p.cu_seqlens_q, p.cu_seqlens_k = (None if cu is None else cu.ctypes.data for cu in p.keep)
    for name, value in options.items():
        setattr(p, name, value)
    return p


class Plan:
    def __init__(self, problem, recipe_struct_=None):
        self.problem, self.handle = problem, C.c_void_p()
        recipe = None if recipe_struct_ is None else C.byref(recipe_struct_)
        check(lib().mxa_plan_create(C.byref(problem), recipe, C.byref(self.handle)))

    def __del__(self):
        if self.handle:
            lib().mxa_plan_free(self.handle)

    def describe(self):
        size = lib().mxa_plan_describe(self.handle, None, C.c_size_t(0))
        text = C.create_string_buffer(size + 1)
        lib().mxa_plan_describe(self.handle, text, C.c_size_t(size + 1))
        return text.value.decode()

    def run(self, q, k, v, out=None, sinks=None, mean=None, g_q=None, g_k=None):
        """(out, lse); out may be the caller's array, of any strides."""
        p = self.problem
        dtype = next(d for d, code in DTYPES.items() if code == p.out_dtype)
        guard = None if out is not None else Guarded((q.shape[0], p.heads, p.q_len, p.head_dim_v), dtype)
        out = guard.array if guard else out
        lse = Guarded((q.shape[0], p.heads, p.q_len), np.float32)
        work = Guarded((lib().mxa_plan_work_bytes(self.handle),), np.uint8)
        tensors = [tensor(a) for a in (q, k, v, out)]
        extra = [None if a is None else np.ascontiguousarray(a, np.float32) for a in (sinks, mean, g_q, g_k)]
        args = AttentionArgs(C.sizeof(AttentionArgs), *(C.pointer(t) for t in tensors))
        args.lse, args.work, args.work_bytes = lse.array.ctypes.data, work.array.ctypes.data, work.bytes
        args.sinks, args.mean, args.g_q, args.g_k = (None if a is None else a.ctypes.data for a in extra)
        check(lib().mxa_attention(self.handle, C.byref(args)))
        work.checked()
        return (guard.checked() if guard else out), lse.checked()


def attention(
    q, k, v, recipe=None, *, out=None, out_dtype=None, sinks=None, mean=None, g_q=None, g_k=None, **options
):
    """One call. recipe: an oracle_attention.Recipe, a text or None; options as in make_problem."""
    dtypes = dict(zip(("q_dtype", "k_dtype", "v_dtype"), (DTYPES[a.dtype] for a in (q, k, v))))
    wanted = out.dtype if out is not None else np.dtype(out_dtype or np.float32)
    problem = make_problem(q.shape, k.shape, v.shape[3], out_dtype=DTYPES[wanted], **dtypes, **options)
    struct = parse_recipe(recipe) if isinstance(recipe, str) else recipe and recipe_struct(recipe)
    return Plan(problem, struct).run(q, k, v, out, sinks, mean, g_q, g_k)


def merge(parts, lses, sinks=None, dtype=np.float32):
    out, out_lse = Guarded(parts[0].shape, dtype), Guarded(lses[0].shape, np.float32)
    tensors = (Tensor * len(parts))(*(tensor(p) for p in parts))
    lse_pointers = (C.c_void_p * len(parts))(*(lse.ctypes.data for lse in lses))
    sinks = None if sinks is None else np.ascontiguousarray(sinks, np.float32)
    t = tensor(out.array)
    check(
        lib().mxa_merge(len(parts), tensors, lse_pointers, pointer(sinks), C.byref(t), pointer(out_lse.array))
    )
    return out.checked(), out_lse.checked()


def tile_map(problem, struct, b=0):
    """(first query tile, strings of H, L and .) of sequence b."""
    tiles = TileRange()
    check(lib().mxa_tile_map_range(C.byref(problem), C.c_int64(b), C.byref(tiles)))
    rows = []
    for m in range(tiles.q_first, tiles.q_first + tiles.q_count):
        row = []
        for n in range(tiles.k_count):
            precision = C.c_int(-1)
            where = (C.c_int64(b), C.c_int64(m), C.c_int64(n))
            check(lib().mxa_tile_map_at(C.byref(problem), C.byref(struct), *where, C.byref(precision)))
            row.append(".LH"[precision.value])
        rows.append("".join(row))
    return tiles.q_first, rows


def impls(op):
    """Names of the entries of an operation's list (0 quantize, 1 decode, 2 attention), fastest first."""
    info, found = ImplInfo(), []
    while lib().mxa_impl_at(op, len(found), C.byref(info)):
        found.append((info.name.decode(), info.format.decode(), info.available))
    return found
