"""Every setting of the platform, in one place. Each is an environment variable `ELASTIC_<NAME>`.

Read once by whoever starts (CLI, operator, agent), passed on as a value; nothing reads settings at import.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

MOST_CODE_MB = 1024  # that any job's code may have


class Settings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="ELASTIC_", extra="ignore", frozen=True)

    home: Path = Field(default=Path(".elastic"), description="folder of all state: databases, logs, secrets, store")
    project: Path = Field(default=Path(), description="folder that holds dags/, examples/ and airflow.cfg.template")

    # addresses
    host: str = "127.0.0.1"
    airflow_port: int = 8080
    airflow_log_port: int = 8793
    triggerer_log_port: int = 8794
    mlflow_port: int = 5000

    # services apart from each other, as in containers (docs/guide/containers.md); absent: all are at `host`
    airflow_host: str = Field(default="", description="where Airflow's API server listens and the others reach it")
    mlflow_host: str = Field(default="", description="where the MLflow server listens and the others reach it")
    postgres_host: str = Field(
        default="",
        description="where the platform's PostgreSQL listens (port 5432) and is reached; absent: a Unix socket",
    )
    postgres_networks: str = Field(
        default="samenet",
        description="networks whose machines may log in to the platform's PostgreSQL at `postgres_host`: "
        "comma-separated blocks such as 10.0.0.0/8; samenet: those of its own interfaces",
    )
    postgres_data: Path | None = Field(
        default=None,
        description="folder of the platform's PostgreSQL, whose owner it must be: on a volume whose root is another "
        "user's, a folder below that; absent: <home>/postgres",
    )
    listen_host: str = Field(
        default="",
        description="address that the service of this container listens on, where the name that others reach it by is "
        "not its own, as that of a Service of Kubernetes; absent: that name",
    )
    redis_host: str = Field(default="", description="where the platform's Redis is (port 6379); absent: there is none")
    airflow_public_url: str = Field(default="", description="base URL of Airflow as browsers have it")
    mlflow_public_url: str = Field(default="", description="base URL of MLflow as browsers have it")

    # Airflow, as `airflow.cfg.template` fills it in
    airflow_users: str = Field(
        default="admin:admin",
        description="users of Airflow's simple login, as name:role,name:role; roles are viewer, user, op and admin",
    )
    executor: Literal["local", "celery"] = Field(
        default="local", description="who runs Airflow's tasks: worker processes of the scheduler, or a Celery worker"
    )
    celery_broker_url: str = Field(
        default="", description="Celery's broker, redis://...; empty for the Redis of `redis_host`"
    )
    airflow_parallelism: int = Field(default=8, ge=1, description="worker processes of the executor")
    scheduler_idle_seconds: float = Field(
        default=0.1, gt=0, description="the scheduler's sleep between two loops that found nothing to do"
    )

    # services elsewhere: set one and the embedded one is not started
    ledger_url: str = Field(
        default="", description="SQLAlchemy URL of the ledger's PostgreSQL; empty for the embedded one"
    )
    airflow_db_url: str = Field(
        default="", description="SQLAlchemy URL of Airflow's database; empty for the embedded one"
    )
    log_format: Literal["console", "json"] = Field(
        default="console", description="how the platform's own processes log: lines for people, or JSON objects"
    )
    mlflow_uri: str = Field(
        default="", description="MLflow tracking server; empty for the embedded one, 'none' for no tracking"
    )
    mlflow_db_url: str = Field(
        default="", description="database of the embedded MLflow server; empty for the embedded PostgreSQL"
    )
    mlflow_certificate: Path | None = Field(
        default=None,
        description="TLS certificate of the embedded MLflow server (PEM); absent: plain HTTP, loopback only",
    )
    mlflow_key: Path | None = Field(default=None, description="private key of that certificate (PEM)")
    mlflow_ca: Path | None = Field(
        default=None, description="certificates that MLflow's own is checked against (PEM); absent: the system's"
    )
    otlp_traces: str = Field(
        default="",
        description="URL at which an OpenTelemetry collector takes traces (http://.../v1/traces), to be told of jobs' "
        "lives; empty: nobody is",
    )
    notifiers: str = Field(
        default="",
        description="comma-separated notifiers of Airflow, module:object each, which are told of jobs' ends and of "
        "deadlines and budgets at risk; an object is an instance, or gives one when called without arguments",
    )
    control_url: str = Field(default="", description="base URL of the control API; empty for Airflow's API server here")

    # the checkpoint store: a folder or s3://bucket/prefix
    store: str = Field(default="", description="file path or s3://bucket/prefix; empty for <home>/store")
    s3_endpoint: str = ""
    job_env: Path | None = Field(
        default=None,
        description="file of NAME=value lines for the environment of jobs, e.g. credentials of their data; absent: "
        "none. The store's own credentials never reach jobs",
    )

    worker_user: str = Field(
        default="",
        description="unprivileged Unix user, made for this alone, as which users' code runs when root starts the "
        "services; absent: the services' own user",
    )

    # who may do what
    groups: Path | None = Field(
        default=None,
        description='groups of users (JSON: {"vision": ["ann", "bob"]}) for queues\' owners and members, beside the '
        "roles and groups of Airflow's login; absent: those alone",
    )
    admin_groups: str = Field(
        default="admin,Admin",
        description="comma-separated roles or groups whose users may do everything on every queue",
    )

    # where training processes run
    launcher: Literal["local", "ray"] = Field(
        default="local", description="who starts training processes: 'local' on this machine, 'ray' on a Ray cluster"
    )
    ray_address: str = Field(
        default="", description="base URL of Ray's dashboard on its head node, e.g. http://10.0.0.1:8265; for 'ray'"
    )
    ray_token_file: Path | None = Field(
        default=None,
        description="file with the Ray cluster's token (RAY_AUTH_MODE=token), which lets its holder run code on every "
        "node; for 'ray'",
    )
    ray_ca: Path | None = Field(
        default=None,
        description="certificates that a TLS proxy in front of Ray's dashboard is checked against (PEM); absent: the "
        "system's",
    )
    ray_namespace: str = Field(
        default="elastic",
        pattern=r"^[a-z0-9][a-z0-9-]{0,31}$",
        description="Ray namespace of this installation, and how its jobs' names begin; others of the same Ray cluster "
        "need another one",
    )
    ray_node_home: Path | None = Field(
        default=None,
        description="folder, the same path on every Ray node, of what each node keeps; absent: <home>/nodes",
    )

    # scheduling
    cluster: Path | None = Field(
        default=None,
        description="cluster spec (JSON, or YAML by its name); absent: this machine's CUDA devices, else CPU slots",
    )
    tasks: str = Field(
        default="examples.*",
        description="comma-separated module patterns that a job's entry point may name",
    )
    policy: str = Field(default="horizon", description="who decides; `elastic simulate --list` names all policies")
    decide_seconds: float = Field(
        default=60.0, gt=0, description="how long a policy, asked in a process of its own, may take to decide"
    )
    decide_memory_mb: int = Field(
        default=4096, ge=256, description="MiB of data that the process of the policies may have"
    )
    predictors: Path | None = Field(
        default=None,
        description="folder of what was learnt from the ledger, written by elastic_predictors and read by the control "
        "plane; absent: <home>/predictors",
    )
    use_predictors: bool = Field(
        default=True,
        description="whether decisions use what was learnt from earlier jobs: experience of resource types, who can be "
        "predicted, forecasts of unknown work; false: priors only, to see what learning is worth",
    )
    lease_seconds: float = Field(default=90.0, gt=0, description="life of a lease without a heartbeat")
    heartbeat_seconds: float = 2.0
    heartbeats_per_second: float = Field(
        default=50.0,
        gt=0,
        description="heartbeats that all jobs together send in a second, at most: with more jobs each sends them, and "
        "reports what it measured, at longer intervals, up to a quarter of lease_seconds",
    )
    grace_seconds: float = 60.0
    hang_seconds: float = Field(
        default=1800.0,
        ge=0,
        description="a training loop that made its first step and then none for so long hangs: its process writes to "
        "its log where it stands, and ends, and the job goes on from its last commit; more than what a task does "
        "between two steps may take (evaluation, a checkpoint); 0: that may take for ever",
    )
    code_mb: int = Field(
        default=32,
        ge=0,
        le=MOST_CODE_MB,
        description="MiB that the code of a job (the package of its entry point, and what that imports from beside it) "
        "may have to be kept in the store with its first segment, so that every later one runs the same; 0 to run "
        "it as each node has it",
    )
    node_memory_mb: int = Field(
        default=1024,
        ge=0,
        description="MiB of each node's memory that may hold jobs' latest checkpoints, which are then read from there "
        "instead of the store; 0 for none",
    )
    max_attempts: int = Field(default=5, description="attempts of one segment without any commit before the job fails")

    # what is kept of the past: `control.transitions.retention`
    keep_days: float = Field(
        default=30.0,
        gt=0,
        description="days for which decisions with their inputs, events of the outbox, all reports of jobs that are "
        "over, logs of ended process groups and of Airflow's tasks are kept",
    )
    log_mb: int = Field(
        default=64,
        ge=1,
        description="MiB that what one worker prints may take on disk; its oldest lines are let go then",
    )
    keep_decisions: int = Field(
        default=20_000, ge=100, description="most decisions that are kept with their inputs, however young they are"
    )
    keep_audit_days: float = Field(default=365.0, gt=0, description="days for which it is on record who did what")
    keep_audit_records: int = Field(
        default=200_000, ge=100, description="most records of actions that are kept, and as many of refusals"
    )

    def store_url(self) -> str:
        return self.store or str(self.home.absolute() / "store")

    def predictability_file(self) -> Path:
        """The classifier of which jobs' progress can be predicted. Absent until enough jobs have finished."""
        return (self.predictors or self.home.absolute() / "predictors") / "predictability.skops"

    def forecasts_file(self) -> Path:
        """The forecasts of work and step times that were learnt. Absent until enough jobs have come to their end."""
        return self.predictability_file().with_name("forecasts.skops")

    def node_home(self) -> Path:
        """Above the folders of Ray nodes, each by its node's name."""
        return (self.ray_node_home or self.home / "nodes").absolute()

    def listens_on(self, name: str) -> str:
        """The address that a service binds which others reach by `name`, or at `host` where that is empty."""
        return self.listen_host or name or self.host

    def postgres_folder(self) -> Path:
        return (self.postgres_data or self.home / "postgres").absolute()

    def airflow_url(self) -> str:
        """Of Airflow's API server, as the other services reach it."""
        return f"http://{self.airflow_host or self.host}:{self.airflow_port}"

    def airflow_page(self) -> str:
        """The same, as browsers do."""
        return self.airflow_public_url.rstrip("/") or self.airflow_url()

    def api_url(self) -> str:
        return self.control_url or f"{self.airflow_url()}/elastic"

    def tracking_uri(self) -> str:
        scheme = "https" if self.mlflow_certificate else "http"
        return self.mlflow_uri or f"{scheme}://{self.mlflow_host or self.host}:{self.mlflow_port}"

    def mlflow_page(self) -> str:
        """The tracking server as browsers reach it."""
        return self.mlflow_public_url.rstrip("/") or self.tracking_uri()

    def longest_between_heartbeats(self) -> float:
        """Seconds between two heartbeats of a job, however many jobs there are."""
        return max(self.heartbeat_seconds, 0.25 * self.lease_seconds)

    def secret_file(self, name: str) -> Path:
        """Files of mode 0600 below <home>/secrets, made by `elastic up`: fernet, jwt, control, postgres, ..."""
        return self.home.absolute() / "secrets" / name
