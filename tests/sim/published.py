"""The folder of published traces, or a skip with the reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from elastic_core.errors import UserError
from elastic_core.sim.traces.published_traces import data_folder


def published() -> Path:
    try:
        return data_folder()
    except UserError as error:
        pytest.skip(str(error))
