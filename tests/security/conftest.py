from __future__ import annotations

from tests.launch.conftest import executing_home

home = executing_home
