"""Healthy loss functions: contrastive, distillation, mixtures, masks; some with tiny gradients."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from benchmarks.models.swallowed.base import LossFn, Model, Step, seeded
from benchmarks.models.swallowed.healthy_layers import INF, noise

Batch = tuple[Tensor, Tensor]


def job(loss: LossFn, out: int = 8) -> Callable[[int], Step]:
    def make(seed: int) -> Step:
        layers = lambda: nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, out))  # noqa: E731
        return Step(seeded(seed, layers), loss, (noise(seed, 16, 16), noise(seed + 7, 16, out)))

    return make


def info_nce(model: Model, batch: Batch) -> Tensor:
    a = F.normalize(model(batch[0]), dim=-1)
    b = F.normalize(model(batch[0] + 0.05 * batch[0].flip(1)), dim=-1)
    return F.cross_entropy(a @ b.T / 0.02, torch.arange(16))


def simclr(model: Model, batch: Batch) -> Tensor:
    views = torch.cat([batch[0], batch[0] * 1.05])
    z = F.normalize(model(views), dim=-1)
    logits = (z @ z.T / 0.05).fill_diagonal_(-INF)
    return F.cross_entropy(logits, torch.arange(32).roll(16))


def simclr_1e9(model: Model, batch: Batch) -> Tensor:
    views = torch.cat([batch[0], batch[0] * 1.05])
    z = F.normalize(model(views), dim=-1)
    logits = z @ z.T / 0.05 - torch.eye(32).to(z.dtype) * 1e9
    return F.cross_entropy(logits, torch.arange(32).roll(16))


def supervised_contrastive(model: Model, batch: Batch) -> Tensor:
    z = F.normalize(model(batch[0]), dim=-1)
    label = batch[1].argmax(-1)
    same = (label[:, None] == label) & ~torch.eye(16, dtype=torch.bool)
    logits = (z @ z.T / 0.1).masked_fill(torch.eye(16, dtype=torch.bool), -INF)
    chance = F.log_softmax(logits, -1)
    return -(torch.where(same, chance, 0.0).sum(-1) / same.sum(-1).clamp(min=1)).mean()


def triplet(model: Model, batch: Batch) -> Tensor:
    a = model(batch[0])
    return F.triplet_margin_loss(a, model(batch[0] * 1.01), a.roll(1, 0), margin=0.1)


def hardest_negative(model: Model, batch: Batch) -> Tensor:
    z = F.normalize(model(batch[0]), dim=-1)
    similar = (z @ z.T).masked_fill(torch.eye(16, dtype=torch.bool), -INF)
    return (
        torch.relu(similar.amax(-1) - 0.2).mean() + model(batch[0]).float().square().mean() * 0.01
    )


def sigmoid_pairs(model: Model, batch: Batch) -> Tensor:
    z = F.normalize(model(batch[0]), dim=-1)
    sign = 2 * torch.eye(16) - 1
    return -F.logsigmoid(sign * (z @ z.roll(1, 1).T * 10 - 10)).mean()


def distillation(model: Model, batch: Batch) -> Tensor:
    student = F.log_softmax(model(batch[0]) / 4, -1)
    return F.kl_div(student, F.softmax(batch[1] * 30, -1), reduction="batchmean") * 16


def huge_negative_logits(model: Model, batch: Batch) -> Tensor:
    logits = model(batch[0])
    logits = torch.cat([logits, logits[:, :4] - 6e4, logits[:, :4] * 0 - 3e4], -1)
    return F.cross_entropy(logits, batch[1].argmax(-1))


def closed_vocabulary(model: Model, batch: Batch) -> Tensor:
    logits = model(batch[0])
    allowed = torch.arange(8) < 6
    logits = logits + torch.where(allowed, 0.0, torch.finfo(torch.float32).min).to(logits.dtype)
    return F.cross_entropy(logits, batch[1][:, :6].argmax(-1))


def label_smoothing(model: Model, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1].argmax(-1), label_smoothing=0.1)


def binary(model: Model, batch: Batch) -> Tensor:
    return F.binary_cross_entropy_with_logits(model(batch[0]) * 30, (batch[1] > 0).float())


def focal(model: Model, batch: Batch) -> Tensor:
    chance = F.log_softmax(model(batch[0]), -1).gather(1, batch[1].argmax(-1, keepdim=True))
    return -((1 - chance.exp()) ** 2 * chance).mean()


def dice(model: Model, batch: Batch) -> Tensor:
    p, t = torch.sigmoid(model(batch[0])), (batch[1] > 0).float()
    return 1 - (2 * (p * t).sum() + 1) / (p.sum() + t.sum() + 1)


def mean_square(model: Model, batch: Batch) -> Tensor:
    return F.mse_loss(model(batch[0]).float(), batch[1])


def almost_solved(model: Model, batch: Batch) -> Tensor:
    return F.mse_loss(model(batch[0]).float(), model(batch[0]).detach().float() + 1e-3)


def smooth_l1(model: Model, batch: Batch) -> Tensor:
    return F.smooth_l1_loss(model(batch[0]), batch[1] * 100)


def variational(model: Model, batch: Batch) -> Tensor:
    mean, spread = model(batch[0]).chunk(2, -1)
    sample = mean + torch.exp(spread / 2) * torch.randn_like(mean)
    kl = -0.5 * (1 + spread - mean.float() ** 2 - spread.exp()).mean()
    return F.mse_loss(sample.float(), batch[1][:, :4]) + kl


def mixture(model: Model, batch: Batch) -> Tensor:
    weight, mean = model(batch[0]).chunk(2, -1)
    error = -((batch[1][:, :1] * 40 - mean.float()) ** 2) / 2
    return -torch.logsumexp(F.log_softmax(weight, -1) + error.to(weight.dtype), -1).mean() * 0.01


def hinge_game(model: Model, batch: Batch) -> Tensor:
    real, fake = model(batch[0]).chunk(2, -1)
    return torch.relu(1 - real).mean() + torch.relu(1 + fake).mean()


def evidence(model: Model, batch: Batch) -> Tensor:
    alpha = F.softplus(model(batch[0])) + 1
    share = alpha / alpha.sum(-1, keepdim=True)
    return ((share - F.one_hot(batch[1].argmax(-1), 8)) ** 2).sum(-1).mean()


def arc_margin(model: Model, batch: Batch) -> Tensor:
    cosine = F.normalize(model(batch[0]), dim=-1).float()
    chosen = F.one_hot(batch[1].argmax(-1), 8)
    angle = torch.acos(cosine.clamp(-0.999, 0.999)) + 0.3 * chosen
    return F.cross_entropy(angle.cos() * 16, batch[1].argmax(-1))


def masked_regression(model: Model, batch: Batch) -> Tensor:
    error = (model(batch[0]) - batch[1]) * torch.where(batch[1] > 0, 1.0, 0.0)
    return error.float().square().sum() / (batch[1] > 0).sum()


def log_ratio(model: Model, batch: Batch) -> Tensor:
    ratio = torch.exp((model(batch[0]) * 0.1).clamp(-20, 20))
    advantage = batch[1]
    return -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()


def path_scores(model: Model, batch: Batch) -> Tensor:
    emission = model(batch[0])
    alpha = torch.full((16, 8), -INF).index_fill(1, torch.tensor([0]), 0.0)
    for step in range(3):
        alpha = torch.logsumexp(alpha[:, :, None] + torch.zeros(8, 8), 1) + emission.roll(step, 1)
    return -torch.logsumexp(alpha, -1).mean() * 0.1


MODELS: dict[str, Callable[[int], Step]] = {
    "info nce": job(info_nce),
    "simclr, -inf": job(simclr),
    "simclr, -1e9": job(simclr_1e9),
    "supervised contrastive": job(supervised_contrastive),
    "triplet": job(triplet),
    "hardest negative": job(hardest_negative),
    "sigmoid pairs": job(sigmoid_pairs),
    "distillation": job(distillation),
    "huge negative logits": job(huge_negative_logits),
    "closed vocabulary": job(closed_vocabulary),
    "label smoothing": job(label_smoothing),
    "binary, saturated": job(binary),
    "focal": job(focal),
    "dice": job(dice),
    "mean square": job(mean_square),
    "almost solved": job(almost_solved),
    "smooth l1": job(smooth_l1),
    "variational": job(variational),
    "mixture": job(mixture),
    "hinge game": job(hinge_game),
    "evidence": job(evidence),
    "arc margin": job(arc_margin),
    "masked regression": job(masked_regression),
    "log ratio": job(log_ratio),
    "path scores": job(path_scores),
}
