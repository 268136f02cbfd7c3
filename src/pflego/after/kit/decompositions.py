"""Backward operations as operations that every ONNX runtime has.

torch has decompositions of most of them. Those of convolutions are written here; with x (n, c, h), w (o, c/g, k), slope
s (n, o, h'), stride a, dilation d, padding p and g groups, one letter for every spatial axis:

    d/dx  =  the transposed convolution of s by w, with the same a, d, p and g
    d/dw  =  the product of s and x, moved to each place of the kernel, over samples and places; or
             the convolution of x by s, samples in the place of channels, stride and dilation exchanged
    d/db  =  the sum of s over samples and places

Pooling by means is put in terms of a convolution, or of a product, before it is differentiated. Pooling by maxima whose
windows do not overlap is differentiated by comparisons: runtimes are slow to tell where maxima are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from itertools import product
from math import ceil, floor, prod
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch._decomp import decomposition_table, get_decompositions
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

Size: TypeAlias = int | Sequence[int] | None
Table: TypeAlias = dict[Any, Callable[..., Any]]  # by operation of torch

_aten = torch.ops.aten
_FORWARD = [  # what backward formulas need the insides of
    _aten.native_layer_norm,
    _aten.native_group_norm,
    _aten.native_batch_norm,
    _aten._native_batch_norm_legit_no_training,
]
_PLACES = 9  # of a kernel, at most, for a product each: a graph of many more is slow to make
_FEW = 16  # channels, below which such products are too narrow to be fast


def decompositions() -> Table:
    """Give torch's own decompositions of backward operations, and those of this page."""
    backward = [op for op in decomposition_table if "backward" in str(op)]
    table: Table = dict(get_decompositions([*backward, *_FORWARD]))
    table[_aten.convolution_backward.default] = convolution_backward
    by_indices = table[_aten.max_pool2d_with_indices_backward.default]

    def max_pool_backward(
        slope: Tensor,
        x: Tensor,
        kernel_size: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        ceil_mode: bool,
        indices: Tensor,
    ) -> Tensor:
        kernel, steps = _each(kernel_size, 2), _each(stride, 2) or _each(kernel_size, 2)
        plain = kernel == steps and not any(_each(padding, 2)) and _each(dilation, 2) == [1, 1]
        if plain and not ceil_mode:
            return windowed_max_backward(slope, x, kernel)
        found: Tensor = by_indices(slope, x, kernel_size, stride, padding, dilation, ceil_mode, indices)
        return found

    table[_aten.max_pool2d_with_indices_backward.default] = max_pool_backward
    return table


def windowed_max_backward(slope: Tensor, x: Tensor, kernel: Sequence[int]) -> Tensor:
    """Give the gradient of a maximum over windows side by side: each slope goes to the first of its window's maxima."""
    (high, wide), (rows, columns) = kernel, slope.shape[-2:]
    cut = x[..., : rows * high, : columns * wide]  # windows that do not fit are left out
    places = [
        cut[..., i::high, j::wide] for i in range(high) for j in range(wide)
    ]  # (..., rows, columns) each
    best = reduce(torch.maximum, places)
    parts: list[Tensor] = []
    rest = slope
    for place in places:  # by rows, as torch looks through a window
        parts.append(torch.where(place == best, rest, 0.0))
        rest = rest - parts[-1]
    # put together again, columns first
    lines = [torch.stack(parts[i : i + wide], dim=-1).flatten(-2) for i in range(0, high * wide, wide)]
    whole = torch.stack(lines, dim=-2).flatten(-3, -2)  # (..., rows high, columns wide)
    beyond = [int(x.shape[-1]) - columns * wide, int(x.shape[-2]) - rows * high]
    return functional.pad(whole, [0, beyond[0], 0, beyond[1]]) if any(beyond) else whole


def convolution_backward(
    slope: Tensor,
    x: Tensor,
    weight: Tensor,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Give the gradients of a convolution in its input, its weight and its bias, those that are asked for."""
    if transposed:
        raise NotImplementedError("transposed convolutions")
    axes = weight.dim() - 2
    stride, padding, dilation = (_each(size, axes) for size in (stride, padding, dilation))
    at_x = at_weight = at_bias = None
    if output_mask[0]:
        left = [
            (int(x.shape[2 + i]) + 2 * padding[i] - dilation[i] * (int(weight.shape[2 + i]) - 1) - 1)
            % stride[i]
            for i in range(axes)
        ]
        at_x = _aten.convolution.default(
            slope, weight, None, stride, padding, dilation, True, left, groups
        )  # (n, c, h)
    if output_mask[1]:
        narrow = int(weight.shape[1]) < _FEW or prod(map(int, weight.shape[2:])) > _PLACES
        moves = _Moves(stride, padding, dilation)
        if groups > 1 or narrow:
            at_weight = _weight_gradient_by_convolution(slope, x, weight, moves, groups)
        else:
            at_weight = _weight_gradient(slope, x, weight, moves)
    if output_mask[2]:
        at_bias = slope.sum(dim=[0, *range(2, slope.dim())])
    return at_x, at_weight, at_bias


class _Moves(NamedTuple):
    """How a kernel moves over its inputs: one number for every spatial axis."""

    stride: list[int]
    padding: list[int]
    dilation: list[int]


def _weight_gradient(slope: Tensor, x: Tensor, weight: Tensor, moves: _Moves) -> Tensor:
    """Give d/dw by products of matrices, one for each place of the kernel: runtimes are fastest at those."""
    sizes, places = [int(size) for size in weight.shape[2:]], [int(size) for size in slope.shape[2:]]
    around = functional.pad(x, [each for pad in reversed(moves.padding) for each in (pad, pad)])
    channels_first = around.transpose(0, 1)  # (c, n, h + 2p)
    moved = []
    for place in product(*map(range, sizes)):
        piece = channels_first
        along = zip(place, places, moves.stride, moves.dilation, strict=True)
        for axis, (k, count, a, d) in enumerate(along, start=2):
            begin = k * d
            piece = piece[(slice(None),) * axis + (slice(begin, begin + (count - 1) * a + 1, a),)]
        moved.append(piece.flatten(1))  # (c, n h')
    flat = slope.transpose(0, 1).flatten(1)  # (o, n h')
    return torch.stack([flat @ piece.t() for piece in moved], dim=-1).reshape(weight.shape)  # (o, c, k)


def _weight_gradient_by_convolution(
    slope: Tensor, x: Tensor, weight: Tensor, moves: _Moves, groups: int
) -> Tensor:
    stride, padding, dilation = moves
    n, places = x.shape[0], list(range(3, 3 + weight.dim() - 2))
    channels = int(weight.shape[1])  # of one group
    split = x.reshape(n, groups, channels, *x.shape[2:]).permute(2, 1, 0, *places)
    wide = split.reshape(channels, groups * n, *x.shape[2:])  # (c/g, g n, h)
    found: Tensor = _aten.convolution.default(
        wide, slope.transpose(0, 1), None, dilation, padding, stride, False, [0] * len(stride), groups
    )  # (c/g, o, at least k): a stride that leaves a rest makes it longer
    for axis in range(2, weight.dim()):
        if found.shape[axis] != weight.shape[axis]:
            found = found.narrow(axis, 0, int(weight.shape[axis]))
    return found.transpose(0, 1)  # (o, c/g, k)


@contextmanager
def in_the_open() -> Iterator[None]:
    """Let attention and pooling by means be made of operations that can be differentiated in the open."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH), _Means():
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


class _Means(TorchFunctionMode):
    """Puts pooling by means in terms of convolutions and products."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        replaced = _REPLACED.get(func, func)
        return replaced(*args, **(kwargs or {}))


def _mean_pool(
    axes: int,
) -> Callable[..., Tensor]:
    def pool(
        x: Tensor,
        kernel_size: Size,
        stride: Size = None,
        padding: Size = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Tensor:
        kernel, pad = _each(kernel_size, axes), _each(padding, axes)
        steps = _each(stride, axes) if stride else kernel
        sizes = [int(size) for size in x.shape[-axes:]]
        places = [
            _places(size, k, s, p, ceil_mode=ceil_mode)
            for size, k, s, p in zip(sizes, kernel, steps, pad, strict=True)
        ]
        # zeros on both sides: the padding, and what the last window reaches beyond it
        beyond = [
            max(0, (count - 1) * s + k - size - 2 * p)
            for count, size, k, s, p in zip(places, sizes, kernel, steps, pad, strict=True)
        ]
        padded = functional.pad(
            x, [n for p, more in zip(pad[::-1], beyond[::-1], strict=True) for n in (p, p + more)]
        )
        channels = int(x.shape[1])
        ones = torch.ones((channels, 1, *kernel), dtype=x.dtype)
        convolve = functional.conv1d if axes == 1 else functional.conv2d
        total = convolve(padded, ones, stride=steps, groups=channels)
        for axis, count in zip(range(-axes, 0), places, strict=True):
            total = total.narrow(axis, 0, count)
        if divisor_override:
            return total / divisor_override
        counted = [
            _counted(count, size, k, s, p, include_pad=count_include_pad)
            for count, size, k, s, p in zip(places, sizes, kernel, steps, pad, strict=True)
        ]
        divisor = counted[0] if axes == 1 else counted[0][:, None] * counted[1]
        return total / divisor.to(x.dtype)

    return pool


def _places(size: int, kernel: int, stride: int, padding: int, *, ceil_mode: bool) -> int:
    """Count the windows along an axis; none begins in the padding on the right."""
    span = (size + 2 * padding - kernel) / stride
    count = (ceil(span) if ceil_mode else floor(span)) + 1
    return count - 1 if ceil_mode and (count - 1) * stride >= size + padding else count


def _counted(count: int, size: int, kernel: int, stride: int, padding: int, *, include_pad: bool) -> Tensor:
    """Count the values that each window's mean is over."""
    begins = [place * stride - padding for place in range(count)]
    ends = [min(begin + kernel, size + padding) for begin in begins]
    if not include_pad:
        begins, ends = [max(begin, 0) for begin in begins], [min(end, size) for end in ends]
    return torch.tensor([float(end - begin) for begin, end in zip(begins, ends, strict=True)])


def _adaptive_mean_pool(axes: int) -> Callable[..., Tensor]:
    def pool(x: Tensor, output_size: Any) -> Tensor:
        wanted = [output_size] * axes if isinstance(output_size, int) else list(output_size)
        for axis, count in zip(range(-axes, 0), wanted, strict=True):
            size = int(x.shape[axis])
            if count is not None and count != size:
                x = (x.transpose(axis, -1) @ _shares(size, count).to(x.dtype)).transpose(axis, -1)
        return x

    return pool


def _shares(size: int, count: int) -> Tensor:
    """Give the matrix, (size, count), by which a row is multiplied to become the means of `count` windows."""
    spans = [(place * size // count, -(-(place + 1) * size // count)) for place in range(count)]
    rows = [[(begin <= row < end) / (end - begin) for begin, end in spans] for row in range(size)]
    return torch.tensor(rows)


def _each(size: Size, axes: int) -> list[int]:
    given = [size] if isinstance(size, int) else list(size or [])
    return [int(one) for one in (given * axes if len(given) == 1 else given)]


_REPLACED: dict[Callable[..., Any], Callable[..., Any]] = {
    functional.avg_pool1d: _mean_pool(1),
    functional.avg_pool2d: _mean_pool(2),
    functional.adaptive_avg_pool1d: _adaptive_mean_pool(1),
    functional.adaptive_avg_pool2d: _adaptive_mean_pool(2),
}
