# SPDX-License-Identifier: Apache-2.0
"""NumPy arrays and torch tensors as the library sees them: an address, a type, a shape and strides."""

from __future__ import annotations

import ctypes as C
import sys
import threading
from struct import Struct
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np

from ._structures import DEVICE_CPU, DTYPE_BF16, DTYPE_F16, DTYPE_F32, Tensor

if TYPE_CHECKING:
    import torch

Array: TypeAlias = "np.ndarray[Any, Any] | torch.Tensor"

# Where the library's axes batch, heads, seq, dim are in an array; None: it has no such axis.
Axes: TypeAlias = "tuple[int | None, ...]"
LAYOUTS: dict[str, Axes] = {"bhsd": (0, 1, 2, 3), "bshd": (0, 2, 1, 3)}
PACKED_LAYOUTS: dict[str, Axes] = {"shd": (None, 1, 0, 2), "hsd": (None, 0, 1, 2)}
# An address, DTYPE_..., shape and strides (in elements) in the library's order of axes.
View: TypeAlias = "tuple[int, int, tuple[int, ...], tuple[int, ...]]"
NAMES = {DTYPE_F32: "float32", DTYPE_F16: "float16", DTYPE_BF16: "bfloat16"}
CODES = {name: code for code, name in NAMES.items()}
WORK_ALIGNMENT = 64  # bytes
WORK_KEPT = 64 << 20  # bytes that a thread keeps between calls; larger workspaces are given back
# Tensor's bytes: setting a structure's fields one by one takes three times as long
TENSOR = Struct("Pi4x4q4q")
NO_BYTES = C.c_char * 0
# dtype, shape and strides as the array's package has them: a key that is cheap to make
Geometry: TypeAlias = "tuple[Any, tuple[int, ...], tuple[int, ...]]"


def numpy_bfloat16() -> np.dtype[Any]:
    try:
        import ml_dtypes
    except ImportError as error:
        raise ImportError(
            "mxattn: bfloat16 in NumPy needs ml_dtypes: pip install mxattn[bfloat16]"
        ) from error
    return np.dtype(ml_dtypes.bfloat16)


def arrange(name: str, x: tuple[int, ...], axes: Axes, missing: int) -> tuple[int, ...]:
    """A shape or strides in the library's order."""
    dims = len(axes) - axes.count(None)
    if len(x) != dims:
        raise ValueError(f"{name}: has {len(x)} dimensions, not {dims}")
    return tuple([missing if axis is None else x[axis] for axis in axes])


class NumpyArrays:
    """Arrays in host memory."""

    kind = "NumPy array"
    device = DEVICE_CPU
    codes: ClassVar[dict[Any, int]] = {np.dtype(np.float32): DTYPE_F32, np.dtype(np.float16): DTYPE_F16}

    @classmethod
    def of(cls, name: str, x: np.ndarray[Any, Any]) -> type[NumpyArrays]:
        return cls

    @classmethod
    def code(cls, name: str, dtype: np.dtype[Any]) -> int:
        """DTYPE_..., or what is wrong with it."""
        code = cls.codes.get(dtype)
        if code is None:  # NumPy learns bfloat16 from ml_dtypes, which need not be there
            if dtype.name != "bfloat16" or not dtype.isnative:
                known = "float32, float16 or bfloat16 of this machine"
                raise ValueError(f"{name}: dtype {dtype.str} ({dtype}) is not {known}")
            code = cls.codes[dtype] = DTYPE_BF16
        return code

    @staticmethod
    def geometry(name: str, x: np.ndarray[Any, Any]) -> Geometry:
        return x.dtype, x.shape, x.strides

    @classmethod
    def read(cls, name: str, geometry: Geometry, axes: Axes) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
        """DTYPE_..., shape and strides in elements, in the library's order."""
        dtype, shape, strides = geometry
        code = cls.code(name, dtype)
        for step in strides:
            if step % dtype.itemsize:
                text = f"a stride of {step} bytes is no multiple of its {dtype.itemsize}-byte elements"
                raise ValueError(f"{name}: {text}")
        steps = tuple(step // dtype.itemsize for step in strides)
        return code, arrange(name, shape, axes, 1), arrange(name, steps, axes, 0)

    @classmethod
    def view(cls, name: str, x: np.ndarray[Any, Any], axes: Axes) -> View:
        return cls.address(x), *cls.read(name, cls.geometry(name, x), axes)

    @staticmethod
    def writable(name: str, x: np.ndarray[Any, Any]) -> None:
        if not x.flags.writeable:
            raise ValueError(f"{name}: is read-only")

    @staticmethod
    def dtype(code: int) -> np.dtype[Any]:
        return numpy_bfloat16() if code == DTYPE_BF16 else np.dtype(NAMES[code])

    @staticmethod
    def new(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        return np.empty(shape, dtype)

    @staticmethod
    def floats(shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        return np.empty(shape, np.float32)

    @staticmethod
    def bytes(shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        return np.empty(shape, np.uint8)

    @classmethod
    def small(cls, name: str, x: Any, shape: tuple[int, ...]) -> tuple[Any, int]:
        """A number a head or channel as contiguous float32, converted if it is not: what keeps it, its address."""
        arrays, x = arrays_of(name, x)
        if arrays.device != DEVICE_CPU:
            raise ValueError(f"{name}: is a {arrays.kind}, but the call is on the CPU")
        arrays.code(name, x.dtype)
        arrays.geometry(name, x)
        if tuple(x.shape) != shape:
            raise ValueError(f"{name}: shape {tuple(x.shape)} is not {shape}")
        x = np.ascontiguousarray(arrays.to_numpy(x), np.float32)
        return x, x.ctypes.data

    @staticmethod
    def work(n_bytes: int) -> tuple[Any, int]:
        """Workspace: what keeps it, its address."""
        return None, workspace.reserve(n_bytes)

    @staticmethod
    def done() -> None:
        workspace.release()

    @staticmethod
    def stream() -> int:
        return 0

    @staticmethod
    def address(x: np.ndarray[Any, Any]) -> int:
        # Contiguous, writable, of a type that buffers know: less than half the time.
        if x.flags.carray and x.dtype.isbuiltin == 1:
            return C.addressof(NO_BYTES.from_buffer(x))
        return x.ctypes.data

    @staticmethod
    def contiguous(x: np.ndarray[Any, Any]) -> bool:
        return x.flags.c_contiguous

    @staticmethod
    def to_numpy(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return x


class Workspace(threading.local):
    """Aligned memory for one call at a time of one thread."""

    def __init__(self) -> None:
        self.bytes = self.address = 0
        self.memory: np.ndarray[Any, Any] | None = None

    def reserve(self, n_bytes: int) -> int:
        if n_bytes > self.bytes:
            self.memory = None
            memory = np.empty(n_bytes + WORK_ALIGNMENT, np.uint8)
            self.memory, start = memory, memory.ctypes.data
            self.address, self.bytes = start + -start % WORK_ALIGNMENT, n_bytes
        return self.address

    def release(self) -> None:
        if self.bytes > WORK_KEPT:
            self.bytes = self.address = 0
            self.memory = None


workspace = Workspace()
# The class that handles arrays of a type; types of torch come as they are met.
KINDS: dict[type, Any] = {np.ndarray: NumpyArrays}


def find_kind(x: Any) -> Any:
    torch = sys.modules.get("torch")  # a tensor cannot come from where torch was not imported
    if torch is not None and isinstance(x, torch.Tensor):
        from ._torch_arrays import HostTensors

        return HostTensors
    return NumpyArrays if isinstance(x, np.ndarray) else None


def arrays_of(name: str, x: Any) -> tuple[Any, Any]:
    """What handles x, and x; what only speaks DLPack is seen as a NumPy array, without a copy."""
    kind = KINDS.get(type(x))
    if kind is None:
        kind = find_kind(x)
        if kind is not None:
            KINDS[type(x)] = kind
        elif hasattr(x, "__dlpack__"):
            return NumpyArrays, from_dlpack(name, x)
        else:
            raise ValueError(f"{name}: {type(x).__name__} is neither a NumPy array nor a torch tensor")
    return kind.of(name, x), x


def from_dlpack(name: str, x: Any) -> np.ndarray[Any, Any]:
    try:
        return np.from_dlpack(x)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        text = f"{name}: {type(x).__name__} cannot be seen as a NumPy array: {error}"
        raise ValueError(text) from error


def same_kind(arrays: Any, name: str, x: Any, first: str = "q") -> Any:
    """x, which must be of the same kind, and on the same device, as the call's first array."""
    others, x = arrays_of(name, x)
    if others is not arrays:
        raise ValueError(f"{name}: is a {others.kind}, but {first} is a {arrays.kind}")
    return x


def tensors_of(*views: View) -> Any:
    """Views as an array of Tensor."""
    tensors = (Tensor * len(views))()
    for i, (address, dtype, shape, strides) in enumerate(views):
        TENSOR.pack_into(tensors, i * TENSOR.size, address, dtype, *shape, *strides)
    return tensors


def choice(name: str, value: Any, choices: dict[Any, Any]) -> Any:
    try:
        return choices[value]
    except (KeyError, TypeError):
        known = ", ".join(repr(c) for c in choices)
        raise ValueError(f"{name}: {value!r} is not one of {known}") from None
