"""What a worker's environment may hold: an allow-list, so that nothing secret reaches a user's code by default.

Airflow's, the ledger's and MLflow's addresses with passwords stay out, and so do the store's credentials. What jobs
need besides, such as credentials of their data, stands in a file of its own (`ELASTIC_JOB_ENV`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from elastic_core.errors import UserError
from elastic_core.settings import Settings

_NAMES = frozenset(
    {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "PYTHONPATH", "VIRTUAL_ENV"}
    | {"LD_LIBRARY_PATH", "SSL_CERT_FILE", "SSL_CERT_DIR"}
)
_PREFIXES = ("THP_", "LC_", "OMP_", "MKL_", "OPENBLAS_", "CUDA_", "NVIDIA_", "NCCL_", "GLOO_", "TORCH_")
ALLOCATION = {"THP_MEM_ALLOC_ENABLE": "1"}
"""torch asks the kernel for huge pages for what takes 2 MiB or more: a state that is loaded is new memory, whose first
touch costs a fifth of what it does in pages of 4 KiB (0.11 instead of 0.59 CPU seconds a GiB)."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRET_SETTINGS = frozenset(
    {
        "ledger_url",
        "airflow_db_url",
        "mlflow_db_url",
        "celery_broker_url",
        "mlflow_uri",
        "ray_address",
        "ray_token_file",
    }
)


def allowed(environ: Mapping[str, str]) -> dict[str, str]:
    """The part of `environ` that the platform's own processes may pass on."""
    harmless = {f"ELASTIC_{name.upper()}" for name in Settings.model_fields if name not in _SECRET_SETTINGS}
    names = _NAMES | harmless
    return {name: value for name, value in environ.items() if name in names or name.startswith(_PREFIXES)}


def job_environment(environ: Mapping[str, str], settings: Settings) -> dict[str, str]:
    """The environment of whatever runs users' code: what is allowed of `environ`, and the file of `ELASTIC_JOB_ENV`.

    Either may set what is in `ALLOCATION` otherwise. Raises `UserError` for a file that cannot be read, or that is not
    made of NAME=value lines.
    """
    return {**ALLOCATION, **allowed(environ), **(job_variables(settings.job_env) if settings.job_env else {})}


def job_variables(path: Path) -> dict[str, str]:
    """As `job_environment`: the variables of one file. Blank lines and those that begin with '#' say nothing."""
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"ELASTIC_JOB_ENV={path} cannot be read: {error}. Give a file of NAME=value lines.") from error
    variables = {}
    for number, line in enumerate(lines, start=1):
        name, separator, value = line.partition("=")
        if not line.strip() or line.startswith("#"):
            continue
        if not separator or not _NAME.fullmatch(name) or name.startswith("ELASTIC_"):  # the value may be a secret
            raise UserError(
                f"Line {number} of ELASTIC_JOB_ENV={path} is no variable for jobs: a line is NAME=value, without "
                "'export' and spaces around '=', and ELASTIC_... is the platform's own."
            )
        variables[name] = value
    return variables


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
