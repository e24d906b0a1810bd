"""A trained policy as a file: safetensors, whose metadata say what it was trained on. Loading it runs no code.

The package holds one, made by `elastic placement train` on the families of `problem_families`; `shipped` reads it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from elastic_core.errors import UserError
from elastic_core.placement.learnt.layer_policy import LayerPolicy

FORMAT = "elastic-placement-policy-1"  # changes with the features and the shapes of `LayerPolicy`
SHIPPED = Path(__file__).with_name("families.safetensors")


@dataclass(frozen=True, slots=True)
class Loaded:
    """`trained_on`: in words, as the training wrote it."""

    policy: LayerPolicy
    trained_on: str


def save(policy: LayerPolicy, path: Path, trained_on: str) -> None:
    """Raises `UserError` where it cannot be written."""
    tensors = {name: tensor.detach().contiguous() for name, tensor in policy.state_dict().items()}
    try:
        save_file(tensors, path, metadata={"format": FORMAT, "trained_on": trained_on})
    except (OSError, SafetensorError) as error:
        raise UserError(
            f"the policy cannot be written to {path}: {error}; give a file in a folder that is there"
        ) from error


def load(path: Path) -> Loaded:
    """Raises `UserError` for a file that cannot be read, is no safetensors, or is no policy of this version."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path} cannot be read as a policy: {error}; `elastic placement train` writes one") from error
    if metadata.get("format") != FORMAT:
        raise UserError(f"{path} is a file of the form {metadata.get('format')!r}; a placement policy has {FORMAT!r}: "
                        "make it anew with `elastic placement train`")  # fmt: skip
    policy = LayerPolicy()
    wanted = {name: tuple(tensor.shape) for name, tensor in policy.state_dict().items()}
    given = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    wrong = sorted(name for name in wanted.keys() | given.keys() if wanted.get(name) != given.get(name))
    if wrong:
        raise UserError(f"{path}: the tensor {wrong[0]!r} has the shape {given.get(wrong[0])}; this version has "
                        f"{wanted.get(wrong[0])}: make the file anew with `elastic placement train`")  # fmt: skip
    unsound = sorted(name for name, tensor in tensors.items() if not tensor.isfinite().all())
    if unsound:
        raise UserError(f"{path}: the tensor {unsound[0]!r} holds values that are not finite; make the file anew with "
                        "`elastic placement train`")  # fmt: skip
    policy.load_state_dict(tensors)
    return Loaded(policy.requires_grad_(False), metadata.get("trained_on", ""))


@lru_cache(maxsize=1)
def shipped() -> LayerPolicy:
    """The package's own, read once. Not to be trained further in place."""
    return load(SHIPPED).policy
