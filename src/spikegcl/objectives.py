"""What training asks of the spikes. :func:`spikegcl.training.train` runs any of these, epoch by epoch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from spikegcl import noise, world
from spikegcl.model import margin_loss
from spikegcl.neurons import exceeded_by, fire

if TYPE_CHECKING:
    from collections.abc import Callable

    from spikegcl.session import Session
    from spikegcl.views import Piece

LEVELS = (8, 16, 32, 64, 128)  # numbers of clusters the spikes predict, coarse to fine
CLUSTERED = 64  # components the clusters are made from: later ones are mostly noise to k-means
SHRINK = 2e-4  # L2 on the maps from spikes to clusters
MAP_RATE = 10  # their learning rate, relative to the encoder's
BATCH, BATCHES = 1024, 20  # nodes of a step, steps of an epoch
SAMPLE = 2**16  # nodes the clusters are made from
WARM_UP = 0.1  # share of the steps in which the learning rate rises; it falls to zero in the others


class Objective(Protocol):
    """One way to train the model of a session."""

    optimiser: torch.optim.Optimizer

    def epoch(self, number: int) -> tuple[float, list[float]]:
        """Train for one epoch (counted from 1). Returns its loss and a gradient norm for every time step."""
        ...

    def state(self) -> dict[str, Tensor]:
        """What later epochs depend on beside the model, by name."""
        ...

    def restore(self, state: dict[str, Tensor], epoch: int) -> None:
        """Go on as the objective that had this state after ``epoch``."""
        ...


class Margin:
    """The paper's: scores of the graph and of a corrupted one are ranked, block by block; one optimiser step an epoch.

    Each chunk of blocks is forwarded in both views, contrasted and backwarded at once, so its activations are freed
    before the next: memory does not grow with the number of steps. The membrane crosses block borders detached.
    """

    def __init__(self, session: Session) -> None:
        self.session, config = session, session.config
        self.optimiser: torch.optim.Optimizer = torch.optim.AdamW(
            session.model.parameters(), lr=config.lr, weight_decay=config.weight_decay
        )

    def epoch(self, number: int) -> tuple[float, list[float]]:
        model = self.session.model
        total, squares = self.gradient(number)
        self.optimiser.step()
        model.neuron.project()
        return total / model.steps, squares.sqrt().tolist()

    def gradient(self, number: int) -> tuple[float, Tensor]:
        """Leave the gradient of the whole graph's loss in the parameters; move the running statistics.

        Returns the loss, and the squared gradient norm of every step (float64). The gradients of pieces are added up in
        double precision, which makes the sum the same for any order and any number of processes but for rare roundings.
        """
        session, parameters = self.session, list(self.session.model.parameters())
        total, sums = torch.zeros(1 + session.model.steps, dtype=torch.float64), dict[int, Tensor]()
        with session.gathered_statistics():
            for piece in session.pieces():
                self.optimiser.zero_grad(set_to_none=True)
                total += self._backward(piece, number)
                for place, parameter in enumerate(parameters):
                    if parameter.grad is not None:
                        sums[place] = sums.get(place, 0) + parameter.grad.double()
        world.add_up([total, *sums.values()])
        for place, gradient in sums.items():
            parameters[place].grad = gradient.float()
        return float(total[0]), total[1:]

    def _backward(self, piece: Piece, number: int) -> Tensor:
        """Add the gradient of a piece; returns its share of the loss and the squared norms of the steps (float64)."""
        session, model, own = self.session, self.session.model, piece.own
        positive, negative = piece.positive(number), piece.negative(number)
        after_positive, after_negative = model.rest(positive), model.rest(negative)
        total, norms = 0.0, list[float]()
        for first, steps in model.chunks(positive.operator.num_nodes):
            good, after_positive = model.scores(positive, first, steps, after_positive, norms)
            bad, after_negative = model.scores(negative, first, steps, after_negative)
            loss = margin_loss(good[:own], bad[:own], session.config.margin) * (own / session.graph.num_nodes)
            loss.backward()
            total += float(loss.detach())
        return torch.tensor([total, *(norm**2 for norm in norms)], dtype=torch.float64)

    def state(self) -> dict[str, Tensor]:
        return _optimiser_state(self.optimiser)

    def restore(self, state: dict[str, Tensor], epoch: int) -> None:
        _restore_optimiser(self.optimiser, state)


@dataclass(frozen=True)
class Clustering:
    """Soft clusters of score rows (N x k): ``centres`` K x k; ``width`` is the typical squared distance between a row's
    nearest centre and its second, beyond the nearest."""

    centres: Tensor
    width: float

    def memberships(self, rows: Tensor) -> Tensor:
        """Rows n x k or wider -> shares n x K: softmax(-squared distance / width)."""
        return torch.softmax(-_squared_distances(rows[:, : self.centres.shape[1]], self.centres) / self.width, 1)


class Clusters:
    """Spikes predict, by linear maps, the soft clusters of the components a node belongs to, at several resolutions.

    loss = mean over K of cross-entropy(map_K(2 s - 1), memberships_K) / log K. In training a current is standardised
    over the batch and fires where it would have fired before training; afterwards every channel's bias is moved so that
    its share of the nodes fires.
    """

    def __init__(self, session: Session) -> None:
        self.session, config, model = session, session.config, session.model
        device = model.head.device
        self.inputs = torch.from_numpy(session.scores).to(device)
        count, some = len(self.inputs), noise.generator(session.seed, "sample")
        sample = self.inputs[torch.randperm(count, generator=some)[:SAMPLE].to(device)]
        self.targets = _cluster(sample[:, :CLUSTERED], session.seed)
        sizes = [len(target.centres) for target in self.targets]
        self.maps = [torch.zeros(model.bits + 1, size, device=device).requires_grad_() for size in sizes]
        self.thresholds = exceeded_by(self._current(sample).detach(), session.rates.flatten())
        rates: list[dict[str, Any]] = [
            {"params": [model.encoder.first.weight], "lr": config.lr},
            {"params": self.maps, "lr": MAP_RATE * config.lr},
        ]
        self.optimiser: torch.optim.Optimizer = torch.optim.Adam(rates)
        total = max(1, config.epochs * BATCHES)
        warm = max(1, round(WARM_UP * total))
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            self.optimiser, lambda step: min((step + 1) / warm, (total - step) / max(1, total - warm))
        )

    def epoch(self, number: int) -> tuple[float, list[float]]:
        model, nodes = self.session.model, len(self.inputs)
        total, norms = 0.0, torch.zeros(model.steps)
        generator = noise.generator(self.session.seed, "batches", number)
        for _ in range(BATCHES):
            batch = torch.randperm(nodes, generator=generator)[:BATCH].to(self.inputs.device)
            current = self._current(self.inputs[batch])
            current.retain_grad()
            loss = self._loss(current, batch)
            self.optimiser.zero_grad(set_to_none=True)
            loss.backward()
            self.optimiser.step()
            self.schedule.step()
            total += float(loss.detach())
            assert current.grad is not None
            norms += current.grad.view(-1, model.steps, model.channels).norm(dim=(0, 2)).cpu()
        self.session.settle_thresholds()
        return total / BATCHES, (norms / BATCHES).tolist()

    def state(self) -> dict[str, Tensor]:
        return _optimiser_state(self.optimiser) | {f"map {level}": weight for level, weight in enumerate(self.maps)}

    @torch.no_grad()
    def restore(self, state: dict[str, Tensor], epoch: int) -> None:
        _restore_optimiser(self.optimiser, state)
        self.schedule.last_epoch = BATCHES * epoch
        for level, weight in enumerate(self.maps):
            weight.copy_(state[f"map {level}"])

    def _current(self, inputs: Tensor) -> Tensor:
        """Currents of all steps side by side, n x T*H, standardised over the batch."""
        model = self.session.model
        weight = model.encoder.first.weight.view(model.steps, inputs.shape[1], -1)
        current = inputs @ weight.transpose(0, 1).reshape(inputs.shape[1], -1)
        return (current - current.mean(0)) / (current.std(0) + 1e-6)

    def _loss(self, current: Tensor, batch: Tensor) -> Tensor:
        config = self.session.config
        signs = 2 * fire(current - self.thresholds, config.surrogate, config.alpha) - 1
        loss = signs.new_zeros(())
        for weight, target in zip(self.maps, self.targets, strict=True):
            logits, shares = signs @ weight[:-1] + weight[-1], target.memberships(self.inputs[batch])
            loss = loss + F.cross_entropy(logits, shares) / math.log(len(target.centres))
            loss = loss + SHRINK * weight[:-1].square().sum()
        return loss / len(self.maps)


def _optimiser_state(optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Moments and step count of every parameter ("NUMBER.NAME"), and "rates", the learning rate of every group."""
    held = optimiser.state_dict()["state"].items()
    rates = torch.tensor([group["lr"] for group in optimiser.param_groups], dtype=torch.float64)
    return {f"{number}.{name}": value for number, values in held for name, value in values.items()} | {"rates": rates}


def _restore_optimiser(optimiser: torch.optim.Optimizer, state: dict[str, Tensor]) -> None:
    """Put back what :func:`_optimiser_state` returned; other names are left alone."""
    held = optimiser.state_dict()
    for group, rate in zip(held["param_groups"], state["rates"].tolist(), strict=True):
        group["lr"] = rate
    for key, value in state.items():
        number, dot, name = key.partition(".")
        if dot:
            held["state"].setdefault(int(number), {})[name] = value
    optimiser.load_state_dict(held)


def _cluster(rows: Tensor, seed: int) -> list[Clustering]:
    """Clusterings at every level that leaves ten nodes a cluster; at least one."""
    from sklearn.cluster import MiniBatchKMeans

    levels = [level for level in LEVELS if 10 * level <= len(rows)] or [min(2, len(rows))]
    state, found = noise.derive(seed, "clusters"), []
    for level in levels:
        fitted = MiniBatchKMeans(level, batch_size=BATCH, n_init=1, random_state=state).fit(rows.cpu().numpy())
        centres = torch.from_numpy(fitted.cluster_centers_).to(rows)
        nearest = _squared_distances(rows, centres).topk(min(2, level), largest=False).values
        found.append(Clustering(centres, max(1e-12, float((nearest[:, -1] - nearest[:, 0]).median()))))
    return found


def _squared_distances(rows: Tensor, centres: Tensor) -> Tensor:
    return torch.cdist(rows, centres, compute_mode="use_mm_for_euclid_dist").square()


OBJECTIVES: dict[str, Callable[[Session], Objective]] = {"margin": Margin, "clusters": Clusters}
