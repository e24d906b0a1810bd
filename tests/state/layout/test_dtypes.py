from __future__ import annotations

import pytest
import torch

from elastic_core.errors import CorruptCheckpoint, UserError
from elastic_core.state.layout import dtypes


@pytest.mark.parametrize("name", dtypes.names())
def test_the_table_says_of_each_type_what_torch_does(name: str) -> None:
    dtype = dtypes.dtype_of(name)
    assert (dtypes.name_of(dtype, "w"), dtypes.itemsize(name)) == (name, dtype.itemsize)


def test_a_type_that_safetensors_cannot_hold_is_refused_by_name() -> None:
    with pytest.raises(UserError, match="Tensor w is of complex128, which a checkpoint cannot hold"):
        dtypes.name_of(torch.complex128, "w")
    for asked in (dtypes.dtype_of, dtypes.itemsize, dtypes.safetensors_name):
        with pytest.raises(CorruptCheckpoint, match="No element type 'float7' is known; known are float64"):
            asked("float7")
