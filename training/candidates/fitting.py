"""How a network learns from labels: what is minimised, and which weights are kept."""

import copy
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...agents.networks.candidates import CandidateNetwork
from ...envs.candidate_features import CANDIDATE_FEATURE_COUNT, CANDIDATE_GLOBAL_COUNT
from ..presets import DistilParameters
from .group import CLOSED, step_in_chunks, value_loss
from .labels import Labels

NEAR = 0.5  # units
HELD_OUT = 10  # every so many scenarios one is kept to judge by


class Fitted(NamedTuple):
    """How well a network does on labels that are held out."""

    held_out_loss: float  # the least after any epoch; its weights are kept
    epochs: int
    regret: float  # by how much its candidates fall short of the best labels, in the mean
    value_error: float  # root mean square
    spread: float  # variance of what candidates truly gain, over the gap to the chosen one that is told, if below NEAR


class _Lessons(NamedTuple):
    """Labels as tensors, of some decisions."""

    observations: Tensor
    listed: Tensor
    tried: Tensor
    gain: Tensor
    error: Tensor
    to_go: Tensor

    def of(self, rows: Tensor) -> "_Lessons":
        """Return those of some rows, no wider than their longest list."""
        part = _Lessons(*(tensor[rows] for tensor in self))
        most = int(part.listed.max())
        observations = part.observations[:, : CANDIDATE_GLOBAL_COUNT + most * CANDIDATE_FEATURE_COUNT]
        return part._replace(observations=observations, gain=part.gain[:, :most], error=part.error[:, :most])


def noise_weight(error: Tensor, parameters: DistilParameters) -> Tensor:
    """Return the weight of labels by their standard error: 1 without noise, 1/2 where it is as large as the prior."""
    prior = parameters.distil_prior**2
    weight: Tensor = prior / (error**2 + prior)
    return weight


def distil_loss(
    logits: Tensor, tried: Tensor, gain: Tensor, error: Tensor, parameters: DistilParameters
) -> tuple[Tensor, Tensor]:
    """Return the regression and the expected cost of some decisions, summed, to be minimised.

    Args:
        logits: What the network tells, shape (decisions, candidates).
        tried: How many candidates have a label, shape (decisions,).
        gain: Labels, shape (decisions, candidates).
        error: Their standard errors, shape (decisions, candidates).
        parameters: Prior and temperature.
    """
    is_tried = torch.arange(logits.shape[1]) < tried[:, None]
    predicted_gains = logits - logits[:, :1]
    prior, temperature = parameters.distil_prior, parameters.distil_temperature
    residual = (predicted_gains - gain) / prior
    regression = 0.5 * (noise_weight(error, parameters) * residual**2 * is_tried).sum()
    shares = (predicted_gains / temperature).masked_fill(~is_tried, CLOSED).softmax(dim=1)
    cost = -(shares * gain).sum() / temperature
    return regression, cost


def _policy_loss(logits: Tensor, lessons: _Lessons, parameters: DistilParameters) -> Tensor:
    regression, cost = distil_loss(logits, lessons.tried, lessons.gain, lessons.error, parameters)
    return regression + parameters.distil_cost * cost


def fit_network(
    network: CandidateNetwork, labels: Labels, parameters: DistilParameters, pool: ThreadPoolExecutor,
    rng: np.random.Generator,
) -> Fitted:  # fmt: skip
    """Let a network learn; the weights of the least loss on what is held out remain.

    Args:
        network: What learns.
        labels: What it learns from.
        parameters: Epochs, minibatch, learning rate and loss.
        pool: Threads; their number changes nothing.
        rng: Draws the order of the labels.
    """
    lessons = _Lessons(*map(torch.from_numpy, labels[:-1]))
    is_held = labels.scenario % HELD_OUT == HELD_OUT - 1
    learned = np.flatnonzero(~is_held) if (~is_held).any() else np.arange(is_held.size)
    held = lessons.of(torch.from_numpy(np.flatnonzero(is_held) if is_held.any() else learned))
    optimizer = torch.optim.Adam(network.parameters(), lr=parameters.distil_learning_rate)

    def loss(rows: Tensor) -> Tensor:
        part = lessons.of(rows)
        logits, values = network(part.observations)
        return _policy_loss(logits, part, parameters) + value_loss(values, part.to_go)

    least, at, best = np.inf, 0, copy.deepcopy(network.state_dict())
    for epoch in range(parameters.distil_epochs):
        for group in optimizer.param_groups:
            group["lr"] = parameters.distil_learning_rate * (1.0 - epoch / parameters.distil_epochs)
        for minibatch in torch.split(torch.from_numpy(rng.permutation(learned)), parameters.distil_minibatch):
            # Chunks of decisions with equally long lists are narrow.
            rows = minibatch[torch.argsort(lessons.listed[minibatch], stable=True)]
            step_in_chunks(network, optimizer, pool, rows, loss)
        with torch.no_grad():
            judged = float(_policy_loss(network(held.observations)[0], held, parameters)) / held.tried.numel()
        if judged < least:
            least, at, best = judged, epoch + 1, copy.deepcopy(network.state_dict())
    network.load_state_dict(best)
    return Fitted(least, at, *_judged(network, held))


@torch.no_grad()
def _judged(network: CandidateNetwork, held: _Lessons) -> tuple[float, float, float]:
    """Return regret, error of the value, and spread."""
    logits, values = network(held.observations)
    is_tried = torch.arange(logits.shape[1]) < held.tried[:, None]
    chosen = logits.masked_fill(~is_tried, CLOSED).argmax(dim=1, keepdim=True)
    best = held.gain.masked_fill(~is_tried, CLOSED).amax(dim=1)
    gain, predicted_gains = (tensor - tensor.gather(1, chosen) for tensor in (held.gain, logits))
    near = is_tried & (predicted_gains < 0.0) & (predicted_gains > -NEAR)
    noise = held.error.amax(dim=1, keepdim=True).square()  # of the difference of any two candidates
    spread = ((gain - predicted_gains).square() - noise)[near].sum() / -predicted_gains[near].sum().clamp(max=-1e-9)
    regret = (best - held.gain.gather(1, chosen)[:, 0]).mean()
    return float(regret), float((values - held.to_go).square().mean().sqrt()), float(spread)
