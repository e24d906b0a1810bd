"""An ordinary PyTorch loop made elastic: the lines that say `session` are all that was added.

Without them it is a script that trains an autoencoder on scikit-learn's digits. With them it may be stopped after
any step and go on at another number of slots and another batch size, each image read exactly once an epoch.
"""

from __future__ import annotations

import torch
from torch import nn

from elastic_core.train.session import Session
from examples.digits import split_digits


def train(session: Session) -> None:
    images, _ = split_digits()[0].tensors
    dataset = torch.utils.data.TensorDataset(images.flatten(1))
    model = nn.Sequential(
        nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 8), nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 64)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    model, optimizer = session.prepare(model, optimizer, dataset)
    for (pixels,) in session.batches():
        loss = nn.functional.mse_loss(model(pixels), pixels)
        session.step(loss)
