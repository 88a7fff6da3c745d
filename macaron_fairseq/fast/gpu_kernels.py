"""Parts of a layer in fewer kernels on a GPU, where a small model waits for the next launch.

Each function has the values and gradients of the plain formula that it names. They run on a CPU
too, where the tests compare them; only a GPU gains.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

aten: Any = torch.ops.aten


def suit(x: Tensor) -> bool:
    """Whether these functions are for x: on a GPU, and nobody casts or transforms operations."""
    return (
        x.is_cuda
        and not torch.is_autocast_enabled("cuda")
        and not torch._C._are_functorch_transforms_active()
    )


def dropped_relu(x: Tensor, weight: Tensor, bias: Tensor, p: float) -> Tensor:
    """dropout(relu(x weight^T + bias)), (..., out channel), of x, (..., in channel).

    ReLU is part of the matrix product's kernel. The backward pass is one kernel for both, since the
    result is above 0 exactly where ReLU and dropout let an element pass.

    Args:
        p: the share that dropout leaves out, below 1; 0 for no dropout.
    """
    rows = x.flatten(0, -2)
    if torch.is_grad_enabled() or p:
        y = DroppedRelu.apply(rows, weight, bias, p)
    else:
        y = torch._addmm_activation(bias, rows, weight.t())
    return y.view(*x.shape[:-1], len(weight))


class DroppedRelu(torch.autograd.Function):
    """`dropped_relu` of a matrix x, (rows, in channel)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, p: float) -> Tensor:
        """Multiply, cut off and leave out."""
        y = torch._addmm_activation(bias, x, weight.t())
        if p:
            y, _ = torch.native_dropout(y, p, True)
        ctx.save_for_backward(x, weight, y)
        ctx.scale = 1 / (1 - p)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of x, weight and bias."""
        x, weight, y = ctx.saved_tensors
        # ELU with alpha 0 is ReLU; its gradient has a factor where y is above 0.
        grad = aten.elu_backward(grad, 0.0, ctx.scale, 1.0, True, y)
        of_x, of_weight, of_bias, _ = ctx.needs_input_grad
        return (
            grad @ weight if of_x else None,
            grad.t() @ x if of_weight else None,
            grad.sum(0) if of_bias else None,
            None,
        )


def draw_kept(count: int, x: Tensor, p: float) -> Tensor:
    """What dropout keeps of `count` tensors like x, (count, *x.shape), in one kernel."""
    return torch.empty((count, *x.shape), dtype=torch.bool, device=x.device).bernoulli_(1 - p)


def add_dropped(x: Tensor, y: Tensor, kept: Tensor, p: float, size: float) -> Tensor:
    """x + size dropout(y), where dropout of the share p keeps what is True in `kept`."""
    return AddDropped.apply(x, y, kept, size / (1 - p))


class AddDropped(torch.autograd.Function):
    """x + scale kept y."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, kept: Tensor, scale: float) -> Tensor:
        """Add."""
        ctx.save_for_backward(kept)
        ctx.scale = scale
        return torch.addcmul(x, y, kept, value=scale)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of x and y."""
        (kept,) = ctx.saved_tensors
        return grad, aten.native_dropout_backward(grad, kept, ctx.scale), None, None


# --- several linear maps of one input -------------------------------------------------------------


def joined_linear(x: Tensor, maps: Sequence[nn.Linear]) -> Tensor:
    """What linear maps of equal size give for x, (..., in channel), one after the other.

    One matrix product computes all. The gradients of their weights are parts of one tensor, which
    autograd takes as they are.

    Returns:
        (..., number of maps times out channel).
    """
    if len(maps) == 1:
        return functional.linear(x, maps[0].weight, maps[0].bias)
    weights: list[Tensor] = [m.weight for m in maps]
    biases: list[Tensor] = [m.bias for m in maps]
    y = JoinedLinear.apply(x.flatten(0, -2), *weights, *biases)
    return y.view(*x.shape[:-1], -1)


class JoinedLinear(torch.autograd.Function):
    """The linear maps of a matrix x, (rows, in channel): first all weights, then all biases."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *parameters: Tensor | None) -> Tensor:
        """Multiply once."""
        count = len(parameters) // 2
        weight: Any = whole(parameters[:count])
        bias = whole(parameters[count:])
        ctx.save_for_backward(x, *parameters[:count])
        ctx.has_bias = bias is not None
        return functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of x, of all weights and of all biases."""
        x, *weights = ctx.saved_tensors
        # For gradients of gradients it must be known where the whole weight comes from.
        weight: Any = torch.cat(weights) if torch.is_grad_enabled() else whole(weights)
        count = len(weights)
        biases = grad.sum(0).chunk(count) if ctx.has_bias else [None] * count
        return grad @ weight, *(grad.t() @ x).chunk(count), *biases


def whole(parts: Sequence[Any]) -> Tensor | None:
    """Tensors of one shape one after the other; a view where they lie so in memory, else a copy."""
    first = parts[0]
    if first is None:
        return None
    memory, begin = first.untyped_storage().data_ptr(), first.storage_offset()
    if all(
        x.is_contiguous()
        and x.untyped_storage().data_ptr() == memory
        and x.storage_offset() == begin + i * first.numel()
        for i, x in enumerate(parts)
    ):
        shape = (len(parts) * len(first), *first.shape[1:])
        return first.detach().as_strided(shape, first.stride())
    return torch.cat([x.detach() for x in parts])


def lay_together(maps: Sequence[nn.Linear]) -> None:
    """Let the parameters of linear maps share memory, as those of PyTorch's RNNs do.

    They stay parameters with their names. Where somebody moves one later, `whole` copies.
    """
    for parameters in ([x.weight for x in maps], [x.bias for x in maps]):
        kinds = {None if x is None else (x.shape, x.dtype, x.device) for x in parameters}
        if parameters[0] is None or len(kinds) > 1:
            continue
        together = torch.cat([x.detach() for x in parameters])
        for parameter, part in zip(parameters, together.chunk(len(parameters)), strict=True):
            parameter.data = part
