from __future__ import annotations

from tests.launch.conftest import home

__all__ = ["home"]
