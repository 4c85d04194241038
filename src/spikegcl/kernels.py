"""The CPU kernels (numba): what the profile said is worth fusing, and nothing else.

Every kernel here has a plain torch twin next to its caller (propagate.py, encoder.py, model.py); the twins run on
other devices and the tests hold both to the same numbers. Sums over nodes are taken in a fixed number of row blocks,
so results do not depend on the thread count.
"""
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import njit, prange, types
from numba.core import cgutils
from numba.extending import intrinsic

BLOCKS = 32  # row blocks of a sum over nodes
NEURONS = 256  # neurons run together through all steps
AHEAD = 8  # edges between asking for a row and using it
TILE = 64  # rows handled together, so that what is read by column and written by row stays in the first-level cache
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


@njit(inline="always")
def _first_row(indptr, block):
    """Where row block ``block`` of BLOCKS begins when each is to hold the same number of edges."""
    last = len(indptr) - 1
    return last if block == BLOCKS else np.searchsorted(indptr, indptr[last] * block // BLOCKS)


@intrinsic
def _prefetch(_, matrix, row):
    """Have the processor fetch the beginning of matrix[row], of whose rest it takes care itself."""

    def generate(context, builder, signature, arguments):
        kind, number = signature.args
        array = context.make_array(kind)(context, builder, arguments[0])
        shape = cgutils.unpack_tuple(builder, array.shape)
        strides = cgutils.unpack_tuple(builder, array.strides)
        place = [context.cast(builder, arguments[1], number, types.intp), context.get_constant(types.intp, 0)]
        address = cgutils.get_item_pointer2(context, builder, array.data, shape, strides, kind.layout, place)
        byte, word = ir.IntType(8).as_pointer(), ir.IntType(32)
        form = ir.FunctionType(ir.VoidType(), [byte, word, word, word])
        fetch = builder.module.declare_intrinsic("llvm.prefetch", [byte], form)
        to_read, keep, data = word(0), word(3), word(1)
        builder.call(fetch, [builder.bitcast(address, byte), to_read, keep, data])
        return context.get_dummy_value()

    return types.void(matrix, row), generate


@njit(parallel=True, nogil=True, cache=True, fastmath=_FAST)
def spmm(indptr, indices, values, x, out):
    """out[i] = sum over e in row i of values[e] * x[indices[e]]; x and out are N x W.

    Four edges at a time: the target row is then read and written a quarter as often. Rows of x lie anywhere in memory,
    so they are asked for AHEAD edges before they are used.
    """
    width, last = x.shape[1], len(indices) - 1
    for block in prange(BLOCKS):
        for i in range(_first_row(indptr, block), _first_row(indptr, block + 1)):
            begin, end = indptr[i], indptr[i + 1]
            whole = begin + (end - begin) // 4 * 4
            for c in range(width):
                out[i, c] = _F0
            for e in range(begin, whole, 4):
                for k in range(4):
                    _prefetch(x, indices[min(e + AHEAD + k, last)])
                v0, v1, v2, v3 = values[e], values[e + 1], values[e + 2], values[e + 3]
                j0, j1, j2, j3 = indices[e], indices[e + 1], indices[e + 2], indices[e + 3]
                for c in range(width):
                    out[i, c] += v0 * x[j0, c] + v1 * x[j1, c] + v2 * x[j2, c] + v3 * x[j3, c]
            for e in range(whole, end):
                _prefetch(x, indices[min(e + AHEAD, last)])
                v, j = values[e], indices[e]
                for c in range(width):
                    out[i, c] += v * x[j, c]


@njit(parallel=True, nogil=True, cache=True)
def nonzero_rows(x, found):
    """found[i] = whether row i of x is not all zero."""
    for i in prange(x.shape[0]):
        c = 0
        while c < x.shape[1] and x[i, c] == _F0:
            c += 1
        found[i] = c < x.shape[1]


@njit(parallel=True, nogil=True, cache=True)
def replace_rows(indices, row, out):
    """out[e] = row[indices[e]]."""
    for e in prange(len(indices)):
        out[e] = row[indices[e]]


@njit(parallel=True, nogil=True, cache=True)
def keep_edges(indptr, indices, names, key, limit, kept):
    """kept[e] = 1 where the undirected edge survives (self-loops always do), 0 where it is dropped.

    Here as below ``names[n]`` is the number by which row n takes part in random choices.
    """
    for n in prange(len(indptr) - 1):
        for e in range(indptr[n], indptr[n + 1]):
            i, j = names[n], names[indices[e]]
            survives = i == j or _hash(_row_key(key, min(i, j)), max(i, j)) >= limit
            kept[e] = _F1 if survives else _F0


@njit(parallel=True, nogil=True, cache=True)
def kept_degrees(indptr, indices, weights, nodes, loops, key, limit, out):
    """out[n] = sum of the weights of the edges of ``nodes[n]`` that survive, in their order; with ``loops`` of A + I.

    ``weights`` may be empty: every edge then weighs 1. The same edges survive as in :func:`keep_edges`.
    """
    for n in prange(len(nodes)):
        i = nodes[n]
        total, looped = 0.0, not loops
        for e in range(indptr[i], indptr[i + 1]):
            j = indices[e]
            if j > i and not looped:
                total += 1.0
                looped = True
            if limit == 0 or _hash(_row_key(key, min(i, j)), max(i, j)) >= limit:
                total += weights[e] if len(weights) else 1.0
        out[n] = total if looped else total + 1.0


@njit(nogil=True, cache=True)
def mark_neighbours(indptr, indices, nodes, marked):
    """marked[j] = True for every neighbour j of ``nodes``."""
    for i in nodes:
        for e in range(indptr[i], indptr[i + 1]):
            marked[indices[e]] = True


@njit(nogil=True, cache=True)
def cut_rows(indptr, indices, weights, nodes, inner, loops, place, starts, columns, values):
    """Rows of A, with ``loops`` of A + I, as a CSR whose columns are ``place[j]``; entries keep their order.

    ``place`` is negative for columns that are left out. Beyond the first ``inner`` rows also those are left out whose
    place is not below ``inner``, apart from the loop. ``starts`` has len(nodes) + 1 places; ``columns`` and ``values``
    have room for all entries of the rows. ``weights`` may be empty: every edge then weighs 1.
    """
    at = 0
    starts[0] = 0
    for n in range(len(nodes)):
        i = nodes[n]
        looped = not loops
        for e in range(indptr[i], indptr[i + 1]):
            j = indices[e]
            if j > i and not looped:
                columns[at], values[at] = place[i], _F1
                at += 1
                looped = True
            if place[j] >= 0 and (n < inner or place[j] < inner):
                columns[at], values[at] = place[j], (weights[e] if len(weights) else _F1)
                at += 1
        if not looped:
            columns[at], values[at] = place[i], _F1
            at += 1
        starts[n + 1] = at


@njit(nogil=True, cache=True)
def stream_nodes(indptr, indices, capacity, member, sizes):
    """Move every node to the part that holds most of its neighbours, weighed by the room left there.

    Linear deterministic greedy (Stanton and Kliot, KDD 2012); ``member`` (N) is -1 for nodes not placed yet, so that
    further passes start from the last. ``sizes`` counts the nodes of every part.
    """
    shared = np.zeros(len(sizes), np.int64)
    for i in range(len(member)):
        if member[i] >= 0:
            sizes[member[i]] -= 1
        for e in range(indptr[i], indptr[i + 1]):
            owner = member[indices[e]]
            if owner >= 0:
                shared[owner] += 1
        best, best_score = -1, -1.0
        for part in range(len(sizes)):
            score = (shared[part] + 1e-6) * (1 - sizes[part] / capacity)
            if score > best_score and sizes[part] < capacity:
                best, best_score = part, score
        for e in range(indptr[i], indptr[i + 1]):
            owner = member[indices[e]]
            if owner >= 0:
                shared[owner] = 0
        member[i] = best
        sizes[best] += 1


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


@njit(parallel=True, nogil=True, cache=True)
def take_columns(by_column, order, names, key, limit, scale, out):
    """out[n, p] = by_column[order[p], n], dropped and scaled. ``by_column`` is dense d x N, ``out`` N x len(order)."""
    count = out.shape[0]
    lowest = np.uint32(limit)
    for tile in prange((count + TILE - 1) // TILE):
        first = tile * TILE
        rows = min(TILE, count - first)
        keys = np.empty(TILE, np.uint32)
        for n in range(rows):
            keys[n] = _row_key(key, names[first + n])
        picked = np.empty(TILE, np.float32)
        for p in range(len(order)):
            source = by_column[order[p], first : first + rows]
            column = np.uint32(order[p])
            for n in range(rows):
                picked[n] = source[n] * scale if _hash(keys[n], column) >= lowest else _F0
            for n in range(rows):
                out[first + n, p] = picked[n]


@njit(parallel=True, nogil=True, cache=True)
def scatter_columns(indptr, indices, data, order, names, key, limit, scale, out):
    """The same from sparse columns (CSC): out (N x len(order), zeroed) receives the entries that stay."""
    for p in prange(len(order)):
        column = order[p]
        for e in range(indptr[column], indptr[column + 1]):
            n = indices[e]
            if limit == 0 or _hash(_row_key(key, names[n]), column) >= limit:
                out[n, p] = data[e] * scale


@njit(nogil=True, cache=True)
def rows_of_columns(indptr, indices, data, order, names, key, limit, scale, starts, positions, values):
    """Entries of the columns in ``order`` that stay, arranged by row: a CSR with ``positions`` into ``order``.

    ``starts`` (N + 2, zeroed) ends as the row starts in its first N + 1 places; the others have room for all entries.
    """
    for p in range(len(order)):
        column = order[p]
        for e in range(indptr[column], indptr[column + 1]):
            n = indices[e]
            if limit == 0 or _hash(_row_key(key, names[n]), column) >= limit:
                starts[n + 2] += 1
    for n in range(2, len(starts)):
        starts[n] += starts[n - 1]
    for p in range(len(order)):
        column = order[p]
        for e in range(indptr[column], indptr[column + 1]):
            n = indices[e]
            if limit == 0 or _hash(_row_key(key, names[n]), column) >= limit:
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
def columns_times_grad(indptr, indices, data, order, step_of, grad, names, key, limit, scale, out):
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
            if limit == 0 or _hash(_row_key(key, names[n]), column) >= limit:
                v = data[e] * scale
                source = grad[n, base : base + channels]
                for c in range(channels):
                    target[c] += v * source[c]


# ---------------------------------------------------------------------- between two layers: activation and dropout


@njit(inline="always")
def _kept(key, row, lowest, scale, kept):
    """kept[h] = scale where channel h of this row survives, 0 where it is dropped."""
    row_key = _row_key(key, row)
    for h in range(len(kept)):
        kept[h] = scale if _hash(row_key, h) >= lowest else _F0


@njit(parallel=True, nogil=True, cache=True, fastmath=_FAST)
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
                            x = x if x > _F0 else _exp(x) - _F1
                        elif kind == RELU:
                            x = max(x, _F0)
                        x *= kept[h]
                        row[h] = x
                    if n < own:
                        for h in range(channels):
                            own_sums[h] += row[h]
                            own_squares[h] += row[h] * row[h]
            for c in range(width):
                total[block, c] += sums[c]
                square[block, c] += squares[c]
                sums[c] = squares[c] = _F0


@njit(parallel=True, nogil=True, cache=True, fastmath=_FAST)
def activate_backward(h_out, grad, reach, offset, slope, kind, names, keys, limit, scale, own, bias_grad, shift_grad):
    """In place: grad becomes the gradient before the activation.

    ``offset + slope * h`` adds what flows back through the statistics of the first ``own`` rows. Block sums of the
    result, plain and weighted by ``reach``, are the gradients of bias and shift (BLOCKS x K*H, zeroed).
    """
    count = grad.shape[0]
    channels = grad.shape[1] // len(keys)
    inverse = _F1 / scale
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
                        g = g if y > _F0 else g * (y * inverse + _F1)
                    elif kind == RELU:
                        g = g if y > _F0 else _F0
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
            s = _F1 / (_F1 + _exp(-alpha * (charged[h] - threshold)))
            slopes[h] = alpha * s * (_F1 - s)
    elif kind == TRIANGLE:
        for h in range(channels):
            slopes[h] = alpha * max(_F1 - abs(alpha * (charged[h] - threshold)), _F0)
    elif kind == ARCTAN:
        for h in range(channels):
            z = np.float32(1.5707963267948966) * alpha * (charged[h] - threshold)
            slopes[h] = alpha * np.float32(0.5) / (_F1 + z * z)
    elif kind == SUPERSPIKE:
        for h in range(channels):
            z = _F1 + alpha * abs(charged[h] - threshold)
            slopes[h] = _F1 / (z * z)
    elif kind == RECTANGLE:
        for h in range(channels):
            slopes[h] = alpha if abs(alpha * (charged[h] - threshold)) < np.float32(0.5) else _F0
    else:
        width = _F1 / alpha
        for h in range(channels):
            x = charged[h] - threshold
            tails = _normal(x - width, np.float32(6) * width) + _normal(x + width, np.float32(6) * width)
            slopes[h] = np.float32(1.15) * _normal(x, width) - np.float32(0.15) * tails


# All neurons are V = decay V' + gain I: IF has (1, 1), LIF and PLIF have (1 - 1/tau, 1/tau), so that tau = 1 forgets
# exactly. A reset by subtraction takes ``threshold`` from the membrane, a reset to zero all of it; ``subtract`` is 1 or
# 0 as a number, because loops without branches vectorise.


@njit(inline="always")
def _reset(charged, fired, threshold, subtract):
    return charged - fired * (subtract * threshold + (_F1 - subtract) * charged)


@njit(parallel=True, nogil=True, cache=True, fastmath=_FAST)
def score_spikes(current, reach, shift, bias, membrane, decay, gain, threshold, subtract, head, scores):
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
                v = decay * state[h] + gain * (row[h] + arrives * own_shift[h] + own_bias[h])
                fired = np.float32(v >= threshold)
                row[h] = v
                state[h] = _reset(v, fired, threshold, subtract)
                total += fired * head[h]
            scores[n, k] = total


@njit(parallel=True, nogil=True, cache=True, fastmath=_FAST)
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
                if block_length == 1 and g == _F0:
                    for h in range(channels):
                        row[h] = _F0
                    continue
                _slopes(surrogate, row, threshold, alpha, slopes)
                for h in range(channels):
                    by_head[h] += g * np.float32(row[h] >= threshold)
                carries = (k + 1) % block_length != 0 and k != steps - 1
                if carries:
                    for h in range(channels):
                        lost = subtract * threshold + (_F1 - subtract) * row[h]
                        stays = _F1 - (_F1 - subtract) * np.float32(row[h] >= threshold)
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
                by_tau = _F0
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


@njit(parallel=True, nogil=True, cache=True, fastmath=_FAST)
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


@njit(parallel=True, nogil=True, cache=True, fastmath=_FAST)
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
            _slopes(surrogate, above[t], _F0, alpha, slopes)
            given, out = grad[t, low:high], current_grad[t if varied else 0, low:high]
            for h in range(width):
                fired, limit = np.float32(above[t, h] >= _F0), limits[t, h]
                lost = subtract * limit + (_F1 - subtract) * (above[t, h] + limit)
                stays = _F1 - (_F1 - subtract) * fired
                by_above = (given[h] - carried[h] * lost + rise * by_limit[h]) * slopes[h]
                by_limit[h] = fade * by_limit[h] - by_above - carried[h] * subtract * fired
                by_charged = by_above + carried[h] * stays
                out[h] += by_charged * gain
                carried[h] = by_charged * decay


@njit(parallel=True, nogil=True, cache=True, fastmath=_FAST)
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
