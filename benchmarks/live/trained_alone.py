"""What the live benchmark's models do when each trains alone: losses to stop at, and gradient noise.

    .venv/bin/python -m benchmarks.live.trained_alone

writes `trained_alone.json`, which the workloads are made of: of every job where the mean loss of the last 20 steps
stood after the row's work at the requested batch (seed 0), also as `target_loss` of those that are to stop there, and
its noise scale in samples over that run. Minutes of one core; the file is part of the project, so that the workload is
the same anywhere.
"""

from __future__ import annotations

import json
import sys
from collections import deque
from statistics import fmean

import torch
from torch import Tensor, nn

from benchmarks.live.live_workload import ALONE, QUICK_SHORTER, SHORTER, LiveJob, rows, unknown_ends
from elastic_core.state.order.sample_order import batch_indices
from elastic_core.train.gradients.gradients import sqr_sum
from elastic_core.train.gradients.noise import Part, estimate
from elastic_core.train.steps.segment_progress import TARGET_STEPS
from examples.paced import NextByte, windows

PARTS = 4  # of a batch, whose gradients the noise is estimated from
DIGITS = 3


def train_alone(job: LiveJob) -> tuple[float, float]:
    """(mean loss of the last steps, noise scale in samples)."""
    torch.manual_seed(0)
    params = job.params()
    model, data = NextByte(params.width), windows(params.samples, held_out=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=params.learning_rate)
    losses: deque[float] = deque(maxlen=TARGET_STEPS)
    sqr = var = 0.0
    for start in range(0, job.samples, job.requested_batch):
        indices = torch.from_numpy(batch_indices(0, params.samples, start, job.requested_batch))
        inputs, targets = (tensor[indices] for tensor in data.tensors)
        loss, parts = _backward(model, inputs, targets)
        noise = estimate(parts, _sqr_norm(model))
        if noise is not None:
            sqr, var = sqr + noise.sqr, var + noise.var
        optimizer.step()
        losses.append(loss)
    return fmean(losses), max(var, 0.0) / max(sqr, 1e-12)


def _backward(model: nn.Module, inputs: Tensor, targets: Tensor) -> tuple[float, list[Part]]:
    """The mean gradient of the batch, made of that of its parts, which are alike in size."""
    total, parts = 0.0, []
    grads = [torch.zeros_like(parameter) for parameter in model.parameters()]
    for x, y in zip(inputs.chunk(PARTS), targets.chunk(PARTS), strict=True):
        model.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(model(x), y)
        torch.autograd.backward(loss)
        weight = len(x) / len(inputs)
        total += loss.item() * weight
        parts.append(Part(len(x), _sqr_norm(model)))
        for grad, part in zip(grads, _gradients(model), strict=True):
            grad.add_(part, alpha=weight)
    for grad, parameter in zip(grads, model.parameters(), strict=True):
        parameter.grad = grad
    return total, parts


def _sqr_norm(model: nn.Module) -> float:
    return sqr_sum(torch._foreach_norm(_gradients(model)))


def _gradients(model: nn.Module) -> list[Tensor]:
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


def main() -> int:
    torch.set_num_threads(1)
    found: dict[str, dict[str, dict[str, float]]] = {}
    for count, shorter in ((24, SHORTER), (6, QUICK_SHORTER)):
        jobs = rows(count, shorter, {})
        unknown = {job.name for job in unknown_ends(jobs)}
        of_rows = found.setdefault(f"{shorter:g}", {})
        for job in jobs:
            loss, noise = train_alone(job)
            of_rows[job.name] = {"noise_scale": round(noise, 1), "loss": round(loss, DIGITS)}
            if job.name in unknown:
                of_rows[job.name]["target_loss"] = round(loss, DIGITS)
            print(f"{shorter:g} {job.name}: loss {loss:.3f} after {job.samples} samples, noise scale {noise:.0f}")
    ALONE.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
