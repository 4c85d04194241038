"""``<method>+sign``: the float embedding of any method, made into bits without learning anything more.

With as many bits as dimensions (the default) a bit says whether a value is above the median of its column. With
another number of bits the embedding is first multiplied by random directions: orthonormal ones where there are fewer
bits than dimensions, Gaussian ones where there are more.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from spikegcl import noise
from spikegcl.baselines import SIGN, Fitted, Method, Shape
from spikegcl.errors import ConfigError
from spikegcl.floors import sign_at_median

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from spikegcl.energy import Operations
    from spikegcl.graph import Graph


def with_sign(base: Method) -> Method:
    """The method that signs the embedding of ``base``."""
    if not base.unsupervised or base.binary:
        raise ConfigError(f"{base.name}{SIGN} does not exist: {base.name} has no float embedding to take the sign of")
    fields: list[Any] = [("bits", int, 0)]
    settings = dataclasses.make_dataclass(f"{base.settings.__name__}Sign", fields, bases=(base.settings,), frozen=True)

    def fit(graph: Graph, settings: Any, **options: Any) -> Fitted:
        fitted = base.fit(graph, settings, **options)
        assert fitted.embedding is not None
        width = fitted.embedding.shape[1]
        bits = settings.bits or width
        codes = sign_codes(fitted.embedding, bits, options["seed"])
        return dataclasses.replace(fitted, settings=settings.replace(bits=bits), embedding=None, codes=codes, bits=bits)

    def operations(shape: Shape, settings: Any, spikes: tuple[int, ...] = ()) -> Operations:
        """Those of the base method; the rotation to another number of bits is not counted."""
        return base.operations(shape, settings, spikes)

    return Method(
        base.name + SIGN, f"{base.title}, sign at the median", settings, fit, base.parameters, operations, binary=True,
        revision=base.revision,
    )  # fmt: skip


def sign_codes(embedding: NDArray[np.float32], bits: int, seed: int) -> NDArray[np.uint8]:
    """N x D floats -> packed codes of ``bits`` bits."""
    return sign_at_median(embedding if bits == embedding.shape[1] else rotate(embedding, bits, seed))


def rotate(embedding: NDArray[np.float32], bits: int, seed: int) -> NDArray[np.float32]:
    """N x D -> N x bits: the embedding times random directions, orthonormal ones when bits < D."""
    width = embedding.shape[1]
    directions = np.random.default_rng(noise.derive(seed, "sign")).standard_normal((width, bits))
    if bits < width:
        directions = np.linalg.qr(directions)[0]
    rotated: NDArray[np.float32] = embedding @ directions.astype(np.float32)
    return rotated
