# SPDX-License-Identifier: Apache-2.0
"""Calls of the KV cache with NumPy arrays, and what its pages hold."""

import ctypes as C

import numpy as np

import mxa
from mxa_header import FOREIGN, Tensor

LOW, HIGH = 0, 1
UNLIMITED = -1


class Opts(C.Structure):
    _fields_ = [
        ("size", C.c_size_t),
        *((name, C.c_int64) for name in "batch heads_kv head_dim head_dim_v page_tokens".split()),
        ("recipe", C.c_void_p),
        ("mean", C.c_void_p),
        ("g_v", C.c_void_p),
        ("rewind", C.c_int64),
        ("pages", C.c_int64 * 2),
        ("memory", C.c_void_p * 2),
        ("threads", C.c_int),
        ("device", C.c_int),
    ]


class Size(C.Structure):
    _fields_ = [
        ("page_bytes", C.c_int64 * 2),
        ("token_bytes", C.c_int64 * 2),
        ("high_tokens", C.c_int64),
    ]


class AttendArgs(C.Structure):
    _fields_ = [
        ("size", C.c_size_t),
        ("q", C.POINTER(Tensor)),
        ("out", C.POINTER(Tensor)),
        *((name, C.c_void_p) for name in "counts lse sinks".split()),
        ("softmax_scale", C.c_float),
        ("softcap", C.c_float),
        ("window_left", C.c_int64),
        ("work", C.c_void_p),
        ("work_bytes", C.c_size_t),
        ("max_length", C.c_int64),
    ]


class Table(C.Structure):
    _fields_ = [
        ("length", C.c_int64),
        ("high_first", C.c_int64),
        ("n_pages", C.c_int64),
        ("pages", C.c_void_p * 2),
    ]


class ForeignRows(C.Structure):
    _fields_ = [("layout", C.c_int), ("data", C.c_void_p), ("bytes", C.c_int64)]


class VllmPage(C.Structure):
    _fields_ = [
        ("data", C.c_void_p),
        ("bytes", C.c_int64),
        ("tokens", C.c_int64),
        ("g_k", C.c_float),
        ("g_v", C.c_float),
    ]


def foreign_rows(layout, data):
    return C.byref(ForeignRows(FOREIGN[layout], data.ctypes.data, data.nbytes))


def lib():
    library = mxa.lib()
    library.mxa_cache_work_bytes.restype = C.c_size_t
    library.mxa_cache_used_bytes.restype = C.c_int64
    library.mxa_cache_page.restype = C.c_void_p
    return library


def counts_of(counts):
    return None if counts is None else np.ascontiguousarray(counts, np.int64)


def make_opts(batch, heads_kv, dim, recipe=None, mean=None, g_v=None, **fields):
    """recipe: a text or None. The result keeps what it points to."""
    opts = Opts()
    lib().mxa_cache_default(C.byref(opts), C.c_int64(batch), C.c_int64(heads_kv), C.c_int64(dim))
    opts.keep = [None if recipe is None else mxa.parse_recipe(recipe), mean, g_v]
    opts.recipe = None if recipe is None else C.addressof(opts.keep[0])
    opts.mean = None if mean is None else mean.ctypes.data
    opts.g_v = None if g_v is None else g_v.ctypes.data
    for name, value in fields.items():
        if name in ("pages", "memory"):
            getattr(opts, name)[:] = value
        else:
            setattr(opts, name, value)
    return opts


def sizes(opts):
    size = Size()
    mxa.check(lib().mxa_cache_bytes(C.byref(opts), C.byref(size)))
    return size


def plan_tokens(opts, n_bytes):
    tokens = C.c_int64(-1)
    mxa.check(lib().mxa_cache_plan(C.byref(opts), C.c_int64(n_bytes), C.byref(tokens)))
    return tokens.value


class Cache:
    def __init__(self, *args, load=None, **fields):
        """Opts' fields; load: a path, with or without them."""
        self.handle = C.c_void_p()
        opts = self.opts = make_opts(*args, **fields) if args else None
        if load is None:
            mxa.check(lib().mxa_cache_create(C.byref(opts), C.byref(self.handle)))
        else:
            given = None if opts is None else C.byref(opts)
            mxa.check(lib().mxa_cache_load(str(load).encode(), given, C.byref(self.handle)))

    def __del__(self):
        if self.handle:
            lib().mxa_cache_free(self.handle)

    def append(self, k, v, counts=None):
        counts = counts_of(counts)
        mxa.check(
            lib().mxa_cache_append(
                self.handle, C.byref(mxa.tensor(k)), C.byref(mxa.tensor(v)), mxa.pointer(counts)
            )
        )

    def attend(
        self, q, dim_v, counts=None, scale=None, softcap=0.0, sinks=None, left=UNLIMITED, dtype=np.float32
    ):
        counts = counts_of(counts)
        out = mxa.Guarded(q.shape[:3] + (dim_v,), dtype)
        lse = mxa.Guarded(q.shape[:3], np.float32)
        n_bytes = lib().mxa_cache_work_bytes(
            self.handle, *(C.c_int64(n) for n in (q.shape[1], q.shape[2], max(self.lengths(q.shape[0]))))
        )
        work = mxa.Guarded((n_bytes,), np.uint8)
        tensors = [mxa.tensor(a) for a in (q, out.array)]
        args = AttendArgs(C.sizeof(AttendArgs), *(C.pointer(t) for t in tensors))
        args.lse, args.work, args.work_bytes = lse.array.ctypes.data, work.array.ctypes.data, n_bytes
        sinks = None if sinks is None else np.ascontiguousarray(sinks, np.float32)
        args.counts = None if counts is None else counts.ctypes.data
        args.sinks = None if sinks is None else sinks.ctypes.data
        args.softmax_scale = q.shape[3] ** -0.5 if scale is None else scale
        args.softcap, args.window_left = softcap, left
        mxa.check(lib().mxa_cache_attend(self.handle, C.byref(args)))
        work.checked()
        return out.checked(), lse.checked()

    def lengths(self, batch):
        lengths = np.full(batch, -1, np.int64)
        mxa.check(lib().mxa_cache_lengths(self.handle, mxa.pointer(lengths)))
        return lengths

    def truncate(self, b, length):
        mxa.check(lib().mxa_cache_truncate(self.handle, C.c_int64(b), C.c_int64(length)))

    def fork(self, source, target):
        mxa.check(lib().mxa_cache_fork(self.handle, C.c_int64(source), C.c_int64(target)))

    def reorder(self, source):
        mxa.check(lib().mxa_cache_reorder(self.handle, mxa.pointer(counts_of(source))))

    def remove(self, b, first, n):
        mxa.check(lib().mxa_cache_remove(self.handle, C.c_int64(b), C.c_int64(first), C.c_int64(n)))

    def save(self, path):
        mxa.check(lib().mxa_cache_save(self.handle, str(path).encode()))

    def used_bytes(self):
        return lib().mxa_cache_used_bytes(self.handle)

    def table(self, b):
        """(length, high_first, page numbers of both kinds)."""
        t = Table()
        mxa.check(lib().mxa_cache_get_table(self.handle, C.c_int64(b), C.byref(t)))
        pages = [
            np.ctypeslib.as_array(C.cast(p, C.POINTER(C.c_int32)), (t.n_pages,)).copy()
            if t.n_pages
            else np.zeros(0, np.int32)
            for p in t.pages
        ]
        return t.length, t.high_first, pages

    def set_table(self, b, length, high_first, pages):
        pages = [np.ascontiguousarray(p, np.int32) for p in pages]
        t = Table(length, high_first, len(pages[0]), (C.c_void_p * 2)(*(p.ctypes.data for p in pages)))
        mxa.check(lib().mxa_cache_set_table(self.handle, C.c_int64(b), C.byref(t)))

    def import_rows(self, b, n, k, v):
        """k, v: (name of a layout, bytes)."""
        rows = foreign_rows(*k), foreign_rows(*v)
        mxa.check(lib().mxa_cache_import_rows(self.handle, C.c_int64(b), C.c_int64(n), *rows))

    def export_rows(self, b, first, n, k, v):
        """k, v: (name of a layout, its size)."""
        out = [mxa.Guarded((size,), np.uint8) for _, size in (k, v)]
        rows = [foreign_rows(name, o.array) for (name, _), o in zip((k, v), out)]
        mxa.check(
            lib().mxa_cache_export_rows(self.handle, C.c_int64(b), C.c_int64(first), C.c_int64(n), *rows)
        )
        return [o.checked() for o in out]

    def import_vllm(self, b, n, page, tokens, g_k, g_v):
        page = VllmPage(page.ctypes.data, page.nbytes, tokens, g_k, g_v)
        mxa.check(lib().mxa_cache_import_vllm(self.handle, C.c_int64(b), C.c_int64(n), C.byref(page)))

    def export_vllm(self, b, first, n, n_bytes, tokens, g_k, g_v):
        out = mxa.Guarded((n_bytes,), np.uint8)
        page = VllmPage(out.array.ctypes.data, n_bytes, tokens, g_k, g_v)
        order = self.handle, C.c_int64(b), C.c_int64(first), C.c_int64(n), C.byref(page)
        mxa.check(lib().mxa_cache_export_vllm(*order))
        return out.checked()

    def page(self, kind, number, n_bytes):
        address = lib().mxa_cache_page(self.handle, kind, C.c_int32(number))
        return np.ctypeslib.as_array(C.cast(address, C.POINTER(C.c_uint8)), (n_bytes,))
