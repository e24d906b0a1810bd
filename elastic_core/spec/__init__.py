"""What a user may write: the job spec and the cluster spec, and what is said of a wrong one.
May import domain, text and errors only; everyone may import it."""

from elastic_core.spec.cluster import ClusterSpec, NodeSpec, PresentCluster, QueueSpec, parse_cluster_spec
from elastic_core.spec.job import JobSpec, parse_job_spec, total_samples
from elastic_core.spec.pool_check import check_against

__all__ = [
    "ClusterSpec",
    "JobSpec",
    "NodeSpec",
    "PresentCluster",
    "QueueSpec",
    "check_against",
    "parse_cluster_spec",
    "parse_job_spec",
    "total_samples",
]
