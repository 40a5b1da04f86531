# SPDX-License-Identifier: Apache-2.0
"""A model of one ScaledDotProductAttention, K and V expanded, as OpenVINO's CPU plug-in runs it.

For one query also two products of the query heads of a key/value head, whose K and V are not expanded.
"""

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from attention_problem import expand


def version():
    return "OpenVINO " + ov.__version__.split("-")[0]


class Call:
    def __init__(self, problem, arrays, threads, precision):
        self.shape = problem.shapes()[0]
        arrays = [x[None] for x in arrays]
        parameters = [ops.parameter(x.shape, ov.Type.f32) for x in arrays]
        node = self.node(problem, parameters)
        config = {
            "INFERENCE_NUM_THREADS": threads,
            "NUM_STREAMS": 1,
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": precision,
        }
        compiled = ov.Core().compile_model(ov.Model([node], parameters), "CPU", config)
        used = compiled.get_property("INFERENCE_PRECISION_HINT")
        if used != precision:
            raise RuntimeError(f"{precision} asked for, {used} is what it would run in")
        self.request = compiled.create_infer_request()
        for i, x in enumerate(arrays):
            self.request.set_input_tensor(i, ov.Tensor(x))

    @staticmethod
    def node(problem, parameters):
        return ops.scaled_dot_product_attention(*parameters, causal=problem.causal and problem.q_len > 1)

    def __call__(self):
        self.request.infer()

    def result(self):
        return self.request.get_output_tensor().data.reshape(self.shape)


class Products(Call):
    @staticmethod
    def node(problem, parameters):
        q, k, v = parameters
        scores = ops.multiply(ops.matmul(q, k, False, True), np.float32(problem.dim**-0.5))
        return ops.matmul(ops.softmax(scores, -1), v, False, False)


def variants(problem, inputs, threads):
    if problem.causal and problem.q_len not in (1, problem.kv_len):
        raise RuntimeError("its causal mask is top-left")
    q, k, v = inputs
    wide = [q, expand(k, problem), expand(v, problem)]
    types = {"fp32": ov.Type.f32, "bf16": ov.Type.bf16}
    made = {name: lambda t=t: Call(problem, wide, threads, t) for name, t in types.items()}
    if problem.q_len == 1:
        grouped = [q.reshape(problem.heads_kv, -1, problem.dim), k, v]
        made |= {
            f"{name} products": lambda t=t: Products(problem, grouped, threads, t)
            for name, t in types.items()
        }
    return made
