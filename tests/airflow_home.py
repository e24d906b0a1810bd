"""For tests that import the plugin: Airflow writes its configuration into its home at the first import, which is to be
none of anybody's, and gone afterwards."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile


def _remove(home: str, owner: int) -> None:
    if os.getpid() == owner:  # not a fork of it
        shutil.rmtree(home, ignore_errors=True)


if "airflow" not in sys.modules:
    os.environ["AIRFLOW_HOME"] = tempfile.mkdtemp(prefix="elastic-airflow-")
    os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
    atexit.register(_remove, os.environ["AIRFLOW_HOME"], os.getpid())
