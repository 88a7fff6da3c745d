"""Linear maps in fp32 on a CPU by oneDNN, where it is faster than MKL.

PyTorch multiplies fp32 matrices by Intel's MKL, whose best kernels are for Intel's processors. It
also has oneDNN, for convolutions, other precisions and compiled models. The operators of these are
used here. Both compute in fp32, unless PyTorch is told otherwise, and differ by rounding.

On AMD's processors MKL computes 256 bits at a time. Since Zen 5 servers compute 512. On a processor
that by its speed was one, oneDNN multiplied twice as fast, if the matrices were large enough. On a
Zen 4 it gains a tenth at most, and a kernel for each new number of rows costs as much. A product
takes rows x in channels x out channels multiplications.

- x weight^T: from `LEAST_PRODUCT` and `LEAST_WEIGHTS` on. Since Zen 5 from `LARGE_PRODUCT` on.
- The same in given memory: then both widths are `LEAST_WIDTH` or more, too.
- The gradient of a weight: since Zen 5 from `LARGE_PRODUCT` on.
- A weight that is kept: from `LEAST_ROWS` and `LEAST_WEIGHTS` on. Since Zen 5 also from
  `LEAST_ROWS` and `LARGE_KEPT_PRODUCT` on.
"""

import logging
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from macaron_fairseq.common import environment

logger = logging.getLogger(__name__)

LEAST_PRODUCT = 2**20  # multiplications: calling oneDNN takes longer than calling MKL
LARGE_PRODUCT = 2**24  # with 512 bits it gains so much, whatever the number of weights
LARGE_KEPT_PRODUCT = 2**21  # the same where kernels and the blocks of the weight are kept
LEAST_WEIGHTS = 2**18  # fewer gain less than the kernel costs, one for each new number of rows
LEAST_ROWS = 16  # the blocks cost as much as a few products with the weight
LEAST_WIDTH = 256  # channels: oneDNN takes new memory for the result, which must pay
ZEN_5 = 26  # the family of AMD's processors, as Linux counts them; later ones have higher numbers
# The caches of kernels, and how many each keeps. By default it is 1,024, which took up to 2.6 GB.
CACHES = "LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"
KEPT_KERNELS = "64"


class Linear(nn.Linear):
    """PyTorch's linear map, by the faster library."""

    constant: "ConstantLinear | None" = None  # set within `constant_weights`

    @classmethod
    def of(cls, other: nn.Module) -> nn.Module:
        """PyTorch's linear map with the same parameters; others, such as quantised ones, stay."""
        if type(other) is not nn.Linear:
            return other
        sizes = other.in_features, other.out_features
        module = cls(*sizes, bias=other.bias is not None, device="meta")  # and draw no numbers
        module.weight, module.bias = other.weight, other.bias
        return module

    def forward(self, x: Tensor) -> Tensor:
        """x weight^T + bias, (..., out channel), of x, (..., in channel)."""
        constant = self.constant  # which another thread may end
        if constant and not torch.is_grad_enabled():
            return constant(x)
        return linear(x, self.weight, self.bias)

    def hold_weights(self, rows: int) -> None:
        """See `constant_weights`. Hooks of pruning and the like make a weight at each call."""
        if isinstance(self.weight, nn.Parameter):
            self.constant = ConstantLinear(self.weight, self.bias, rows)

    def release_weights(self) -> None:
        """See `constant_weights`."""
        self.constant = None


@contextmanager
def constant_weights(models: Iterable[nn.Module], rows: int) -> Iterator[None]:
    """A block in which no weight changes, so that modules may keep what they make of theirs.

    Args:
        models: what computes; only this package's modules keep anything.
        rows: how many states are multiplied at a time.
    """
    modules: list[Any] = [
        x for model in models for x in model.modules() if hasattr(x, "hold_weights")
    ]
    held = [x for x in modules if not x.constant]  # others are in such a block already
    try:
        for module in held:
            module.hold_weights(rows)
        yield
    finally:
        for module in held:
            module.release_weights()


class ConstantLinear:
    """A linear map without gradients, whose weight stays as it is while this object lives.

    oneDNN multiplies by blocks of the weight, which are made once here. Rows of zeros are added, so
    that oneDNN makes and keeps kernels for a few numbers of rows only.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, rows: int) -> None:
        """Make the blocks, if there are enough rows to multiply at a time."""
        is_large = rows * weight.numel() >= LARGE_KEPT_PRODUCT
        self.has_blocks = rows >= LEAST_ROWS and suits_onednn(weight, is_large)
        self.weight, self.bias = in_blocks(weight) if self.has_blocks else weight, bias

    def __call__(self, x: Tensor) -> Tensor:
        """x weight^T + bias, (..., out channel), of x, (..., in channel), which is not empty."""
        if not self.has_blocks:
            return functional.linear(x, self.weight, self.bias)
        rows = x.reshape(-1, x.shape[-1])
        more = -len(rows) % (8 if len(rows) <= 64 else 32)
        padded = functional.pad(rows, (0, 0, 0, more)) if more else rows
        y = multiply(padded, self.weight, self.bias)
        return y[: len(rows)].view(*x.shape[:-1], y.shape[-1])


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`functional.linear`: x weight^T + bias, with gradients of any order."""
    if not is_for_onednn(x, weight):
        return functional.linear(x, weight, bias)
    if torch.is_grad_enabled():
        return LinearMap.apply(x, weight, bias)
    return multiply(x, weight, bias)


def multiply_transposed(x: Tensor, weight: Tensor, out: Tensor) -> Tensor:
    """x weight^T of two matrices without gradients, in `out` or in new memory."""
    is_large = x.numel() * len(weight) >= LARGE_PRODUCT and computes_512_bits()
    if (min(weight.shape) >= LEAST_WIDTH or is_large) and is_for_onednn(x, weight):
        return multiply(x, weight, None)
    return torch.mm(x, weight.t(), out=out)


class LinearMap(torch.autograd.Function):
    """oneDNN's linear map and its gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Multiply."""
        ctx.save_for_backward(x, weight)
        return multiply(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Multiply the gradient with weight and x, in operations that have gradients again."""
        x, weight = ctx.saved_tensors
        of_x, of_weight, of_bias = ctx.needs_input_grad
        rows = grad.reshape(-1, len(weight))
        return (
            linear(grad, weight.t()) if of_x else None,
            weight_gradient(rows, x.reshape(len(rows), -1)) if of_weight else None,
            rows.sum(0) if of_bias else None,
        )


def weight_gradient(grad: Tensor, x: Tensor) -> Tensor:
    """The gradient of a linear map's weight, grad^T x, (out channel, in channel).

    oneDNN's operator for linear maps would first copy what is transposed here. A linear map is also
    a convolution of width 1 along the rows, and the gradient of its weight takes them as they are.

    Args:
        grad: of the result, (row, out channel).
        x: what was multiplied, (row, in channel).
    """
    is_fp32_here = grad.dtype == x.dtype == torch.float32 and x.device.type == "cpu"
    is_large = x.numel() * grad.shape[1] >= LARGE_PRODUCT
    if not (is_fp32_here and is_large and is_faster() and computes_512_bits()):
        return torch.mm(grad.t(), x)
    # (1, channel, row, 1) with strides by which PyTorch sees that channels are last in memory.
    images = [y.reshape(1, len(y), 1, -1).permute(0, 3, 1, 2) for y in (grad, x)]
    kernel = x.new_empty(()).expand(grad.shape[1], x.shape[1], 1, 1)  # of which the shape is read
    return torch.ops.aten.convolution_backward(
        *images,
        kernel,
        bias_sizes=None,
        stride=[1, 1],
        padding=[0, 0],
        dilation=[1, 1],
        transposed=False,
        output_padding=[0, 0],
        groups=1,
        output_mask=[False, True, False],
    )[1].flatten(1)


# --- where and how oneDNN multiplies -------------------------------------------------------------


def is_for_onednn(x: Tensor, weight: Tensor) -> bool:
    """Whether oneDNN is to multiply x with the transposed weight."""
    return (
        x.dtype == torch.float32
        and x.device.type == "cpu"
        and (product := x.numel() * len(weight)) >= LEAST_PRODUCT
        and suits_onednn(weight, product >= LARGE_PRODUCT)
    )


def suits_onednn(weight: Tensor, is_large: bool) -> bool:
    """Whether oneDNN is to multiply by the transposed weight; `is_large`: for 512 bits."""
    return (
        weight.dtype == torch.float32
        and weight.device.type == "cpu"
        and (weight.numel() >= LEAST_WEIGHTS or (is_large and computes_512_bits()))
        and not torch.is_autocast_enabled("cpu")
        and not torch._C._are_functorch_transforms_active()  # oneDNN's operator has no rules for it
        and is_faster()
    )


@cache
def is_faster() -> bool:
    """Whether oneDNN is faster here: measured on AMD's processors (docs/results/speed.md)."""
    if not (torch.backends.mkl.is_available() and "AMD" in environment.cpu_model()):
        return False
    keep_few_kernels()
    if not is_known_here():
        logger.info("linear maps use MKL, since this PyTorch has other operators of oneDNN")
        return False
    return True


def keep_few_kernels() -> None:
    """Limit the caches of kernels, before the first product reads how large they may be."""
    for name in CACHES:
        os.environ.setdefault(name, KEPT_KERNELS)


@cache
def computes_512_bits() -> bool:
    """Whether it is one of AMD's since Zen 5: Zen 4 has AVX-512, too, and takes two steps."""
    family = environment.of_first_cpu("cpu family")
    has_avx512 = torch.backends.cpu.get_cpu_capability() == "AVX512"
    return has_avx512 and family.isdecimal() and int(family) >= ZEN_5


def is_known_here() -> bool:
    """Whether this PyTorch has the operators, which are not part of its public interface."""
    x, weight, bias = torch.eye(2), torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.ones(2)
    try:
        results = [multiply(x, y, bias) for y in (weight, in_blocks(weight))]
        return all(torch.equal(result, weight.t() + bias) for result in results)
    except (AttributeError, RuntimeError, TypeError):
        return False


def multiply(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """oneDNN's x weight^T + bias, without gradients."""
    if bias is not None:
        bias = bias.contiguous()  # of whose strides it knows nothing
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


def in_blocks(weight: Tensor) -> Tensor:
    """A weight for `multiply` as oneDNN would rearrange it each time."""
    return torch.ops.mkldnn._reorder_linear_weight(weight)
