# SPDX-License-Identifier: Apache-2.0
"""llama.cpp's flash attention, ggml_flash_attn_ext, from the libraries of llama-cpp-python.

K and V have their type before the call, as they lie in its cache.
"""

import ctypes as C
import importlib.metadata
from pathlib import Path

import numpy as np

F32, F16, Q8_0 = 0, 1, 8  # enum ggml_type in ggml.h
TYPES = {"f16": F16, "q8_0": Q8_0}
MEGABYTE = 1 << 20


class InitParams(C.Structure):
    """struct ggml_init_params."""

    _fields_ = [("mem_size", C.c_size_t), ("mem_buffer", C.c_void_p), ("no_alloc", C.c_bool)]


def load():
    files = importlib.metadata.files("llama-cpp-python")
    folder = next(Path(f.locate()).parent for f in files if f.name.startswith("libggml-base"))
    base, cpu = (C.CDLL(str(folder / name), C.RTLD_GLOBAL) for name in ("libggml-base.so", "libggml-cpu.so"))
    pointer, int64 = C.c_void_p, C.c_int64
    for function, result, arguments in (
        (base.ggml_init, pointer, [InitParams]),
        (base.ggml_free, None, [pointer]),
        (base.ggml_new_tensor_3d, pointer, [pointer, C.c_int, int64, int64, int64]),
        (base.ggml_get_data, pointer, [pointer]),
        (base.ggml_quantize_chunk, C.c_size_t, [C.c_int, pointer, pointer, int64, int64, int64, pointer]),
        (base.ggml_flash_attn_ext, pointer, [pointer] * 5 + [C.c_float] * 3),
        (base.ggml_new_graph, pointer, [pointer]),
        (base.ggml_build_forward_expand, None, [pointer, pointer]),
        (cpu.ggml_cpu_init, None, []),
        (cpu.ggml_graph_compute_with_ctx, C.c_int, [pointer, pointer, C.c_int]),
    ):
        function.restype, function.argtypes = result, arguments
    cpu.ggml_cpu_init()
    return base, cpu


BASE, CPU = load()


def version():
    return "llama-cpp-python " + importlib.metadata.version("llama-cpp-python")


class Call:
    def __init__(self, problem, inputs, threads, kv_type):
        p, self.shape, self.threads = problem, inputs[0].shape, threads
        scores = 2 * p.q_len * p.kv_len  # bytes of the mask
        floats = 4 * sum(x.size for x in inputs) + 4 * inputs[0].size
        scratch = threads * MEGABYTE * 64
        self.context = BASE.ggml_init(InitParams(scores + floats + scratch, None, False))
        q, k, v = (self.tensor(x, t) for x, t in zip(inputs, (F32, kv_type, kv_type)))
        mask = self.tensor(self.mask(p), F16) if p.causal and p.q_len > 1 else None
        self.out = BASE.ggml_flash_attn_ext(self.context, q, k, v, mask, p.dim**-0.5, 0.0, 0.0)
        self.graph = BASE.ggml_new_graph(self.context)
        BASE.ggml_build_forward_expand(self.graph, self.out)

    def __del__(self):
        BASE.ggml_free(self.context)

    @staticmethod
    def mask(p):
        visible = np.tri(p.q_len, p.kv_len, p.kv_len - p.q_len, bool)
        return np.where(visible, np.float16(0), np.float16(-np.inf))[None]

    def tensor(self, x, ggml_type):
        """[heads][rows][cols] as ggml's {cols, rows, heads}."""
        made = BASE.ggml_new_tensor_3d(self.context, ggml_type, *x.shape[::-1])
        data = BASE.ggml_get_data(made)
        if ggml_type == Q8_0:
            rows = x.shape[0] * x.shape[1]
            BASE.ggml_quantize_chunk(ggml_type, x.ctypes.data, data, 0, rows, x.shape[2], None)
        else:
            x = np.ascontiguousarray(x, np.float32 if ggml_type == F32 else np.float16)
            C.memmove(data, x.ctypes.data, x.nbytes)
        return made

    def __call__(self):
        status = CPU.ggml_graph_compute_with_ctx(self.context, self.graph, self.threads)
        if status != 0:
            raise RuntimeError(f"ggml status {status}")

    def result(self):
        heads, rows, dim = self.shape
        data = C.cast(BASE.ggml_get_data(self.out), C.POINTER(C.c_float))
        return np.ctypeslib.as_array(data, (rows, heads, dim)).transpose(1, 0, 2)


def variants(problem, inputs, threads):
    return {name: lambda t=t: Call(problem, inputs, threads, t) for name, t in TYPES.items()}
