"""The greatest values of a tensor and where they are, with error feedback: a message between two stages.

What a message leaves out is added to the next tensor of the same form that goes the same way (Seide et al. 2014, and
with top-k Stich et al. 2018), so that over steps nothing is lost for good; the form is the tensor's number, shape and
type. A value that is not finite is among the greatest, so it arrives, and leaves no error behind.

    message    k places (int32), k values in the tensor's own type

The other end puts zeros where nothing was sent.
"""

from __future__ import annotations

import torch
from torch import Tensor

_PLACE_BYTES = 4

Form = tuple[int, torch.Size, torch.dtype]


def kept(values: int, item_bytes: int, ratio: float) -> int:
    """How many of so many values a message has that is at least `ratio` times smaller than they are; one at least."""
    return min(values, max(1, int(values * item_bytes / (ratio * (_PLACE_BYTES + item_bytes)))))


def compresses(values: Tensor, ratio: float) -> bool:
    """Whether a message of them is smaller than they are. Whole numbers are places and classes, and stay."""
    if not values.dtype.is_floating_point or ratio <= 1:
        return False
    return message_bytes(values, ratio) < values.numel() * values.element_size()


def message_bytes(values: Tensor, ratio: float) -> int:
    size = values.element_size()
    return kept(values.numel(), size, ratio) * (_PLACE_BYTES + size)


class TopK:
    """One way over one border, at one ratio. Keeps the errors of what it encoded."""

    def __init__(self, ratio: float) -> None:
        self.ratio = ratio
        self.errors: dict[Form, Tensor] = {}  # flat

    def buffer(self, like: Tensor) -> Tensor:
        """For a message of such a tensor."""
        return torch.empty(message_bytes(like, self.ratio), dtype=torch.uint8, device=like.device)

    @torch.no_grad()
    def encode(self, number: int, values: Tensor) -> Tensor:
        """The message, uint8. `number`: of the tensor among those that go over the border together."""
        flat, form = values.detach().reshape(-1), (number, values.shape, values.dtype)
        whole = flat + self.errors[form] if form in self.errors else flat.clone()
        places = whole.abs().topk(kept(whole.numel(), whole.element_size(), self.ratio), sorted=False).indices
        sent = whole[places]
        whole[places] = 0
        if bool(sent.isfinite().all()):
            self.errors[form] = whole
        else:
            self.errors.pop(form, None)
        return torch.cat([places.to(torch.int32).view(torch.uint8), sent.view(torch.uint8)])

    @torch.no_grad()
    def decode(self, message: Tensor, out: Tensor) -> None:
        """out: contiguous, written."""
        end = message.numel() // (_PLACE_BYTES + out.element_size()) * _PLACE_BYTES
        places, sent = message[:end].view(torch.int32), message[end:].clone().view(out.dtype)
        out.detach().zero_().view(-1)[places.long()] = sent
