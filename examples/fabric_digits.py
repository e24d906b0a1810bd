"""A loop of Lightning's Fabric made elastic: `ElasticFabric(session)` stands where `Fabric()` stood.

It trains a small network on scikit-learn's digits. Lightning itself is not needed.
"""

from __future__ import annotations

from torch import nn, optim
from torch.utils.data import DataLoader

from elastic_core.train.adapters.fabric import ElasticFabric
from elastic_core.train.session import Session
from examples.digits import split_digits

EPOCHS = 100


def train(session: Session) -> None:
    fabric = ElasticFabric(session)
    fabric.launch()
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = optim.AdamW(model.parameters(), lr=2e-3)
    model, optimizer = fabric.setup(model, optimizer)
    loader = fabric.setup_dataloaders(DataLoader(split_digits()[0], batch_size=64, shuffle=True))
    for _ in range(EPOCHS):
        for images, labels in loader:
            optimizer.zero_grad()
            logits = model(images)
            loss = nn.functional.cross_entropy(logits, labels)
            fabric.backward(loss)
            optimizer.step()
            fabric.log("accuracy", (logits.argmax(-1) == labels).float().mean())
