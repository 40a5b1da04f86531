# SPDX-License-Identifier: Apache-2.0
"""torch tensors in host memory. Imported only where torch has been."""

from __future__ import annotations

from functools import lru_cache
from typing import ClassVar

import numpy as np
import torch

from ._arrays import GEOMETRIES_KEPT, Axes, View, arrange
from ._structures import DTYPE_BF16, DTYPE_F16, DTYPE_F32

DTYPES = {DTYPE_F32: torch.float32, DTYPE_F16: torch.float16, DTYPE_BF16: torch.bfloat16}


@lru_cache(maxsize=GEOMETRIES_KEPT)
def torch_geometry(
    name: str, shape: tuple[int, ...], strides: tuple[int, ...], axes: Axes
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return arrange(name, shape, axes, 1), arrange(name, strides, axes, 0)


class TorchArrays:
    kind = "torch tensor"
    codes: ClassVar[dict[torch.dtype, int]] = {dtype: code for code, dtype in DTYPES.items()}

    @classmethod
    def check(cls, name: str, x: torch.Tensor) -> int:
        """DTYPE_..., or what is wrong with x."""
        code = cls.codes.get(x.dtype)
        if code is None:
            known = "torch.float32, torch.float16 or torch.bfloat16"
            raise ValueError(f"{name}: dtype {x.dtype} is not {known}")
        if not x.is_cpu:
            raise RuntimeError(f"{name}: is on {x.device}; the package computes on the CPU")
        if x.layout is not torch.strided:
            raise ValueError(f"{name}: layout {x.layout} is not torch.strided")
        if x.requires_grad and torch.is_grad_enabled():
            text = "requires grad, and there is no backward pass: use torch.no_grad() or detach()"
            raise ValueError(f"{name}: {text}")
        if x.is_neg():
            raise ValueError(f"{name}: its sign is pending (torch.Tensor.is_neg); use resolve_neg()")
        return code

    @classmethod
    def view(cls, name: str, x: torch.Tensor, axes: Axes) -> View:
        code = cls.check(name, x)
        shape, strides = torch_geometry(name, x.shape, x.stride(), axes)
        return x.data_ptr(), code, shape, strides

    @staticmethod
    def writable(name: str, x: torch.Tensor) -> None:
        """Every tensor is."""

    @staticmethod
    def like(x: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
        return x.new_empty(shape)

    @staticmethod
    def empty(shape: tuple[int, ...], code: int) -> torch.Tensor:
        return torch.empty(shape, dtype=DTYPES[code])

    @staticmethod
    def floats(shape: tuple[int, ...]) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.float32)

    @staticmethod
    def bytes(shape: tuple[int, ...]) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.uint8)

    @staticmethod
    def address(x: torch.Tensor) -> int:
        return x.data_ptr()

    @staticmethod
    def contiguous(x: torch.Tensor) -> bool:
        return x.is_contiguous()

    @staticmethod
    def to_numpy(x: torch.Tensor) -> np.ndarray:
        x = x.detach()
        return (x.float() if x.dtype is torch.bfloat16 else x).numpy()
