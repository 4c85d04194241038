"""The CPU kernels (numba) of products with the graph and its features: what the profile said is worth fusing, no more.

Kernels of products, here and in fused_kernels.py, have a plain torch twin next to their caller (propagate.py,
fused.py); the twins run on other devices and the tests hold both to the same numbers. Those that only prepare a graph
have none. Sums over nodes are taken in a fixed number of row blocks, so results do not depend on the thread count.
"""
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import njit, prange, types
from numba.core import cgutils
from numba.extending import intrinsic

BLOCKS = 32  # row blocks of a sum over nodes
AHEAD = 8  # edges between asking for a row and using it
TILE = 64  # rows handled together, so that what is read by column and written by row stays in the first-level cache
FAST = {"contract", "nsz", "arcp", "nnan", "ninf", "reassoc"}
F0, F1 = np.float32(0), np.float32(1)


@njit(inline="always")
def _mix(x):
    x = np.uint32(x)
    x ^= x >> np.uint32(16)
    x = np.uint32(x * np.uint32(0x7FEB352D))
    x ^= x >> np.uint32(15)
    x = np.uint32(x * np.uint32(0x846CA68B))
    return np.uint32(x ^ (x >> np.uint32(16)))


@njit(inline="always")
def row_key(key, row):
    return _mix(_mix(np.uint32(row)) ^ np.uint32(key))


@njit(inline="always")
def hash_of(key, column):
    return _mix(np.uint32(key + np.uint32(np.uint32(column) * np.uint32(0x9E3779B9))))


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


@njit(parallel=True, nogil=True, cache=True, fastmath=FAST)
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
                out[i, c] = F0
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
        while c < x.shape[1] and x[i, c] == F0:
            c += 1
        found[i] = c < x.shape[1]


@njit(parallel=True, nogil=True, cache=True)
def keep_edges(indptr, indices, rows, names, key, limit, kept):
    """kept[e] = 1 where the undirected edge survives (self-loops always do), 0 where it is dropped.

    ``rows[n]`` and ``names[j]`` are the numbers by which row n and column j take part in random choices.
    """
    for n in prange(len(indptr) - 1):
        for e in range(indptr[n], indptr[n + 1]):
            i, j = rows[n], names[indices[e]]
            survives = i == j or hash_of(row_key(key, min(i, j)), max(i, j)) >= limit
            kept[e] = F1 if survives else F0


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
            if limit == 0 or hash_of(row_key(key, min(i, j)), max(i, j)) >= limit:
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
                columns[at], values[at] = place[i], F1
                at += 1
                looped = True
            if place[j] >= 0 and (n < inner or place[j] < inner):
                columns[at], values[at] = place[j], (weights[e] if len(weights) else F1)
                at += 1
        if not looped:
            columns[at], values[at] = place[i], F1
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


@njit(parallel=True, nogil=True, cache=True, fastmath=FAST)
def sddmm(indptr, indices, g, x, out):
    """out[e] = <g[i], x[j]> for every stored edge e = (i, j): the gradient of spmm with respect to its values."""
    for i in prange(len(indptr) - 1):
        for e in range(indptr[i], indptr[i + 1]):
            j = indices[e]
            total = F0
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
            keys[n] = row_key(key, names[first + n])
        picked = np.empty(TILE, np.float32)
        for p in range(len(order)):
            source = by_column[order[p], first : first + rows]
            column = np.uint32(order[p])
            for n in range(rows):
                picked[n] = source[n] * scale if hash_of(keys[n], column) >= lowest else F0
            for n in range(rows):
                out[first + n, p] = picked[n]


@njit(parallel=True, nogil=True, cache=True)
def scatter_columns(indptr, indices, data, order, names, key, limit, scale, out):
    """The same from sparse columns (CSC): out (N x len(order), zeroed) receives the entries that stay."""
    for p in prange(len(order)):
        column = order[p]
        for e in range(indptr[column], indptr[column + 1]):
            n = indices[e]
            if limit == 0 or hash_of(row_key(key, names[n]), column) >= limit:
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
            if limit == 0 or hash_of(row_key(key, names[n]), column) >= limit:
                starts[n + 2] += 1
    for n in range(2, len(starts)):
        starts[n] += starts[n - 1]
    for p in range(len(order)):
        column = order[p]
        for e in range(indptr[column], indptr[column + 1]):
            n = indices[e]
            if limit == 0 or hash_of(row_key(key, names[n]), column) >= limit:
                at = starts[n + 1]
                starts[n + 1] += 1
                positions[at] = p
                values[at] = data[e] * scale


@njit(parallel=True, nogil=True, cache=True, fastmath=FAST)
def rows_times_weight(starts, positions, values, step_of, weight, out):
    """out[n, s] = sum of x[n, p] * weight[p] over the entries of row n whose position p has step s.

    ``weight`` is P x H for the P positions at hand, ``out`` N x K*H.
    """
    channels = weight.shape[1]
    for n in prange(out.shape[0]):
        for c in range(out.shape[1]):
            out[n, c] = F0
        for e in range(starts[n], starts[n + 1]):
            p = positions[e]
            base = step_of[p] * channels
            target = out[n, base : base + channels]
            source = weight[p]
            v = values[e]
            for c in range(channels):
                target[c] += v * source[c]


@njit(parallel=True, nogil=True, cache=True, fastmath=FAST)
def columns_times_grad(indptr, indices, data, order, step_of, grad, names, key, limit, scale, out):
    """The gradient of :func:`rows_times_weight` for the weight: out[p] = sum over n of x[n, p] * grad[n, step of p]."""
    channels = out.shape[1]
    for p in prange(len(order)):
        column = order[p]
        base = step_of[p] * channels
        target = out[p]
        for c in range(channels):
            target[c] = F0
        for e in range(indptr[column], indptr[column + 1]):
            n = indices[e]
            if limit == 0 or hash_of(row_key(key, names[n]), column) >= limit:
                v = data[e] * scale
                source = grad[n, base : base + channels]
                for c in range(channels):
                    target[c] += v * source[c]
