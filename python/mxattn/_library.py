# SPDX-License-Identifier: Apache-2.0
"""The C library: where it is, whether it is the package's, and its errors as exceptions."""

from __future__ import annotations

import ctypes as C
import os
from pathlib import Path
from typing import Any

from ._structures import ERR_DEVICE, ERR_FILE, ERR_MEMORY, FormatInfo
from ._version import __version__

# What the caller cannot mend by other arguments.
RUNTIME_ERRORS = frozenset({ERR_MEMORY, ERR_DEVICE, ERR_FILE})
RESULTS = {
    "mxa_version": C.c_char_p,
    "mxa_error_text": C.c_char_p,
    "mxa_format_get": C.POINTER(FormatInfo),
    "mxa_format_find": C.POINTER(FormatInfo),
    "mxa_recipe_text": C.c_size_t,
    "mxa_recipe_name": C.c_char_p,
    "mxa_plan_work_bytes": C.c_size_t,
    "mxa_plan_describe": C.c_size_t,
    "mxa_cache_work_bytes": C.c_size_t,
    "mxa_cache_used_bytes": C.c_int64,
}


def load(path: Path) -> C.CDLL:
    """Load a library of the package's version. ImportError says what is missing."""
    try:
        library = C.CDLL(str(path))
        for name, result in RESULTS.items():
            getattr(library, name).restype = result
    except (OSError, AttributeError) as error:
        raise ImportError(f"mxattn: {path} cannot be loaded ({error}); reinstall the package") from error
    version = library.mxa_version().decode()
    if version != __version__:
        raise ImportError(
            f"mxattn: the package is {__version__}, its library {path} is {version}; reinstall the package"
        )
    return library


# The library lies in the package's folder; tests name the one of a build.
lib = load(Path(os.environ.get("MXATTN_LIB") or Path(__file__).with_name("libmxattn.so")))


def check(status: int) -> None:
    """Raise the library's sentence for a status that is not MXA_OK."""
    if status:
        text = lib.mxa_error_text().decode(errors="replace")
        raise (RuntimeError if status in RUNTIME_ERRORS else ValueError)(text)


def text_of(function: Any, *args: Any) -> str:
    """What a function writes that returns a length as snprintf does."""
    size = function(*args, None, C.c_size_t(0))
    text = C.create_string_buffer(size + 1)
    function(*args, text, C.c_size_t(size + 1))
    return text.value.decode()
