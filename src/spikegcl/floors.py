"""Codes without learning, at a given number of bits: what every learned number has to be compared with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from spikegcl import noise
from spikegcl.bits import pack
from spikegcl.graph import features_of
from spikegcl.propagate import make_operator, propagate
from spikegcl.session import Session

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from spikegcl.config import Config
    from spikegcl.graph import Graph
    from spikegcl.sources import Sources

    Packed = NDArray[np.uint8]

CHUNK = 256  # columns projected at a time, fewer if these take more than
CHUNK_BYTES = 2**28


def below(graph: Graph, config: Config, bits: int, seed: int, inputs: Sources | None = None) -> dict[str, Packed]:
    """What codes of SpikeGCL with so many bits stand on, by name; ``config`` and ``inputs`` as in :func:`untrained`.

    Beside ``compact`` also the strongest closed form, if the graph is in one piece; at the thousands of bits of the
    paper's model it takes minutes, and the frontier has them side by side.
    """
    found = {"untrained": untrained(graph, config, seed, inputs)}
    if config.inputs == "components" and config.parts == 1:
        found["ppr-itq"] = ppr_itq(graph, bits, seed)
    return found | {"projection": projection(graph, bits, seed)}


def ppr_itq(graph: Graph, bits: int, seed: int) -> Packed:
    """Codes of the method of that name by its defaults (packed)."""
    from spikegcl.baselines.closed_form import ClosedFormSettings, fit_components_method

    codes = fit_components_method(graph, ClosedFormSettings(bits=bits), seed=seed).codes
    assert codes is not None
    return codes


def untrained(graph: Graph, config: Config, seed: int, inputs: Sources | None = None) -> Packed:
    """Codes of the encoder before training (packed); ``config`` as it was given for training, not as it was settled."""
    return untrained_session(graph, config, seed, inputs=inputs).embed()


def untrained_session(
    graph: Graph,
    config: Config,
    seed: int,
    device: torch.device | str = "cpu",
    *,
    inputs: Sources | None = None,
) -> Session:
    """The encoder as initialised, its running statistics moved by as many passes as training has epochs.

    One that reads components (``inputs``, else found here) has random directions of them, cut at their medians. A
    threshold that training calibrates is calibrated here too, by the same passes.
    """
    session = Session(graph, config, seed, device, start=False, inputs=inputs)
    if config.batch_norm:
        session.warm_up(config.epochs)
    return session


def projection(graph: Graph, bits: int, seed: int) -> Packed:
    """Sign at the column median of a Gaussian random projection of twice-propagated standardised features (packed).

    With D the inverse standard deviations: P^2 (X - mean) D R = P^2 (X D R) - (P^2 1) (mean D R), so sparse features
    stay sparse. Constant columns are left out.
    """
    features = features_of(graph)
    count, width = features.shape
    mean = np.asarray(features.mean(0, dtype=np.float64)).ravel()
    if graph.is_sparse:
        square = np.asarray(features.power(2).mean(0, dtype=np.float64)).ravel()
    else:  # in 64 bits, but no matrix of them
        square = np.einsum("ij,ij->j", features, features, dtype=np.float64) / count
    std = np.sqrt(np.maximum(square - mean**2, 0))
    scale = np.divide(1, std, out=np.zeros(width), where=std > 1e-7 * np.sqrt(square))
    operator = make_operator(graph)
    twice = propagate(operator, operator.reach[:, None])
    rng = np.random.default_rng(noise.derive(seed, "projection"))
    packed = np.empty((count, (bits + 7) // 8), np.uint8)
    chunk = min(CHUNK, max(8, CHUNK_BYTES // (4 * count) // 8 * 8))
    for first in range(0, bits, chunk):
        weight = (rng.standard_normal((width, min(chunk, bits - first))) * scale[:, None]).astype(np.float32)
        x = torch.from_numpy(np.ascontiguousarray(features @ weight))
        x = propagate(operator, propagate(operator, x)) - twice * torch.from_numpy((mean @ weight).astype(np.float32))
        values = x.numpy()
        packed[:, first // 8 : (first + chunk) // 8] = sign_at_median(values)
    return packed


def sign_at_median(values: NDArray[np.floating]) -> Packed:
    """One bit a column: whether a value is above the median of its column (N x D floats -> packed, D bits)."""
    return pack(values > np.median(values, axis=0))
