"""What a user may write: the job spec and the cluster spec."""

from elastic_core.spec.check import check_against
from elastic_core.spec.cluster import ClusterSpec, NodeSpec, QueueSpec, parse_cluster_spec
from elastic_core.spec.job import JobSpec, parse_job_spec, total_samples

__all__ = [
    "ClusterSpec",
    "JobSpec",
    "NodeSpec",
    "QueueSpec",
    "check_against",
    "parse_cluster_spec",
    "parse_job_spec",
    "total_samples",
]
