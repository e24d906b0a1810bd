"""For tests outside of `tests/airflow` that import the plugin: Airflow writes its configuration into its home at the
first import, which is to be none of anybody's."""

from __future__ import annotations

import os
import sys
import tempfile

if "airflow" not in sys.modules:
    os.environ["AIRFLOW_HOME"] = tempfile.mkdtemp(prefix="elastic-airflow-")
    os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
