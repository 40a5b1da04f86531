# SPDX-License-Identifier: Apache-2.0
"""torch tensors, in host memory or on a CUDA device. Imported only where torch has been."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch

from ._arrays import Axes, Geometry, NumpyArrays, View, arrange, same_kind
from ._structures import DEVICE_CPU, DEVICE_CUDA_0, DTYPE_BF16, DTYPE_F16, DTYPE_F32

DTYPES = {DTYPE_F32: torch.float32, DTYPE_F16: torch.float16, DTYPE_BF16: torch.bfloat16}
CODES = {dtype: code for code, dtype in DTYPES.items()}


class Tensors:
    """Tensors of one place: a class for the host, one for each CUDA device."""

    kind: str
    device: int  # MXA_DEVICE_...
    place: torch.device

    @staticmethod
    def of(name: str, x: torch.Tensor) -> type[Tensors]:
        if x.is_cpu:
            return HostTensors
        if x.is_cuda:
            return cuda_tensors(x.device.index)
        raise RuntimeError(f"{name}: is on {x.device}; mxattn computes on the CPU and on CUDA devices")

    @staticmethod
    def code(name: str, dtype: torch.dtype) -> int:
        """DTYPE_..., or what is wrong with it."""
        code = CODES.get(dtype)
        if code is None:
            known = "torch.float32, torch.float16 or torch.bfloat16"
            raise ValueError(f"{name}: dtype {dtype} is not {known}")
        return code

    @staticmethod
    def geometry(name: str, x: torch.Tensor) -> Geometry:
        """What a key of calls needs, and here what a key does not show."""
        if x.layout is not torch.strided:
            raise ValueError(f"{name}: layout {x.layout} is not torch.strided")
        if x.requires_grad and torch.is_grad_enabled():
            text = "requires grad, and there is no backward pass: use torch.no_grad() or detach()"
            raise ValueError(f"{name}: {text}")
        if x.is_neg():
            raise ValueError(f"{name}: its sign is pending (torch.Tensor.is_neg); use resolve_neg()")
        return x.dtype, x.shape, x.stride()

    @classmethod
    def read(cls, name: str, geometry: Geometry, axes: Axes) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
        """DTYPE_..., shape and strides in the library's order."""
        dtype, shape, strides = geometry
        code = cls.code(name, dtype)
        return code, arrange(name, shape, axes, 1), arrange(name, strides, axes, 0)

    @classmethod
    def view(cls, name: str, x: torch.Tensor, axes: Axes) -> View:
        return x.data_ptr(), *cls.read(name, cls.geometry(name, x), axes)

    @staticmethod
    def writable(name: str, x: torch.Tensor) -> None:
        """Every tensor is."""

    @staticmethod
    def dtype(code: int) -> torch.dtype:
        return DTYPES[code]

    @classmethod
    def new(cls, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=cls.place)

    @classmethod
    def floats(cls, shape: tuple[int, ...]) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.float32, device=cls.place)

    @classmethod
    def bytes(cls, shape: tuple[int, ...]) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.uint8, device=cls.place)

    @staticmethod
    def address(x: torch.Tensor) -> int:
        return x.data_ptr()

    @staticmethod
    def contiguous(x: torch.Tensor) -> bool:
        return x.is_contiguous()

    @staticmethod
    def to_numpy(x: torch.Tensor) -> np.ndarray[Any, Any]:
        x = x.detach()
        return (x.float() if x.dtype is torch.bfloat16 else x).numpy()


class HostTensors(Tensors):
    kind = "torch tensor in host memory"
    device = DEVICE_CPU
    place = torch.device("cpu")
    small = NumpyArrays.small
    work, done, stream = NumpyArrays.work, NumpyArrays.done, NumpyArrays.stream


@cache
def cuda_tensors(ordinal: int) -> type[Tensors]:
    """The class of tensors on cuda:ordinal. Its calls queue their work on the current stream."""

    class CudaTensors(Tensors):
        kind = f"torch tensor on cuda:{ordinal}"
        device = DEVICE_CUDA_0 + ordinal
        place = torch.device("cuda", ordinal)

        @classmethod
        def small(cls, name: str, x: Any, shape: tuple[int, ...]) -> tuple[Any, int]:
            """A number a head or channel as contiguous float32 on the device: what keeps it, its address."""
            x = same_kind(cls, name, x, "the first tensor")
            cls.code(name, x.dtype)
            cls.geometry(name, x)
            if tuple(x.shape) != shape:
                raise ValueError(f"{name}: shape {tuple(x.shape)} is not {shape}")
            x = x.detach().to(torch.float32).contiguous()
            return x, x.data_ptr()

        @classmethod
        def work(cls, n_bytes: int) -> tuple[Any, int]:
            """Workspace of torch's allocator, which hands it on in the stream's order."""
            memory = cls.bytes((n_bytes,))
            return memory, memory.data_ptr()

        @staticmethod
        def done() -> None:
            """The allocator has the workspace again once nothing keeps it."""

        @staticmethod
        def stream() -> int:
            return torch.cuda.current_stream(ordinal).cuda_stream

    return CudaTensors
