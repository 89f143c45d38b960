"""The optimizer: Muon for the matrices of the layers, AdamW for embeddings and norms.

Muon (Jordan et al., 2024) makes each momentum matrix orthogonal before it is applied, with a few Newton-Schulz steps.
For matrices as small as these the steps cost a few milliseconds, and the model needs much less text.
"""

from __future__ import annotations

from collections import defaultdict

import torch

COEFFICIENTS = (3.4445, -4.7750, 2.0315)


def orthogonal(batch: torch.Tensor, steps: int = 5) -> torch.Tensor:
    """Returns each matrix of [n, rows, columns] with its singular values moved close to one."""
    a, b, c = COEFFICIENTS
    tall = batch.shape[-2] > batch.shape[-1]
    x = (batch.mT if tall else batch).bfloat16()  # exact enough, and three times as fast as float32
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    """Applies momentum, then orthogonalization. Matrices of the same shape are computed together."""

    def __init__(
        self, params: list[torch.nn.Parameter], lr: float, momentum: float = 0.95, weight_decay: float = 0.02
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            shapes: dict[torch.Size, list[torch.nn.Parameter]] = defaultdict(list)
            for p in group["params"]:
                if p.grad is not None:
                    shapes[p.shape].append(p)
            for params in shapes.values():
                updates = []
                for p in params:
                    buffer = self.state[p].setdefault("momentum", torch.zeros_like(p))
                    buffer.lerp_(p.grad, 1 - group["momentum"])
                    updates.append(p.grad.lerp(buffer, group["momentum"]))
                scale = max(1.0, params[0].shape[0] / params[0].shape[1]) ** 0.5
                for p, update in zip(params, orthogonal(torch.stack(updates)), strict=True):
                    p.mul_(1 - group["lr"] * group["weight_decay"])
                    p.add_(update, alpha=-group["lr"] * scale)
