"""The element types that a checkpoint holds: torch's dtype, torch's name (in manifests), safetensors' name (in shards).

A type that safetensors has no name for is refused when it is written (`UserError`) and when a manifest names it
(`CorruptCheckpoint`).
"""

from __future__ import annotations

import torch

from elastic_core.errors import CorruptCheckpoint, UserError

_SAFETENSORS = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e4m3fnuz: "F8_E4M3FNUZ",
    torch.float8_e5m2: "F8_E5M2",
    torch.float8_e5m2fnuz: "F8_E5M2FNUZ",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
    torch.complex64: "C64",
}
_BY_NAME = {str(dtype).removeprefix("torch."): dtype for dtype in _SAFETENSORS}


def name_of(dtype: torch.dtype, tensor: str) -> str:
    """torch's name without "torch."; raises `UserError` for a type that a checkpoint cannot hold."""
    name = str(dtype).removeprefix("torch.")
    if name not in _BY_NAME:
        raise UserError(
            f"Tensor {tensor} is of {name}, which a checkpoint cannot hold. It holds {', '.join(_BY_NAME)}."
        )
    return name


def dtype_of(name: str) -> torch.dtype:
    if name not in _BY_NAME:
        raise CorruptCheckpoint(f"No element type {name!r} is known; known are {', '.join(_BY_NAME)}.")
    return _BY_NAME[name]


def safetensors_name(name: str) -> str:
    return _SAFETENSORS[dtype_of(name)]


def itemsize(name: str) -> int:
    """Bytes of one element."""
    return dtype_of(name).itemsize
