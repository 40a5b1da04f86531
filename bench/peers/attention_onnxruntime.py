# SPDX-License-Identifier: Apache-2.0
"""onnxruntime's GroupQueryAttention: a decode step from its cache, in fp32 and in int8 with a factor for each channel.

The cache's buffer is input and output at once, as its own generation loop binds it. Every call stores the newest
token at its place and attends to all.
"""

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper

NAMES = "query", "key", "value", "past_key", "past_value", "seqlens_k", "total_sequence_length"
INT8_LARGEST = 127
OPSET, DOMAIN = 17, "com.microsoft"


def version():
    return "onnxruntime " + ort.__version__


def build(p, quantized):
    cache_type = TensorProto.INT8 if quantized else TensorProto.FLOAT
    cache, new = [1, p.heads_kv, p.kv_len, p.dim], [1, 1, p.heads_kv * p.dim]
    shapes = [[1, 1, p.heads * p.dim], new, new, cache, cache, [1], [1]]
    types = [TensorProto.FLOAT] * 3 + [cache_type] * 2 + [TensorProto.INT32] * 2
    inputs = [helper.make_tensor_value_info(n, t, s) for n, t, s in zip(NAMES, types, shapes)]
    words, options = list(NAMES), {}
    if quantized:
        words += [""] * 5 + ["k_scale", "v_scale"]
        inputs += [helper.make_tensor_value_info(n, TensorProto.FLOAT, new) for n in words[-2:]]
        options = {"kv_cache_bit_width": 8, "k_quant_type": "PER_CHANNEL", "v_quant_type": "PER_CHANNEL"}
    outputs = [helper.make_tensor_value_info("output", TensorProto.FLOAT, shapes[0])]
    outputs += [helper.make_tensor_value_info(n, cache_type, cache) for n in ("present_key", "present_value")]
    node = helper.make_node(
        "GroupQueryAttention", words, [o.name for o in outputs], domain=DOMAIN,
        num_heads=p.heads, kv_num_heads=p.heads_kv, **options,
    )  # fmt: skip
    versions = [helper.make_opsetid("", OPSET), helper.make_opsetid(DOMAIN, 1)]
    graph = helper.make_graph([node], "step", inputs, outputs)
    return helper.make_model(graph, opset_imports=versions, ir_version=10).SerializeToString()


class Call:
    def __init__(self, problem, inputs, threads, quantized):
        p, options = problem, ort.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        session = ort.InferenceSession(build(p, quantized), options, ["CPUExecutionProvider"])
        q, k, v = inputs
        values = [q.reshape(1, 1, -1), *(np.ascontiguousarray(x[:, -1]).reshape(1, 1, -1) for x in (k, v))]
        caches, factors = [k[None], v[None]], []
        if quantized:
            factors = [np.abs(x).max(axis=1) / INT8_LARGEST for x in (k, v)]
            caches = [np.rint(x / f[:, None])[None].astype(np.int8) for x, f in zip((k, v), factors)]
        values += [*caches, np.array([p.kv_len - 1], np.int32), np.array([p.kv_len], np.int32)]
        values += [f.reshape(1, 1, -1) for f in factors]
        names = [i.name for i in session.get_inputs()]
        self.held = [ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(x)) for x in values]
        self.binding = session.io_binding()
        for name, value in zip(names, self.held):
            self.binding.bind_ortvalue_input(name, value)
        self.out = ort.OrtValue.ortvalue_from_numpy(np.zeros((1, 1, p.heads * p.dim), np.float32))
        outputs = self.out, self.held[3], self.held[4]
        for name, value in zip(("output", "present_key", "present_value"), outputs):
            self.binding.bind_ortvalue_output(name, value)
        self.session, self.heads = session, p.heads

    def __call__(self):
        self.session.run_with_iobinding(self.binding)

    def result(self):
        return self.out.numpy().reshape(self.heads, 1, -1)


def variants(problem, inputs, threads):
    if problem.q_len != 1:
        raise RuntimeError("only decode steps are compared")
    kinds = {"fp32": False, "int8 cache": True}
    return {name: lambda q=q: Call(problem, inputs, threads, q) for name, q in kinds.items()}
