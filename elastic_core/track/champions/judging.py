"""Which of two registered versions is the better model. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from elastic_core.errors import UserError
from elastic_core.track.champions.paired_test import PairedTest


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredVersion:
    """A version of a registered model, as the ledger has it. `metrics` are those given at registration (held-out data).

    Of a version that no job of the ledger has registered only name and number are known.
    """

    name: str
    version: str
    job_id: str = ""
    step: int = 0
    checkpoint_uri: str = ""
    manifest_sha256: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.version

    @property
    def uri(self) -> str:
        """For `mlflow.pyfunc.load_model`."""
        return f"models:/{self.name}/{self.version}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Whether the candidate is champion now, and why, in words."""

    promoted: bool
    reason: str
    against: str = ""  # the version that was champion then; empty where none was

    def __str__(self) -> str:
        return self.reason


def judge(
    candidate: str,
    metric: str,
    mode: str,
    candidate_metrics: Mapping[str, float],
    holder: RegisteredVersion | None,
    holder_metrics: Mapping[str, float] | None,
    margin: float = 0.0,
    test: PairedTest | None = None,
) -> Decision:
    """The decision alone. A value that is not a finite number is worse than any that is."""
    if mode not in ("min", "max"):
        raise UserError(f"mode is {mode!r}; it must be 'min' or 'max'.")
    if metric not in candidate_metrics:
        measured = ", ".join(sorted(candidate_metrics)) or "nothing"
        return Decision(
            promoted=False,
            reason=f"version {candidate} was not measured at {metric}, only at {measured}: not promoted. The task's "
            "evaluate must return its metric",
        )
    new = candidate_metrics[metric]
    if not math.isfinite(new):
        return Decision(promoted=False, reason=f"version {candidate} has {metric} {new}: not promoted")
    if holder is None:
        reason = f"version {candidate} ({metric} {new:.6g}) has no champion to beat: promoted"
        return Decision(promoted=True, reason=reason)
    known = holder.metrics if holder_metrics is None else holder_metrics
    if metric not in known:
        measured = ", ".join(sorted(known)) or "nothing"
        return Decision(
            promoted=False,
            reason=f"version {candidate} has {metric} {new:.6g}, and version {holder.version}, the champion, was not "
            f"measured at it, only at {measured}: the champion stays. Measure both at one metric, or promote by hand",
            against=holder.version,
        )
    old = known[metric]
    gain = old - new if mode == "min" else new - old
    better = not math.isfinite(old) or (gain > 0 and gain >= margin)
    words = "is better than" if better else "is not better than"
    if margin and math.isfinite(old):
        words = f"is {'' if better else 'not '}better by {margin:.6g} than"
    comparison = f"version {candidate} ({metric} {new:.6g}) {words} version {holder.version} ({metric} {old:.6g})"
    if better and test is not None:
        better = test.significant
        comparison += f", {'and by more than chance' if better else 'but maybe by chance'} ({test})"
    outcome = "promoted" if better else "the champion stays"
    return Decision(promoted=better, reason=f"{comparison}: {outcome}", against=holder.version)


def unmeasured(candidate: str, holder: RegisteredVersion, fault: str) -> Decision:
    """The decision where nobody can tell what the champion is on the candidate's data."""
    return Decision(
        promoted=False,
        reason=f"version {candidate} was not compared with version {holder.version}, the champion, which could not be "
        f"measured on the same data by its own job's code and parameters: {fault.rstrip('.')}. The champion stays; "
        f"`elastic models promote {holder.name} {candidate}` makes version {candidate} champion all the same",
        against=holder.version,
    )
