"""`elastic://` for MLflow: listing and downloading what the virtual file system shows, as artifacts.

MLflow finds this by the entry point `mlflow.artifact_repository`. Read-only: an experiment cannot have its artifacts
there, since MLflow would write them.
"""

from __future__ import annotations

import shutil
from typing import Any, NoReturn

from mlflow.entities import FileInfo
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import INVALID_PARAMETER_VALUE
from mlflow.store.artifact.artifact_repo import ArtifactRepository

from elastic_core.view.filesystem import ElasticFileSystem


class ElasticArtifactRepository(ArtifactRepository):
    """Artifacts below one path of `elastic://`, in the configured store."""

    def __init__(self, artifact_uri: str, tracking_uri: str | None = None, registry_uri: str | None = None) -> None:
        super().__init__(artifact_uri, tracking_uri, registry_uri)
        self._files = ElasticFileSystem()
        self._root = ElasticFileSystem._strip_protocol(artifact_uri)

    def list_artifacts(self, path: str | None = None) -> list[Any]:
        """What a folder holds; nothing for a file or for what is not there, as MLflow wants it."""
        full = self._full(path)
        if not self._files.isdir(full):
            return []
        prefix_length = len(self._root) + 1 if self._root else 0
        return [
            FileInfo(entry["name"][prefix_length:], entry["type"] == "directory", entry["size"])
            for entry in self._files.ls(full)
        ]

    def _download_file(self, remote_file_path: str, local_path: str) -> None:
        with self._files.open(self._full(remote_file_path), "rb") as source, open(local_path, "wb") as target:
            shutil.copyfileobj(source, target, 1 << 20)

    def log_artifact(self, local_file: str, artifact_path: str | None = None) -> NoReturn:  # noqa: ARG002 - MLflow names it
        self._refuse(local_file)

    def log_artifacts(self, local_dir: str, artifact_path: str | None = None) -> NoReturn:  # noqa: ARG002 - MLflow names it
        self._refuse(local_dir)

    def delete_artifacts(self, artifact_path: str | None = None) -> NoReturn:
        self._refuse(artifact_path)

    def _full(self, path: str | None) -> str:
        return "/".join(filter(None, (self._root, path)))

    def _refuse(self, what: str | None) -> NoReturn:
        raise MlflowException(
            f"{self.artifact_uri} is read-only: {what} is not written or deleted there. Give the experiment an "
            f"artifact location that MLflow may write.",
            error_code=INVALID_PARAMETER_VALUE,
        )
