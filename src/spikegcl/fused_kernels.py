"""The CPU kernels (numba) of what happens between two products: activation with dropout, and the spiking neuron."""
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import numpy as np
from numba import njit, prange

from spikegcl.kernels import BLOCKS, F0, F1, FAST, TILE, hash_of, row_key

NEURONS = 256  # neurons run together through all steps
IDENTITY, RELU, ELU = 0, 1, 2
ACTIVATIONS = {"none": IDENTITY, "relu": RELU, "elu": ELU}


@njit(inline="always")
def _exp(x):
    """exp in float32, written so that it vectorises (range reduction and a polynomial; error about one ulp)."""
    x = min(max(x, np.float32(-87.0)), np.float32(88.0))
    k = np.floor(x * np.float32(1.4426950408889634) + np.float32(0.5))
    r = x - k * np.float32(0.693359375)
    r = r + k * np.float32(2.12194440e-4)
    p = np.float32(1.9875691500e-4)
    p = p * r + np.float32(1.3981999507e-3)
    p = p * r + np.float32(8.3334519073e-3)
    p = p * r + np.float32(4.1665795894e-2)
    p = p * r + np.float32(1.6666665459e-1)
    p = p * r + np.float32(5.0000001201e-1)
    p = p * r * r + r + F1
    return p * np.int32((np.int32(k) + np.int32(127)) << np.int32(23)).view(np.float32)


# ---------------------------------------------------------------------- between two layers: activation and dropout


@njit(inline="always")
def _kept(key, row, lowest, scale, kept):
    """kept[h] = scale where channel h of this row survives, 0 where it is dropped."""
    own = row_key(key, row)
    for h in range(len(kept)):
        kept[h] = scale if hash_of(own, h) >= lowest else F0


@njit(parallel=True, nogil=True, cache=True, fastmath=FAST)
def activate(a, reach, shift, bias, kind, names, keys, limit, scale, own, total, square):
    """In place: a = dropout(activation(a + reach x shift + bias)); block sums of a and a^2 per column.

    a is N x K*H for K steps; ``keys`` holds one dropout key a step; ``total`` and ``square`` are float64, BLOCKS x K*H,
    zeroed, and count the first ``own`` rows. Sums are taken in single precision over TILE rows and in double beyond, so
    that the variance of a column with a large mean does not cancel.
    """
    count, width = a.shape
    channels = width // len(keys)
    lowest = np.uint32(limit)
    for block in prange(BLOCKS):
        begin, end = count * block // BLOCKS, count * (block + 1) // BLOCKS
        sums, squares = np.zeros(width, np.float32), np.zeros(width, np.float32)
        kept = np.full(channels, scale)
        for first in range(begin, end, TILE):
            for n in range(first, min(first + TILE, end)):
                arrives = reach[n]
                for k in range(len(keys)):
                    if limit > 0:
                        _kept(keys[k], names[n], lowest, scale, kept)
                    base = k * channels
                    row = a[n, base : base + channels]
                    own_shift, own_bias = shift[base : base + channels], bias[base : base + channels]
                    own_sums, own_squares = sums[base : base + channels], squares[base : base + channels]
                    for h in range(channels):
                        x = row[h] + arrives * own_shift[h] + own_bias[h]
                        if kind == ELU:
                            x = x if x > F0 else _exp(x) - F1
                        elif kind == RELU:
                            x = max(x, F0)
                        x *= kept[h]
                        row[h] = x
                    if n < own:
                        for h in range(channels):
                            own_sums[h] += row[h]
                            own_squares[h] += row[h] * row[h]
            for c in range(width):
                total[block, c] += sums[c]
                square[block, c] += squares[c]
                sums[c] = squares[c] = F0


@njit(parallel=True, nogil=True, cache=True, fastmath=FAST)
def activate_backward(h_out, grad, reach, offset, slope, kind, names, keys, limit, scale, own, bias_grad, shift_grad):
    """In place: grad becomes the gradient before the activation.

    ``offset + slope * h`` adds what flows back through the statistics of the first ``own`` rows. Block sums of the
    result, plain and weighted by ``reach``, are the gradients of bias and shift (BLOCKS x K*H, zeroed).
    """
    count = grad.shape[0]
    channels = grad.shape[1] // len(keys)
    inverse = F1 / scale
    lowest = np.uint32(limit)
    for block in prange(BLOCKS):
        kept = np.full(channels, scale)
        for n in range(count * block // BLOCKS, count * (block + 1) // BLOCKS):
            arrives = reach[n]
            for k in range(len(keys)):
                if limit > 0:
                    _kept(keys[k], names[n], lowest, scale, kept)
                base = k * channels
                row, y_row = grad[n, base : base + channels], h_out[n, base : base + channels]
                own_offset, own_slope = offset[base : base + channels], slope[base : base + channels]
                by_bias, by_shift = bias_grad[block, base : base + channels], shift_grad[block, base : base + channels]
                if n < own:
                    for h in range(channels):
                        row[h] = row[h] + own_offset[h] + own_slope[h] * y_row[h]
                for h in range(channels):
                    y = y_row[h]
                    g = row[h] * kept[h]
                    if kind == ELU:
                        g = g if y > F0 else g * (y * inverse + F1)
                    elif kind == RELU:
                        g = g if y > F0 else F0
                    row[h] = g
                    by_bias[h] += g
                    by_shift[h] += g * arrives


# ------------------------------------------------------------------------------------------- the spiking neuron

SIGMOID, TRIANGLE, ARCTAN, MULTI_GAUSSIAN, SUPERSPIKE, RECTANGLE = 0, 1, 2, 3, 4, 5
SURROGATES = {
    "sigmoid": SIGMOID,
    "triangle": TRIANGLE,
    "arctan": ARCTAN,
    "multi-gaussian": MULTI_GAUSSIAN,
    "superspike": SUPERSPIKE,
    "rectangle": RECTANGLE,
}


@njit(inline="always")
def _normal(x, sigma):
    z = x / sigma
    return _exp(np.float32(-0.5) * z * z) / (sigma * np.float32(2.5066282746310002))


@njit(inline="always")
def _slopes(kind, charged, threshold, alpha, slopes):
    """The surrogate gradient at every channel; one loop per kind, so that each vectorises."""
    channels = len(slopes)
    if kind == SIGMOID:
        for h in range(channels):
            s = F1 / (F1 + _exp(-alpha * (charged[h] - threshold)))
            slopes[h] = alpha * s * (F1 - s)
    elif kind == TRIANGLE:
        for h in range(channels):
            slopes[h] = alpha * max(F1 - abs(alpha * (charged[h] - threshold)), F0)
    elif kind == ARCTAN:
        for h in range(channels):
            z = np.float32(1.5707963267948966) * alpha * (charged[h] - threshold)
            slopes[h] = alpha * np.float32(0.5) / (F1 + z * z)
    elif kind == SUPERSPIKE:
        for h in range(channels):
            z = F1 + alpha * abs(charged[h] - threshold)
            slopes[h] = F1 / (z * z)
    elif kind == RECTANGLE:
        for h in range(channels):
            slopes[h] = alpha if abs(alpha * (charged[h] - threshold)) < np.float32(0.5) else F0
    else:
        width = F1 / alpha
        for h in range(channels):
            x = charged[h] - threshold
            tails = _normal(x - width, np.float32(6) * width) + _normal(x + width, np.float32(6) * width)
            slopes[h] = np.float32(1.15) * _normal(x, width) - np.float32(0.15) * tails


# All neurons are V = decay V' + gain I: IF has (1, 1), LIF and PLIF have (1 - 1/tau, 1/tau), so that tau = 1 forgets
# exactly. A reset by subtraction takes ``threshold`` from the membrane, a reset to zero all of it; ``subtract`` is 1 or
# 0 as a number, because loops without branches vectorise.


@njit(inline="always")
def _reset(charged, fired, threshold, subtract):
    return charged - fired * (subtract * threshold + (F1 - subtract) * charged)


@njit(parallel=True, nogil=True, cache=True, fastmath=FAST)
def score_spikes(current, reach, shift, bias, membrane, decay, gain, threshold, subtract, head, after, scores):
    """Run the neuron over K steps and score its spikes: scores[n, k] = <spikes, head>.

    ``current`` (N x K*H) becomes the charged membrane before reset. ``membrane`` (N x H) is the one before the first
    step, ``after`` receives the one after the last.
    """
    channels = membrane.shape[1]
    for n in prange(current.shape[0]):
        arrives = reach[n]
        state = after[n]
        for h in range(channels):
            state[h] = membrane[n, h]
        for k in range(scores.shape[1]):
            base = k * channels
            row = current[n, base : base + channels]
            own_shift, own_bias = shift[base : base + channels], bias[base : base + channels]
            total = F0
            for h in range(channels):
                v = decay * state[h] + gain * (row[h] + arrives * own_shift[h] + own_bias[h])
                fired = np.float32(v >= threshold)
                row[h] = v
                state[h] = _reset(v, fired, threshold, subtract)
                total += fired * head[h]
            scores[n, k] = total


@njit(parallel=True, nogil=True, cache=True, fastmath=FAST)
def score_spikes_backward(
    charged, start, grad_scores, block_length, decay, gain, threshold, subtract, head, surrogate, alpha, reach,
    head_grad, bias_grad, shift_grad, tau_grad,
):  # fmt: skip
    """Gradients of :func:`score_spikes`, back in time within blocks of ``block_length`` steps.

    In place: ``charged`` (N x K*H) becomes the gradient of the current. The ``*_grad`` arrays are block sums
    (BLOCKS x ...), zeroed. ``tau_grad`` lacks the factor 1 / tau: dV / dtau = -(V - V') / tau. The work on a row is cut
    into short loops over few arrays each, because those vectorise.
    """
    channels = len(head)
    steps = grad_scores.shape[1]
    count = charged.shape[0]
    for block in prange(BLOCKS):
        carried, slopes, before = (
            np.zeros(channels, np.float32),
            np.empty(channels, np.float32),
            np.empty(channels, np.float32),
        )
        by_head = head_grad[block]
        for n in range(count * block // BLOCKS, count * (block + 1) // BLOCKS):
            arrives = reach[n]
            for k in range(steps - 1, -1, -1):
                base = k * channels
                g = grad_scores[n, k]
                row = charged[n, base : base + channels]
                if block_length == 1 and g == F0:
                    for h in range(channels):
                        row[h] = F0
                    continue
                _slopes(surrogate, row, threshold, alpha, slopes)
                for h in range(channels):
                    by_head[h] += g * np.float32(row[h] >= threshold)
                carries = (k + 1) % block_length != 0 and k != steps - 1
                if carries:
                    for h in range(channels):
                        lost = subtract * threshold + (F1 - subtract) * row[h]
                        stays = F1 - (F1 - subtract) * np.float32(row[h] >= threshold)
                        slopes[h] = (g * head[h] - carried[h] * lost) * slopes[h] + carried[h] * stays
                else:
                    for h in range(channels):
                        slopes[h] *= g * head[h]
                if k == 0:
                    for h in range(channels):
                        before[h] = start[n, h]
                else:
                    previous = charged[n, base - channels : base]
                    for h in range(channels):
                        before[h] = _reset(previous[h], np.float32(previous[h] >= threshold), threshold, subtract)
                by_tau = F0
                for h in range(channels):
                    by_tau -= slopes[h] * (row[h] - before[h])
                tau_grad[block] += by_tau
                by_bias, by_shift = bias_grad[block, base : base + channels], shift_grad[block, base : base + channels]
                for h in range(channels):
                    carried[h] = slopes[h] * decay
                    row[h] = slopes[h] * gain
                for h in range(channels):
                    by_bias[h] += row[h]
                    by_shift[h] += row[h] * arrives


@njit(parallel=True, nogil=True, cache=True, fastmath=FAST)
def run_neurons(currents, decay, gain, threshold, subtract, fade, rise, spikes):
    """Spikes (T x M) of M neurons at rest that receive ``currents`` (T x M, or 1 x M: the same at every step).

    After a step a threshold is multiplied by ``fade``, and raised by ``rise`` where its neuron fired.
    """
    steps, size = spikes.shape
    varied = len(currents) > 1
    for tile in prange((size + NEURONS - 1) // NEURONS):
        low, high = tile * NEURONS, min(tile * NEURONS + NEURONS, size)
        state, limit = np.zeros(NEURONS, np.float32), np.full(NEURONS, threshold, np.float32)
        for t in range(steps):
            row, out = currents[t if varied else 0, low:high], spikes[t, low:high]
            for h in range(high - low):
                v = decay * state[h] + gain * row[h]
                fired = np.float32(v >= limit[h])
                out[h] = fired
                state[h] = _reset(v, fired, limit[h], subtract)
                limit[h] = fade * limit[h] + rise * fired


@njit(parallel=True, nogil=True, cache=True, fastmath=FAST)
def run_neurons_backward(
    currents, grad, decay, gain, threshold, subtract, fade, rise, surrogate, alpha, current_grad
):  # fmt: skip
    """``current_grad`` (shape of ``currents``, zeroed) from ``grad``, that of the spikes (T x M), through all steps.

    The membranes are computed again, tile by tile, so that nothing but the currents has to be kept.
    """
    steps, size = grad.shape
    varied = len(currents) > 1
    for tile in prange((size + NEURONS - 1) // NEURONS):
        low, high = tile * NEURONS, min(tile * NEURONS + NEURONS, size)
        width = high - low
        above, limits = np.zeros((steps, NEURONS), np.float32), np.full((steps + 1, NEURONS), threshold, np.float32)
        state, slopes = np.zeros(NEURONS, np.float32), np.empty(NEURONS, np.float32)
        for t in range(steps):
            row = currents[t if varied else 0, low:high]
            for h in range(width):
                v = decay * state[h] + gain * row[h]
                fired = np.float32(v >= limits[t, h])
                above[t, h] = v - limits[t, h]
                state[h] = _reset(v, fired, limits[t, h], subtract)
                limits[t + 1, h] = fade * limits[t, h] + rise * fired
        carried, by_limit = np.zeros(NEURONS, np.float32), np.zeros(NEURONS, np.float32)
        for t in range(steps - 1, -1, -1):
            _slopes(surrogate, above[t], F0, alpha, slopes)
            given, out = grad[t, low:high], current_grad[t if varied else 0, low:high]
            for h in range(width):
                fired, limit = np.float32(above[t, h] >= F0), limits[t, h]
                lost = subtract * limit + (F1 - subtract) * (above[t, h] + limit)
                stays = F1 - (F1 - subtract) * fired
                by_above = (given[h] - carried[h] * lost + rise * by_limit[h]) * slopes[h]
                by_limit[h] = fade * by_limit[h] - by_above - carried[h] * subtract * fired
                by_charged = by_above + carried[h] * stays
                out[h] += by_charged * gain
                carried[h] = by_charged * decay


@njit(parallel=True, nogil=True, cache=True, fastmath=FAST)
def pack_spikes(current, reach, shift, bias, membrane, decay, gain, threshold, subtract, first_bit, packed):
    """Run the neuron over the steps in ``current`` (N x K*H) and write its spikes as bits from ``first_bit`` on.

    ``packed`` is N x ceil(bits / 8), little-endian within bytes, zeroed by the caller.
    """
    channels = membrane.shape[1]
    steps = current.shape[1] // channels
    for n in prange(current.shape[0]):
        arrives = reach[n]
        state = membrane[n]
        spikes = np.empty(channels, np.uint8)
        whole = channels // 8 if first_bit % 8 == 0 and channels % 8 == 0 else 0
        for k in range(steps):
            base = k * channels
            row = current[n, base : base + channels]
            own_shift, own_bias = shift[base : base + channels], bias[base : base + channels]
            for h in range(channels):
                v = decay * state[h] + gain * (row[h] + arrives * own_shift[h] + own_bias[h])
                state[h] = _reset(v, np.float32(v >= threshold), threshold, subtract)
                spikes[h] = np.uint8(v >= threshold)
            for b in range(whole):
                byte = np.uint8(0)
                for bit in range(8):
                    byte |= spikes[8 * b + bit] << np.uint8(bit)
                packed[n, ((first_bit + base) >> 3) + b] = byte
            for h in range(8 * whole, channels):
                bit = first_bit + base + h
                packed[n, bit >> 3] |= spikes[h] << np.uint8(bit & 7)
