"""The random state of a process as tensors of bytes: torch on the CPU and on this rank's CUDA device, NumPy, Python.

Of the global generators only. Fixed little-endian layouts; nothing is ever unpickled.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from elastic_core.errors import CorruptCheckpoint, UserError

_WORDS = 624  # of the Mersenne Twister, which both NumPy's legacy generator and Python's are
_NUMPY = struct.Struct(f"<{_WORDS}Iqqd")  # key, position, whether a Gaussian is cached, that Gaussian
_PYTHON = struct.Struct(f"<{_WORDS + 1}I?d")  # key and position, whether a Gaussian is cached, that Gaussian
_KINDS = ("torch", "cuda", "numpy", "python")


def capture_rng(rank: int) -> dict[str, Tensor]:
    """uint8 tensors named `rng/<kind>/<rank>` for the kinds torch, numpy, python, and cuda.

    CUDA's only where this process uses CUDA: looking must not create a context.
    """
    numpy_state: Any = np.random.get_state(legacy=True)
    name, key, position, has_gauss, gauss = numpy_state
    if name != "MT19937":
        raise UserError(f"NumPy's global generator is {name}; a checkpoint holds the default one, MT19937.")
    _, words, next_gauss = random.getstate()
    states = {
        f"rng/torch/{rank}": torch.get_rng_state(),
        f"rng/numpy/{rank}": _tensor(_NUMPY.pack(*key.tolist(), position, has_gauss, gauss)),
        f"rng/python/{rank}": _tensor(_PYTHON.pack(*words, next_gauss is not None, next_gauss or 0.0)),
    }
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states[f"rng/cuda/{rank}"] = torch.cuda.get_rng_state()
    return states


def restore_rng(tensors: Mapping[str, Tensor], rank: int) -> frozenset[str]:
    """Restore what `capture_rng` of this rank kept; the kinds restored, empty for a rank that has no state there.

    CUDA's is left out where there is no CUDA. Raises `CorruptCheckpoint` for a state of another size, before any
    generator is touched.
    """
    states = {kind: tensors[f"rng/{kind}/{rank}"].cpu() for kind in _KINDS if f"rng/{kind}/{rank}" in tensors}
    if not torch.cuda.is_available():
        states.pop("cuda", None)
    sizes = {"torch": torch.get_rng_state().numel(), "numpy": _NUMPY.size, "python": _PYTHON.size}
    for kind, state in states.items():
        if state.numel() != sizes.get(kind, state.numel()):
            raise CorruptCheckpoint(f"The random state rng/{kind}/{rank} has {state.numel()} bytes, not {sizes[kind]}.")
    for kind, state in states.items():
        _RESTORE[kind](state)
    return frozenset(states)


def _tensor(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _restore_numpy(state: Tensor) -> None:
    *key, position, has_gauss, gauss = _NUMPY.unpack(state.numpy().tobytes())
    np.random.set_state(("MT19937", np.array(key, dtype=np.uint32), position, has_gauss, gauss))


def _restore_python(state: Tensor) -> None:
    *words, has_gauss, gauss = _PYTHON.unpack(state.numpy().tobytes())
    random.setstate((3, tuple(words), gauss if has_gauss else None))


_RESTORE = {
    "torch": torch.set_rng_state,
    "cuda": torch.cuda.set_rng_state,
    "numpy": _restore_numpy,
    "python": _restore_python,
}
