# SPDX-License-Identifier: Apache-2.0
"""One attention problem on the GPU through the C library: random inputs, the call, the exact result."""

import ctypes as C
import math
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests/python"))
from mxa_header import AttentionArgs, Problem, RecipeStruct, Tensor  # noqa: E402

DEVICE = 0
DTYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
REFERENCE_ROWS = 1024  # at a time


@dataclass(frozen=True)
class Shape:
    heads: int
    heads_kv: int
    length: int
    causal: bool = True
    dim: int = 128
    dim_v: int = 0  # 0: dim

    @property
    def dims(self):
        return self.dim, self.dim_v or self.dim

    def __str__(self):
        dim = f"{self.dim}" if not self.dim_v else f"{self.dim}/{self.dim_v}"
        return f"{self.heads}/{self.heads_kv} heads, {self.length} {'causal' if self.causal else 'full'}, dim {dim}"

    def flops(self):
        """Of Q K and P V; half of the score matrix where it is causal."""
        return 2 * self.heads * self.length**2 * sum(self.dims) / (2 if self.causal else 1)


def random_inputs(shape, dtype=torch.bfloat16):
    """Q, K, V: normal."""
    rand = lambda heads, dim: torch.randn(1, heads, shape.length, dim, device="cuda").to(dtype)
    return rand(shape.heads, shape.dim), rand(shape.heads_kv, shape.dim), rand(shape.heads_kv, shape.dims[1])


def load(path):
    library = C.CDLL(str(path))
    library.mxa_error_text.restype = C.c_char_p
    library.mxa_plan_work_bytes.restype = C.c_size_t
    library.mxa_plan_describe.restype = C.c_size_t
    for name in ("mxa_plan_free", "mxa_plan_work_bytes", "mxa_attention", "mxa_plan_describe"):
        getattr(library, name).argtypes = [C.c_void_p] + {"mxa_attention": [C.c_void_p], "mxa_plan_describe": [
            C.c_char_p, C.c_size_t]}.get(name, [])
    library.mxa_problem_default.argtypes = [C.c_void_p] + [C.c_int64] * 6
    return library


class Attention:
    """A plan with its workspace, and a call that repeats on the same tensors."""

    def __init__(self, library, shape, recipe, inputs):
        self.library, self.shape, self.inputs = library, shape, inputs
        q, k, v = inputs
        problem, parsed, plan = Problem(), RecipeStruct(), C.c_void_p()
        library.mxa_problem_default(C.byref(problem), 1, shape.heads, shape.heads_kv, shape.length, shape.length,
                                    shape.dim)
        problem.head_dim_v, problem.causal, problem.device = v.shape[3], shape.causal, DEVICE
        problem.q_dtype = problem.k_dtype = DTYPES[q.dtype]
        problem.v_dtype = problem.out_dtype = DTYPES[v.dtype]
        self.scale = problem.softmax_scale
        self.check(library.mxa_recipe_parse(recipe.encode(), C.byref(parsed)))
        self.check(library.mxa_plan_create(C.byref(problem), C.byref(parsed), C.byref(plan)))
        self.plan = plan
        self.out = torch.full((*q.shape[:3], v.shape[3]), math.nan, device="cuda", dtype=v.dtype)
        self.work = torch.empty(library.mxa_plan_work_bytes(plan), dtype=torch.uint8, device="cuda")
        self.views = [self.view(x) for x in (*inputs, self.out)]
        self.args = AttentionArgs(C.sizeof(AttentionArgs), *(C.pointer(x) for x in self.views))
        self.args.work, self.args.work_bytes = self.work.data_ptr(), self.work.numel()

    def __del__(self):
        if hasattr(self, "plan"):
            self.library.mxa_plan_free(self.plan)

    def check(self, status):
        if status:
            raise RuntimeError(self.library.mxa_error_text().decode())

    @staticmethod
    def view(x):
        return Tensor(x.data_ptr(), DTYPES[x.dtype], (C.c_int64 * 4)(*x.shape), (C.c_int64 * 4)(*x.stride()))

    def __call__(self):
        self.args.stream = torch.cuda.current_stream().cuda_stream
        self.check(self.library.mxa_attention(self.plan, C.byref(self.args)))

    def kernel(self):
        text = C.create_string_buffer(4096)
        self.library.mxa_plan_describe(self.plan, text, len(text))
        return next(line for line in text.value.decode().splitlines() if line.startswith("attention: "))

    def error(self):
        """Relative L2 error of two heads against attention in float64 on the inputs."""
        q, k, v = self.inputs
        error = norm = 0.0
        for h in {0, self.shape.heads - 1}:
            kv = h // (self.shape.heads // self.shape.heads_kv)
            for rows in torch.arange(self.shape.length, device="cuda").split(REFERENCE_ROWS):
                scores = q[0, h, rows].double() @ k[0, kv].double().T * self.scale
                if self.shape.causal:
                    keys = torch.arange(self.shape.length, device="cuda")
                    scores.masked_fill_(keys > rows[:, None], -math.inf)
                want = torch.softmax(scores, -1) @ v[0, kv].double()
                error += (self.out[0, h, rows].double() - want).square().sum().item()
                norm += want.square().sum().item()
        return (error / norm) ** 0.5
