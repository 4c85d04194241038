"""The CPU kernels (numba): what the profile said is worth fusing, and nothing else.

Every kernel here has a plain torch twin next to its caller (propagate.py, encoder.py, model.py); the twins run on
other devices and the tests hold both to the same numbers. Sums over nodes are taken in a fixed number of row blocks,
so results do not depend on the thread count.
"""
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import numpy as np
from numba import njit, prange

BLOCKS = 32
_FAST = {"contract", "nsz", "arcp", "nnan", "ninf", "reassoc"}
_F0, _F1 = np.float32(0), np.float32(1)

IDENTITY, RELU, ELU = 0, 1, 2
ACTIVATIONS = {"none": IDENTITY, "relu": RELU, "elu": ELU}


@njit(inline="always")
def _mix(x):
    x = np.uint32(x)
    x ^= x >> np.uint32(16)
    x = np.uint32(x * np.uint32(0x7FEB352D))
    x ^= x >> np.uint32(15)
    x = np.uint32(x * np.uint32(0x846CA68B))
    return np.uint32(x ^ (x >> np.uint32(16)))


@njit(inline="always")
def _row_key(key, row):
    return _mix(_mix(np.uint32(row)) ^ np.uint32(key))


@njit(inline="always")
def _hash(row_key, column):
    return _mix(np.uint32(row_key + np.uint32(np.uint32(column) * np.uint32(0x9E3779B9))))


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
    p = p * r * r + r + _F1
    return p * np.int32((np.int32(k) + np.int32(127)) << np.int32(23)).view(np.float32)


# ---------------------------------------------------------------------------------------------- sparse products


@njit(parallel=True, nogil=True, cache=True, fastmath=_FAST)
def spmm(indptr, indices, values, x, out):
    """out[i] = sum over e in row i of values[e] * x[indices[e]]; x and out are N x W."""
    width = x.shape[1]
    for i in prange(out.shape[0]):
        target = out[i]
        for c in range(width):
            target[c] = _F0
        for e in range(indptr[i], indptr[i + 1]):
            v = values[e]
            source = x[indices[e]]
            for c in range(width):
                target[c] += v * source[c]


@njit(parallel=True, nogil=True, cache=True)
def keep_edges(indptr, indices, key, limit, kept):
    """kept[e] = 1 where the undirected edge survives (self-loops always do), 0 where it is dropped."""
    for i in prange(len(indptr) - 1):
        for e in range(indptr[i], indptr[i + 1]):
            j = indices[e]
            low, high = min(i, j), max(i, j)
            survives = i == j or _hash(_row_key(key, low), high) >= limit
            kept[e] = _F1 if survives else _F0


@njit(parallel=True, nogil=True, cache=True)
def row_sums(indptr, weights, out):
    """out[i] = sum of the stored weights of row i."""
    for i in prange(len(indptr) - 1):
        total = 0.0
        for e in range(indptr[i], indptr[i + 1]):
            total += weights[e]
        out[i] = total


@njit(parallel=True, nogil=True, cache=True)
def scale_edges(indptr, indices, weights, left, right, out):
    """out[e] = left[i] * weights[e] * right[j] for every stored edge e = (i, j)."""
    for i in prange(len(indptr) - 1):
        for e in range(indptr[i], indptr[i + 1]):
            out[e] = left[i] * weights[e] * right[indices[e]]


@njit(parallel=True, nogil=True, cache=True, fastmath=_FAST)
def sddmm(indptr, indices, g, x, out):
    """out[e] = <g[i], x[j]> for every stored edge e = (i, j): the gradient of spmm with respect to its values."""
    for i in prange(len(indptr) - 1):
        for e in range(indptr[i], indptr[i + 1]):
            j = indices[e]
            total = _F0
            for c in range(x.shape[1]):
                total += g[i, c] * x[j, c]
            out[e] = total


# ---------------------------------------------------------------- feature columns, picked, dropped and multiplied
#
# Features are stored by column (CSC, or dense d x N), because a view picks columns: ``order`` lists those of a group.
# ``limit`` is the hash below which an entry is dropped (0: none), ``scale`` the factor of those that stay.

TILE = 64  # rows handled together, so that reading columns and writing rows both stay in the first-level cache


@njit(parallel=True, nogil=True, cache=True)
def take_columns(by_column, order, key, limit, scale, out):
    """out[n, p] = by_column[order[p], n], dropped and scaled. ``by_column`` is dense d x N, ``out`` N x len(order)."""
    count = out.shape[0]
    lowest = np.uint32(limit)
    for tile in prange((count + TILE - 1) // TILE):
        first = tile * TILE
        rows = min(TILE, count - first)
        keys = np.empty(TILE, np.uint32)
        for n in range(rows):
            keys[n] = _row_key(key, first + n)
        picked = np.empty(TILE, np.float32)
        for p in range(len(order)):
            source = by_column[order[p], first : first + rows]
            column = np.uint32(order[p])
            for n in range(rows):
                picked[n] = source[n] * scale if _hash(keys[n], column) >= lowest else _F0
            for n in range(rows):
                out[first + n, p] = picked[n]


@njit(parallel=True, nogil=True, cache=True)
def scatter_columns(indptr, indices, data, order, key, limit, scale, out):
    """The same from sparse columns (CSC): out (N x len(order), zeroed) receives the entries that stay."""
    for p in prange(len(order)):
        column = order[p]
        for e in range(indptr[column], indptr[column + 1]):
            n = indices[e]
            if limit == 0 or _hash(_row_key(key, n), column) >= limit:
                out[n, p] = data[e] * scale


@njit(nogil=True, cache=True)
def rows_of_columns(indptr, indices, data, order, key, limit, scale, starts, positions, values):
    """Entries of the columns in ``order`` that stay, arranged by row: a CSR with ``positions`` into ``order``.

    ``starts`` (N + 2, zeroed) ends as the row starts in its first N + 1 places; the others have room for all entries.
    """
    for p in range(len(order)):
        column = order[p]
        for e in range(indptr[column], indptr[column + 1]):
            n = indices[e]
            if limit == 0 or _hash(_row_key(key, n), column) >= limit:
                starts[n + 2] += 1
    for n in range(2, len(starts)):
        starts[n] += starts[n - 1]
    for p in range(len(order)):
        column = order[p]
        for e in range(indptr[column], indptr[column + 1]):
            n = indices[e]
            if limit == 0 or _hash(_row_key(key, n), column) >= limit:
                at = starts[n + 1]
                starts[n + 1] += 1
                positions[at] = p
                values[at] = data[e] * scale


@njit(parallel=True, nogil=True, cache=True, fastmath=_FAST)
def rows_times_weight(starts, positions, values, step_of, weight, out):
    """out[n, s] = sum of x[n, p] * weight[p] over the entries of row n whose position p has step s.

    ``weight`` is P x H for the P positions at hand, ``out`` N x K*H.
    """
    channels = weight.shape[1]
    for n in prange(out.shape[0]):
        for c in range(out.shape[1]):
            out[n, c] = _F0
        for e in range(starts[n], starts[n + 1]):
            p = positions[e]
            base = step_of[p] * channels
            target = out[n, base : base + channels]
            source = weight[p]
            v = values[e]
            for c in range(channels):
                target[c] += v * source[c]


@njit(parallel=True, nogil=True, cache=True, fastmath=_FAST)
def columns_times_grad(indptr, indices, data, order, step_of, grad, key, limit, scale, out):
    """The gradient of :func:`rows_times_weight` for the weight: out[p] = sum over n of x[n, p] * grad[n, step of p]."""
    channels = out.shape[1]
    for p in prange(len(order)):
        column = order[p]
        base = step_of[p] * channels
        target = out[p]
        for c in range(channels):
            target[c] = _F0
        for e in range(indptr[column], indptr[column + 1]):
            n = indices[e]
            if limit == 0 or _hash(_row_key(key, n), column) >= limit:
                v = data[e] * scale
                source = grad[n, base : base + channels]
                for c in range(channels):
                    target[c] += v * source[c]


# ---------------------------------------------------------------------- between two layers: activation and dropout


@njit(parallel=True, nogil=True, cache=True, fastmath=_FAST)
def activate(a, reach, shift, bias, kind, keys, limit, scale, total, square):
    """In place: a = dropout(activation(a + reach x shift + bias)); block sums of a and a^2 per column.

    a is N x K*H for K steps; ``keys`` holds one dropout key a step; ``total`` and ``square`` are float64, BLOCKS x K*H,
    zeroed.
    """
    count = a.shape[0]
    channels = a.shape[1] // len(keys)
    lowest = np.uint32(limit)
    for block in prange(BLOCKS):
        for n in range(count * block // BLOCKS, count * (block + 1) // BLOCKS):
            arrives = reach[n]
            for k in range(len(keys)):
                row_key = _row_key(keys[k], n)
                base = k * channels
                row = a[n, base : base + channels]
                own_shift, own_bias = shift[base : base + channels], bias[base : base + channels]
                own_total, own_square = total[block, base : base + channels], square[block, base : base + channels]
                for h in range(channels):
                    x = row[h] + arrives * own_shift[h] + own_bias[h]
                    if kind == ELU:
                        x = x if x > _F0 else _exp(x) - _F1
                    elif kind == RELU:
                        x = max(x, _F0)
                    x = x * scale if _hash(row_key, h) >= lowest else _F0
                    row[h] = x
                    wide = np.float64(x)  # single precision would cancel where the variance is small
                    own_total[h] += wide
                    own_square[h] += wide * wide


@njit(parallel=True, nogil=True, cache=True, fastmath=_FAST)
def activate_backward(h_out, grad, reach, offset, slope, kind, keys, limit, scale, bias_grad, shift_grad):
    """In place: grad becomes the gradient before the activation.

    ``offset + slope * h`` adds what flows back through the batch statistics. Block sums of the result, plain and
    weighted by ``reach``, are the gradients of bias and shift (BLOCKS x K*H, zeroed).
    """
    count = grad.shape[0]
    channels = grad.shape[1] // len(keys)
    inverse = _F1 / scale
    lowest = np.uint32(limit)
    for block in prange(BLOCKS):
        for n in range(count * block // BLOCKS, count * (block + 1) // BLOCKS):
            arrives = reach[n]
            for k in range(len(keys)):
                row_key = _row_key(keys[k], n)
                base = k * channels
                row, y_row = grad[n, base : base + channels], h_out[n, base : base + channels]
                own_offset, own_slope = offset[base : base + channels], slope[base : base + channels]
                by_bias, by_shift = bias_grad[block, base : base + channels], shift_grad[block, base : base + channels]
                for h in range(channels):
                    y = y_row[h]
                    g = (row[h] + own_offset[h] + own_slope[h] * y) * scale
                    if kind == ELU:
                        g = g if y > _F0 else g * (y * inverse + _F1)
                    elif kind == RELU:
                        g = g if y > _F0 else _F0
                    g = g if _hash(row_key, h) >= lowest else _F0
                    row[h] = g
                    by_bias[h] += g
                    by_shift[h] += g * arrives


# ------------------------------------------------------------------------------------------- the spiking neuron

SIGMOID, TRIANGLE, ARCTAN, MULTI_GAUSSIAN, SUPERSPIKE = 0, 1, 2, 3, 4
SURROGATES = {
    "sigmoid": SIGMOID,
    "triangle": TRIANGLE,
    "arctan": ARCTAN,
    "multi-gaussian": MULTI_GAUSSIAN,
    "superspike": SUPERSPIKE,
}


@njit(inline="always")
def _normal(x, sigma):
    z = x / sigma
    return _exp(np.float32(-0.5) * z * z) / (sigma * np.float32(2.5066282746310002))


@njit(inline="always")
def _surrogate(kind, x, alpha):
    if kind == SIGMOID:
        s = _F1 / (_F1 + _exp(-alpha * x))
        return alpha * s * (_F1 - s)
    if kind == TRIANGLE:
        return alpha * max(_F1 - abs(alpha * x), _F0)
    if kind == ARCTAN:
        z = np.float32(1.5707963267948966) * alpha * x
        return alpha * np.float32(0.5) / (_F1 + z * z)
    if kind == SUPERSPIKE:
        z = _F1 + alpha * abs(x)
        return _F1 / (z * z)
    width = _F1 / alpha
    tails = _normal(x - width, np.float32(6) * width) + _normal(x + width, np.float32(6) * width)
    return np.float32(1.15) * _normal(x, width) - np.float32(0.15) * tails


@njit(inline="always")
def _charge(current, membrane, leaky, rate):
    return membrane + (current - membrane) * rate if leaky else membrane + current


@njit(inline="always")
def _reset(charged, fired, threshold, subtract):
    return charged - threshold * fired if subtract else charged * (_F1 - fired)


@njit(parallel=True, nogil=True, cache=True, fastmath=_FAST)
def score_spikes(current, reach, shift, bias, membrane, leaky, rate, threshold, subtract, head, scores):
    """Run the neuron over K steps and score its spikes: scores[n, k] = <spikes, head>.

    ``current`` (N x K*H) becomes the charged membrane before reset, ``membrane`` (N x H) the one after the last step.
    """
    channels = membrane.shape[1]
    for n in prange(current.shape[0]):
        arrives = reach[n]
        state = membrane[n]
        for k in range(scores.shape[1]):
            base = k * channels
            row = current[n, base : base + channels]
            own_shift, own_bias = shift[base : base + channels], bias[base : base + channels]
            total = _F0
            for h in range(channels):
                v = _charge(row[h] + arrives * own_shift[h] + own_bias[h], state[h], leaky, rate)
                fired = np.float32(v >= threshold)
                row[h] = v
                state[h] = _reset(v, fired, threshold, subtract)
                total += fired * head[h]
            scores[n, k] = total


@njit(parallel=True, nogil=True, cache=True, fastmath=_FAST)
def score_spikes_backward(
    charged, start, grad_scores, block_length, leaky, rate, threshold, subtract, head, surrogate, alpha, reach,
    out, head_grad, bias_grad, shift_grad, tau_grad,
):  # fmt: skip
    """Gradients of :func:`score_spikes`, back in time within blocks of ``block_length`` steps.

    ``out`` (N x K*H, may be ``charged`` itself) receives the gradient of the current; the ``*_grad`` arrays are block
    sums (BLOCKS x ...), zeroed. ``rate`` is 1 / tau.
    """
    channels = len(head)
    steps = grad_scores.shape[1]
    count = charged.shape[0]
    for block in prange(BLOCKS):
        carried = np.zeros(channels, np.float32)
        by_head = head_grad[block]
        for n in range(count * block // BLOCKS, count * (block + 1) // BLOCKS):
            arrives = reach[n]
            for k in range(steps - 1, -1, -1):
                base = k * channels
                g = grad_scores[n, k]
                row, result = charged[n, base : base + channels], out[n, base : base + channels]
                if block_length == 1 and g == _F0:
                    for h in range(channels):
                        result[h] = _F0
                    continue
                carry = _F0 if (k + 1) % block_length == 0 or k == steps - 1 else _F1
                previous = start[n] if k == 0 else charged[n, base - channels : base]
                first = _F1 if k == 0 else _F0
                by_bias, by_shift = bias_grad[block, base : base + channels], shift_grad[block, base : base + channels]
                by_tau = _F0
                for h in range(channels):
                    v = row[h]
                    fired = np.float32(v >= threshold)
                    after = carried[h] * carry
                    by_reset = -threshold if subtract else -v
                    through = _F1 if subtract else _F1 - fired
                    slope = _surrogate(surrogate, v - threshold, alpha)
                    gv = (g * head[h] + after * by_reset) * slope + after * through
                    gi = gv
                    if leaky:
                        p = previous[h]
                        before = first * p + (_F1 - first) * _reset(p, np.float32(p >= threshold), threshold, subtract)
                        by_tau -= gv * (v - before)
                        gi = gv * rate
                        carried[h] = gv - gi
                    else:
                        carried[h] = gv
                    result[h] = gi
                    by_head[h] += g * fired
                    by_bias[h] += gi
                    by_shift[h] += gi * arrives
                tau_grad[block] += by_tau * rate


@njit(parallel=True, nogil=True, cache=True, fastmath=_FAST)
def pack_spikes(current, reach, shift, bias, membrane, leaky, rate, threshold, subtract, first_bit, packed):
    """Run the neuron over the steps in ``current`` (N x K*H) and write its spikes as bits from ``first_bit`` on.

    ``packed`` is N x ceil(bits / 8), little-endian within bytes, zeroed by the caller.
    """
    channels = membrane.shape[1]
    steps = current.shape[1] // channels
    for n in prange(current.shape[0]):
        arrives = reach[n]
        state = membrane[n]
        spikes = np.empty(channels, np.uint8)
        for k in range(steps):
            base = k * channels
            row = current[n, base : base + channels]
            own_shift, own_bias = shift[base : base + channels], bias[base : base + channels]
            for h in range(channels):
                v = _charge(row[h] + arrives * own_shift[h] + own_bias[h], state[h], leaky, rate)
                fired = np.float32(v >= threshold)
                state[h] = _reset(v, fired, threshold, subtract)
                spikes[h] = np.uint8(v >= threshold)
            for h in range(channels):
                bit = first_bit + base + h
                packed[n, bit >> 3] |= spikes[h] << np.uint8(bit & 7)
