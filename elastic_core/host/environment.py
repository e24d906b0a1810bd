"""What a worker's environment may hold: an allow-list, so that nothing secret reaches a user's code by default.

Airflow's, the ledger's and MLflow's addresses with passwords stay out; store credentials pass only when the
store is S3.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from elastic_core.settings import Settings

_NAMES = frozenset(
    {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "PYTHONPATH", "VIRTUAL_ENV"}
    | {"LD_LIBRARY_PATH", "SSL_CERT_FILE", "SSL_CERT_DIR"}
)
_PREFIXES = ("LC_", "OMP_", "MKL_", "OPENBLAS_", "CUDA_", "NVIDIA_", "NCCL_", "GLOO_", "TORCH_")
_SECRET_SETTINGS = frozenset({"ledger_url", "airflow_db_url", "mlflow_db_url", "mlflow_uri"})


def allowed(environ: Mapping[str, str], settings: Settings) -> dict[str, str]:
    """The part of `environ` that agent and workers inherit."""
    prefixes = (*_PREFIXES, "AWS_") if settings.store_url().startswith("s3://") else _PREFIXES
    harmless = {f"ELASTIC_{name.upper()}" for name in Settings.model_fields if name not in _SECRET_SETTINGS}
    names = _NAMES | harmless
    return {name: value for name, value in environ.items() if name in names or name.startswith(prefixes)}


def worker_settings(settings: Settings) -> dict[str, Any]:
    """Contents of settings.json: addresses resolved, paths absolute, nothing that may hold a password."""
    values = settings.model_dump(mode="json", exclude=set(_SECRET_SETTINGS))
    return values | {
        "home": str(settings.home.absolute()),
        "project": str(settings.project.absolute()),
        "cluster": str(settings.cluster.absolute()) if settings.cluster else None,
        "store": settings.store_url(),
        "control_url": settings.api_url(),
    }
