"""Arithmetic on packed bits: popcount, Hamming distance and linear maps, without ever unpacking.

A code of ``bits`` bits is a row of ceil(bits / 8) bytes, bit i in byte i // 8 at position i % 8 (numpy's
``bitorder="little"``), zero padded. Rows are packed one by one, so no row bleeds into the next.

A product of bits with a matrix needs no multiplication ("masked summation"): bit i either adds row i of the matrix
or does not. A byte selects one of 256 sums of eight rows, so one table look-up and one addition replace eight
multiply-adds, and the bits are read packed, 32 times less memory than float32. Against a float32 BLAS product on rows
that are *already* unpacked, from 1375 x 1600 x 10 to 90941 x 512 x 40, one thread each, this measured 2 to 5 times
faster (the transpose 1.2 to 4 times); unpacking first costs as much again.

Every sum is taken in an order fixed by the shapes alone: results are the same bits for any number of threads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from spikegcl.errors import CodesError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Packed = NDArray[np.uint8]
    Floats = NDArray[np.float32]

# Columns summed by one vector operation. Up to 8 columns a narrow vector wastes less (1.2 to 1.5 times faster than 16);
# beyond, a wide one reads the codes half as often (1.1 to 1.5 times faster than 8).
NARROW, WIDE = 8, 16
# Byte positions handled in one pass over the rows: the measured best of 4, 8 and 16 for each direction. The tables of
# one pass (64 KiB at 8 positions x 256 values x 8 columns) must stay near the core.
GROUP, GROUP_TRANSPOSE = 8, 4
# Rows that share one table build: enough to make the build about a tenth of the work, few enough to stay in L2.
ROWS = 2048
COUNTED_ROWS = 2**18  # rows counted at a time: sums of so many ones are exact in float32

Function = TypeVar("Function", bound=Callable[..., Any])


def pack(bits01: Any) -> Packed:
    """N x bits of 0/1 (or bool) -> N x ceil(bits / 8) bytes.

    >>> pack([[1, 0, 0, 0, 0, 0, 0, 0, 1], [0, 1, 0, 0, 0, 0, 0, 0, 0]])
    array([[1, 1],
           [2, 0]], dtype=uint8)
    """
    values = np.asarray(bits01)
    if values.ndim != 2 or values.shape[1] == 0:
        raise CodesError(f"bits to pack must be a matrix with one row per node, got shape {values.shape}")
    return np.packbits(values != 0, axis=1, bitorder="little")


def pack_signs(values: Floats) -> Packed:
    """N x bits of floats -> packed bits that are 1 where a value is not negative."""
    matrix = np.ascontiguousarray(values, np.float32)
    packed = np.empty((len(matrix), -(-matrix.shape[1] // 8)), np.uint8)
    _signs(matrix, packed)
    return packed


def unpack(packed: Packed, bits: int) -> Packed:
    """N x ceil(bits / 8) bytes -> N x bits of 0/1 (uint8): the inverse of :func:`pack`."""
    return np.unpackbits(check_packed(packed, bits), axis=1, count=bits, bitorder="little")


def ones_per_bit(packed: Packed, bits: int) -> NDArray[np.int64]:
    """Number of rows in which each bit is set (bits).

    >>> ones_per_bit(pack([[1, 0, 1], [0, 0, 1]]), 3)
    array([1, 0, 2])
    """
    blocks = (packed[low : low + COUNTED_ROWS] for low in range(0, len(packed), COUNTED_ROWS))
    counts = (linear_transpose(block, np.ones((len(block), 1), np.float32), bits)[:, 0] for block in blocks)
    return sum((count.astype(np.int64) for count in counts), np.zeros(bits, np.int64))


def check_packed(packed: Any, bits: int) -> Packed:
    """The packed codes as a contiguous array, or an error if ``bits`` bits cannot be what they hold."""
    codes = np.asarray(packed)
    if codes.dtype != np.uint8 or codes.ndim != 2:
        raise CodesError(f"packed codes must be a uint8 matrix, got {codes.dtype} of shape {codes.shape}")
    if bits < 1 or codes.shape[1] != -(-bits // 8):
        raise CodesError(f"{bits} bits take {-(-bits // 8)} bytes per node, but the codes have {codes.shape[1]}")
    if bits % 8 and (codes[:, -1] >> (bits % 8)).any():
        row = int(np.flatnonzero(codes[:, -1] >> (bits % 8))[0])
        raise CodesError(f"row {row} has bits set past bit {bits}; pack each row on its own, padded with zeros")
    return np.ascontiguousarray(codes)


def popcount(packed: Packed) -> NDArray[np.int32]:
    """Ones in each row: N x bytes -> N."""
    words = _words(packed)
    return _distances(words, np.zeros((1, words.shape[1]), np.uint64))[:, 0]


def hamming(a: Packed, b: Packed) -> NDArray[np.int32]:
    """d[n, m] = number of bits where a[n] and b[m] differ: N x bytes, M x bytes -> N x M."""
    if np.shape(a)[1:] != np.shape(b)[1:]:
        raise CodesError(f"codes of different width cannot be compared: {np.shape(a)[1:]} and {np.shape(b)[1:]} bytes")
    return _distances(_words(a), _words(b))


def linear(packed: Packed, weight: Floats, bias: Floats | None = None) -> Floats:
    """y = X W + b for packed X: N x ceil(bits / 8) bytes, bits x C, C -> N x C float32."""
    matrix = np.asarray(weight, np.float32)
    codes = check_packed(packed, len(matrix))
    nodes, columns = len(codes), matrix.shape[1]
    lanes = _lanes(columns)
    stacked = _stack_columns(matrix, len(lanes), rows=8 * codes.shape[1])
    sums = np.zeros((len(stacked), nodes, len(lanes)), np.float32)
    blocks = numba.get_num_threads() * max(1, -(-nodes // (numba.get_num_threads() * ROWS)))
    _masked_sums(codes, stacked.ravel(), sums.ravel(), max(1, -(-nodes // blocks)), lanes)
    out = _unstack_columns(sums, nodes, columns)
    return out if bias is None else np.add(out, bias, out=out)


def exact_head(weight: Any, bias: Any = None) -> tuple[Floats, Floats]:
    """A linear map (bits x C, C) rounded until its product with bits has one value only, whatever the order of sums.

    Each column is rounded to a grid on which all its partial sums are float32 numbers. Then no sum is ever rounded,
    and :func:`linear`, BLAS and any other float32 product agree to the last bit, ties included. The grid spacing is at
    most 2^-22 of the column's sum of absolute weights, about what a float32 product loses to rounding anyway.
    """
    matrix = np.asarray(weight, np.float64)
    offset = np.zeros(matrix.shape[1]) if bias is None else np.asarray(bias, np.float64)
    reach = np.abs(matrix).sum(0) + np.abs(offset)
    # float32 has 24 bits: 23 for the grid leave one for what rounding adds to the sum.
    grid = np.exp2(np.ceil(np.log2(np.where(reach > 0, reach, 1.0))) - 23)
    return (np.round(matrix / grid) * grid).astype(np.float32), (np.round(offset / grid) * grid).astype(np.float32)


def linear_transpose(packed: Packed, grad: Floats, bits: int) -> Floats:
    """dW = X^T G, the gradient of :func:`linear` in W: N x ceil(bits / 8) bytes, N x C -> bits x C float32."""
    codes = check_packed(packed, bits)
    matrix = np.asarray(grad, np.float32)
    if len(matrix) != len(codes):
        raise CodesError(f"{len(matrix)} gradient rows for {len(codes)} codes; give one per node")
    lanes = _lanes(matrix.shape[1])
    stacked = _stack_columns(matrix, len(lanes), rows=len(matrix))
    sums = np.zeros((len(stacked), 8 * codes.shape[1], len(lanes)), np.float32)
    _masked_sums_transpose(codes, stacked.ravel(), sums.ravel(), lanes)
    return _unstack_columns(sums, bits, matrix.shape[1])


def xnor_linear(
    packed: Packed, weight: Packed, bits: int, row_scale: Floats, column_scale: Floats, bias: Floats
) -> Floats:
    """y = row_scale (S T^T) column_scale + b, where bits stand for signs: 1 is +1 and 0 is -1.

    S is N x bits and T is C x bits, both packed; the scales are N and C, b is C; y is N x C float32. Two signs multiply
    to +1 where their bits agree, so S T^T is bits minus twice the number of bits that differ: a whole number, and the
    scales are multiplied on in the order written, each product rounded once.
    """
    left, right = _words(check_packed(packed, bits)), _words(check_packed(weight, bits))
    out = np.empty((len(left), len(right)), np.float32)
    _xnor(left, np.ascontiguousarray(right.T), bits, row_scale, column_scale, bias, out)
    return out


def _lanes(columns: int) -> tuple[int, ...]:
    """A tuple as long as the vectors to use: numba knows the length of a tuple when it compiles."""
    return (0,) * (NARROW if columns <= NARROW else WIDE)


def _stack_columns(matrix: Floats, lanes: int, rows: int) -> Floats:
    """R x C -> ceil(C / lanes) x rows x lanes, zero padded: each slab of columns is contiguous."""
    slabs = -(-matrix.shape[1] // lanes)
    wide = np.zeros((rows, slabs * lanes), np.float32)
    wide[: len(matrix), : matrix.shape[1]] = matrix
    return np.ascontiguousarray(wide.reshape(rows, slabs, lanes).transpose(1, 0, 2))


def _unstack_columns(stacked: Floats, rows: int, columns: int) -> Floats:
    """The inverse of :func:`_stack_columns`."""
    slabs, _, lanes = stacked.shape
    wide = stacked[:, :rows].transpose(1, 0, 2).reshape(rows, slabs * lanes)
    return np.ascontiguousarray(wide[:, :columns])


def _words(packed: Packed) -> NDArray[np.uint64]:
    """Rows as 64-bit words, zero padded."""
    codes = np.asarray(packed)
    if codes.dtype != np.uint8 or codes.ndim != 2:
        raise CodesError(f"packed codes must be a uint8 matrix, got {codes.dtype} of shape {codes.shape}")
    if codes.shape[1] % 8 == 0 and codes.flags.c_contiguous:
        return codes.view(np.uint64)  # codes mapped from a file are compared where they lie
    wide = np.zeros((len(codes), -(-codes.shape[1] // 8) * 8), np.uint8)
    wide[:, : codes.shape[1]] = codes
    return wide.view(np.uint64)


# ------------------------------------------------------------------------------------------------ compiled kernels


def _compiled(function: Function) -> Function:
    return cast("Function", numba.njit(parallel=True, cache=True, nogil=True)(function))


def _emit_add(_: Any, out: Any, at: Any, a: Any, i: Any, b: Any, j: Any, lanes: Any) -> Any:
    """out[at : at + L] = a[i : i + L] + b[j : j + L] as one vector operation, L = len(lanes), on flat float32 arrays.

    Spelled out because numba leaves LLVM's superword vectoriser off: a plain loop over eight columns compiles to eight
    scalar additions and measured 2 to 4 times slower.
    """

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector = ir.VectorType(ir.FloatType(), lanes.count).as_pointer()

        def address(array: int) -> Any:
            data = context.make_array(signature.args[array])(context, builder, arguments[array]).data
            return builder.bitcast(builder.gep(data, [arguments[array + 1]]), vector)

        total = builder.fadd(builder.load(address(2), align=4), builder.load(address(4), align=4))
        builder.store(total, address(0), align=4)
        return context.get_dummy_value()

    return types.void(out, types.intp, a, types.intp, b, types.intp, lanes), codegen


def _emit_ones(_: Any, word: Any) -> Any:
    """The number of ones in a 64-bit word."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return types.int64(types.uint64), codegen


_add = intrinsic(_emit_add)
_ones = intrinsic(_emit_ones)


@_compiled
def _masked_sums(packed: Packed, weight: Floats, out: Floats, rows: int, lanes: tuple[int, ...]) -> None:
    """out[n] += sum over bytes b of table_b[packed[n, b]], where table_b[v] sums the weight rows of the ones of v.

    ``weight`` (slabs x 8 bytes x L) and ``out`` (slabs x N x L) are flat. Threads own blocks of rows.
    """
    nodes, width = packed.shape
    wide = len(lanes)
    for block in numba.prange((nodes + rows - 1) // rows):
        table = np.zeros(GROUP * 256 * wide, np.float32)
        for first in range(0, width, GROUP):
            group = min(GROUP, width - first)
            for slab in range(weight.size // (8 * width * wide)):
                for g in range(group):
                    for bit in range(8):
                        row = ((slab * width + first + g) * 8 + bit) * wide
                        half = 1 << bit
                        for value in range(g * 256, g * 256 + half):
                            _add(table, (value + half) * wide, table, value * wide, weight, row, lanes)
                for n in range(block * rows, min(nodes, (block + 1) * rows)):
                    to = (slab * nodes + n) * wide
                    for g in range(group):
                        _add(out, to, out, to, table, (g * 256 + packed[n, first + g]) * wide, lanes)


@_compiled
def _masked_sums_transpose(packed: Packed, grad: Floats, out: Floats, lanes: tuple[int, ...]) -> None:
    """out[8 b + j] += sum of grad[n] over the nodes n whose byte b has bit j set.

    Gradient rows are first summed by byte value (256 bins per byte position); then the bins are folded in half from the
    highest bit down, for the upper half of the bins holds exactly the rows with that bit. ``grad`` (slabs x N x L) and
    ``out`` (slabs x 8 bytes x L) are flat. Threads own byte positions, so no two write the same sum.
    """
    nodes, width = packed.shape
    wide = len(lanes)
    for block in numba.prange((width + GROUP_TRANSPOSE - 1) // GROUP_TRANSPOSE):
        first = block * GROUP_TRANSPOSE
        group = min(GROUP_TRANSPOSE, width - first)
        bins = np.empty(GROUP_TRANSPOSE * 256 * wide, np.float32)
        for slab in range(out.size // (8 * width * wide)):
            bins[:] = 0
            for n in range(nodes):
                row = (slab * nodes + n) * wide
                for g in range(group):
                    to = (g * 256 + packed[n, first + g]) * wide
                    _add(bins, to, bins, to, grad, row, lanes)
            for g in range(group):
                for bit in range(7, -1, -1):
                    to = ((slab * width + first + g) * 8 + bit) * wide
                    half = 1 << bit
                    for value in range(g * 256, g * 256 + half):
                        _add(out, to, out, to, bins, (value + half) * wide, lanes)
                        _add(bins, value * wide, bins, value * wide, bins, (value + half) * wide, lanes)


@_compiled
def _distances(a: NDArray[np.uint64], b: NDArray[np.uint64]) -> NDArray[np.int32]:
    """Hamming distances of rows of words; blocks of 32 rows of ``a`` stay in L1 while ``b`` streams by."""
    out = np.empty((a.shape[0], b.shape[0]), np.int32)
    for block in numba.prange((a.shape[0] + 31) // 32):
        for m in range(b.shape[0]):
            for n in range(block * 32, min(a.shape[0], (block + 1) * 32)):
                total = 0
                for word in range(a.shape[1]):
                    total += _ones(a[n, word] ^ b[m, word])
                out[n, m] = total
    return out


@_compiled
def _xnor(
    left: NDArray[np.uint64], right: NDArray[np.uint64], bits: int, row_scale: Floats, column_scale: Floats,
    bias: Floats, out: Floats,
) -> None:  # fmt: skip
    """The columns of ``right`` (words x C) side by side, so that their popcounts are one vector operation."""
    columns = right.shape[1]
    for n in numba.prange(left.shape[0]):
        differ = np.zeros(columns, np.int64)
        for w in range(left.shape[1]):
            word = left[n, w]
            for c in range(columns):
                differ[c] += _ones(word ^ right[w, c])
        for c in range(columns):
            out[n, c] = row_scale[n] * np.float32(bits - 2 * differ[c]) * column_scale[c] + bias[c]


@_compiled
def _signs(values: Floats, packed: Packed) -> None:
    width = values.shape[1]
    for n in numba.prange(values.shape[0]):
        for byte in range(packed.shape[1]):
            word = np.uint8(0)
            for bit in range(min(8, width - 8 * byte)):
                word |= np.uint8(values[n, 8 * byte + bit] >= 0) << np.uint8(bit)
            packed[n, byte] = word
