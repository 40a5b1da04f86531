# SPDX-License-Identifier: Apache-2.0
"""PyTorch's scaled_dot_product_attention; for one query also two matrix products, which are faster there."""

import torch
from torch.nn.functional import scaled_dot_product_attention

from attention_problem import expand


def version():
    return "PyTorch " + torch.__version__


class Call:
    def __init__(self, problem, arrays, dtype, grouped):
        self.q, self.k, self.v = (torch.from_numpy(x)[None].to(dtype) for x in arrays)
        self.options = {"enable_gqa": grouped}
        if problem.causal and problem.q_len == problem.kv_len:
            self.options["is_causal"] = True
        elif problem.causal and problem.q_len > 1:  # is_causal would be top-left
            ones = torch.ones(problem.q_len, problem.kv_len, dtype=torch.bool)
            self.options["attn_mask"] = ones.tril(problem.kv_len - problem.q_len)

    @torch.inference_mode()
    def __call__(self):
        self.out = scaled_dot_product_attention(self.q, self.k, self.v, **self.options)

    def result(self):
        return self.out[0].float().numpy()


class Products(Call):
    """The query heads of a key/value head as rows of one matrix."""

    @torch.inference_mode()
    def __call__(self):
        heads, dim = self.q.shape[1], self.q.shape[3]
        q = self.q.view(self.k.shape[1], -1, dim)
        p = torch.softmax(q @ self.k[0].mT * dim**-0.5, -1)
        self.out = (p @ self.v[0]).view(1, heads, 1, dim)


def variants(problem, inputs, threads):
    torch.set_num_threads(threads)
    q, k, v = inputs
    wide = [q, expand(k, problem), expand(v, problem)]
    dtypes = {"fp32": torch.float32, "bf16": torch.bfloat16}
    made = {}
    for name, dtype in dtypes.items():
        if problem.heads != problem.heads_kv:
            made[f"{name} grouped"] = lambda d=dtype: Call(problem, inputs, d, True)
        made[f"{name} expanded"] = lambda d=dtype: Call(problem, wide, d, False)
        if problem.q_len == 1:
            made[f"{name} products"] = lambda d=dtype: Products(problem, inputs, d, True)
    return made
