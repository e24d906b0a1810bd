"""The one folder that the server reads and writes artifacts in, whatever location a request or the database names.

MLflow opens every artifact through its registry of repositories, by the scheme of a location. Here the registry holds
one entry, for local paths, and that refuses what is not below the folder or goes through a symbolic link. So a location
that came into the database before, or on a way that nobody thought of, opens nothing. All refusals are answers 400.
"""

# mypy: allow-untyped-calls
# MLflow's classes, which these extend, are typed in part only.

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from mlflow.entities import FileInfo
from mlflow.exceptions import MlflowException
from mlflow.store.artifact.artifact_repository_registry import get_registered_artifact_repositories
from mlflow.store.artifact.local_artifact_repo import LocalArtifactRepository
from mlflow.utils.file_utils import local_file_uri_to_path
from mlflow.utils.uri import get_uri_scheme


def open_only(root: Path) -> None:
    """From now on this process opens no artifacts but those below `root`, an absolute path without links."""

    def open_repository(artifact_uri: str, **_: Any) -> ConfinedArtifacts:
        return ConfinedArtifacts(artifact_uri, root)

    repositories: dict[str, Any] = get_registered_artifact_repositories()
    for scheme in list(repositories):
        repositories[scheme] = _refuse
    repositories[""] = repositories["file"] = open_repository


def _refuse(artifact_uri: str, **_: Any) -> None:
    raise MlflowException.invalid_parameter_value(
        f"This server does not open {artifact_uri!r}: it keeps artifacts in a folder of its own, and its locations "
        f"begin with 'mlflow-artifacts:/', not with '{get_uri_scheme(artifact_uri)}:'."
    )


class ConfinedArtifacts(LocalArtifactRepository):
    """MLflow's repository of a local folder that is `root` or below it; no path in it may leave it or pass a link.

    Who could put a link there between check and use is the services' own Unix user, who needs no link.
    """

    def __init__(self, artifact_uri: str, root: Path) -> None:
        folder = Path(os.path.normpath(local_file_uri_to_path(artifact_uri)))
        if not folder.is_relative_to(root):
            raise MlflowException.invalid_parameter_value(
                f"This server does not open {artifact_uri!r}: that is not in its folder of artifacts."
            )
        super().__init__(str(folder))
        self._root = root
        self._check(None)

    def _check(self, artifact_path: str | None) -> None:
        """Raises `MlflowException` (400) for a path that leaves the folder, or passes a link below the root."""
        folder = Path(self.artifact_dir)
        full = Path(os.path.normpath(folder / artifact_path)) if artifact_path else folder
        if not full.is_relative_to(folder):
            raise MlflowException.invalid_parameter_value(f"{artifact_path!r} leads out of the artifacts.")
        passed = self._root
        for part in full.relative_to(self._root).parts:
            passed = passed / part
            if passed.is_symlink():
                raise MlflowException.invalid_parameter_value(
                    f"{passed.relative_to(self._root)} is a symbolic link: this server follows none in its artifacts."
                )

    def get_local_path(self, artifact_path: str) -> str:
        self._check(artifact_path)
        return str(super().get_local_path(artifact_path))

    def _get_or_create_artifact_dir(self, artifact_path: str | None = None) -> str:
        self._check(artifact_path)
        return str(super()._get_or_create_artifact_dir(artifact_path))

    def log_artifacts(self, local_dir: str, artifact_path: str | None = None) -> None:
        """One by one: copying a tree would write through links that are there already."""
        for folder, _, files in os.walk(local_dir):
            inner = os.path.relpath(folder, local_dir)
            target = os.path.normpath(os.path.join(artifact_path or "", inner))
            for name in files:
                self.log_artifact(os.path.join(folder, name), None if target == "." else target)

    def _is_directory(self, artifact_path: str | None) -> bool:
        self._check(artifact_path)
        return bool(super()._is_directory(artifact_path))

    def list_artifacts(self, path: str | None = None) -> list[FileInfo]:
        """Links are not among them, not even by the size of what they lead to."""
        self._check(path)
        folder = Path(self.artifact_dir)
        return [info for info in super().list_artifacts(path) if not (folder / info.path).is_symlink()]

    def _download_file(self, remote_file_path: str, local_path: str) -> None:
        self._check(remote_file_path)
        super()._download_file(remote_file_path, local_path)

    def delete_artifacts(self, artifact_path: str | None = None) -> None:
        self._check(artifact_path)
        super().delete_artifacts(artifact_path)

    def download_trace_data(self) -> dict[str, Any]:
        from mlflow.tracing.utils.artifact_utils import TRACE_DATA_FILE_NAME

        self._check(TRACE_DATA_FILE_NAME)
        data: dict[str, Any] = super().download_trace_data()
        return data
