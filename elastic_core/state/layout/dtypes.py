"""The element types that a checkpoint holds: torch's dtype, torch's name (in manifests), safetensors' name (in shards).

A type that safetensors has no name for is refused when it is written (`UserError`) and when a manifest names it
(`CorruptCheckpoint`). torch is loaded for its own dtype only: who counts bytes, as control plane and command line do,
does without.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from elastic_core.errors import CorruptCheckpoint, UserError

if TYPE_CHECKING:
    import torch

# torch's name -> safetensors' name, bytes of one element
_TYPES = {
    "float64": ("F64", 8),
    "float32": ("F32", 4),
    "float16": ("F16", 2),
    "bfloat16": ("BF16", 2),
    "float8_e4m3fn": ("F8_E4M3", 1),
    "float8_e4m3fnuz": ("F8_E4M3FNUZ", 1),
    "float8_e5m2": ("F8_E5M2", 1),
    "float8_e5m2fnuz": ("F8_E5M2FNUZ", 1),
    "int64": ("I64", 8),
    "int32": ("I32", 4),
    "int16": ("I16", 2),
    "int8": ("I8", 1),
    "uint64": ("U64", 8),
    "uint32": ("U32", 4),
    "uint16": ("U16", 2),
    "uint8": ("U8", 1),
    "bool": ("BOOL", 1),
    "complex64": ("C64", 8),
}


def names() -> tuple[str, ...]:
    """All that there are, by torch's name."""
    return tuple(_TYPES)


def name_of(dtype: torch.dtype, tensor: str) -> str:
    """torch's name without "torch."; raises `UserError` for a type that a checkpoint cannot hold."""
    name = str(dtype).removeprefix("torch.")
    if name not in _TYPES:
        raise UserError(f"Tensor {tensor} is of {name}, which a checkpoint cannot hold. It holds {', '.join(_TYPES)}.")
    return name


@cache
def dtype_of(name: str) -> torch.dtype:
    import torch

    _known(name)
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def safetensors_name(name: str) -> str:
    return _known(name)[0]


def itemsize(name: str) -> int:
    """Bytes of one element."""
    return _known(name)[1]


def _known(name: str) -> tuple[str, int]:
    if name not in _TYPES:
        raise CorruptCheckpoint(f"No element type {name!r} is known; known are {', '.join(_TYPES)}.")
    return _TYPES[name]
