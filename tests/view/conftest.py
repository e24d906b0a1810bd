"""The S3 servers of the stores' tests."""

from tests.state.conftest import credentials, moto, rclone

__all__ = ["credentials", "moto", "rclone"]
