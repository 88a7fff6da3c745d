"""Gradients of a linear layer by way of its logits, which are there for some tokens at a time."""

from collections.abc import Sequence

import torch
from torch import Tensor

from macaron_fairseq.fast.linear import multiply_transposed

# A CPU copies what it adds in another precision, so the gradients of this many types at a time.
TYPES_AT_ONCE = 2**11

# Gradients by logits are within [-1, 1]; fp16 would lose more of the small ones as they are.
SCALE = 4

# With more tokens in a chunk, or larger features, a sum over its tokens could leave fp16, whose
# numbers end at 65,504: gradients by a logit are multiplied by SCALE.
MOST_TOKENS, LARGEST_FEATURE = 2040, 8


class LinearGradients:
    """The gradients of logits = features weight^T + bias, summed over tokens.

    Matrix products have the features' dtype. Where sums have another one, gradients by logits are
    multiplied by `scale` before they are rounded, and the sums divided by it.
    """

    def __init__(
        self,
        features: Tensor,
        weight: Tensor,
        needed: Sequence[bool],
        dtype: torch.dtype,
        longest: int,
        scale: float,
    ) -> None:
        """Begin with zeros.

        Args:
            features: (tokens, dim).
            weight: (types, dim), of the same dtype.
            needed: whether gradients of features, weight and bias are asked for.
            dtype: of the sums, and of gradients by logits.
            longest: the most tokens that are added at a time.
            scale: of gradients by logits in products of lower precision; less where features are
                large.
        """
        self.features, self.weight = features, weight
        self.scale: float | Tensor = scale
        shapes = features.shape, weight.shape, weight.shape[:1]
        self.of_features, self.of_weight, self.of_bias = (
            features.new_zeros(shape, dtype=dtype) if is_needed else None
            for shape, is_needed in zip(shapes, needed, strict=True)
        )
        self.is_lower = any(needed) and features.dtype != dtype
        self.lower = weight.new_empty(longest if self.is_lower else 0, len(weight))
        if self.is_lower and features.dtype == torch.float16 and features.numel():
            largest = torch.linalg.vector_norm(features, torch.inf, dtype=dtype)
            self.scale = largest.clamp_(min=LARGEST_FEATURE).reciprocal_() * (
                scale * LARGEST_FEATURE
            )
        is_summed = self.is_lower and self.of_weight is not None
        self.product = torch.empty_like(weight if is_summed else weight[:0])

    def add(self, rows: slice, by_logits: Tensor, divisor: Tensor | None = None) -> None:
        """Add those of some tokens.

        Args:
            rows: which tokens.
            by_logits: their gradients by the logits, times the divisor, (tokens, types).
            divisor: (tokens, 1); the smaller side of each product is divided by it.
        """
        if self.of_bias is not None:
            shares = by_logits.new_ones(len(by_logits), 1) if divisor is None else 1 / divisor
            self.of_bias += torch.mv(by_logits.t(), shares.squeeze(1))
        features = self.features[rows]
        if self.is_lower:
            factor = self.scale if divisor is None else self.scale / divisor
            lower = torch.mul(by_logits, factor, out=self.lower[: len(by_logits)])
            if self.of_features is not None:
                self.of_features[rows] = torch.mm(lower, self.weight)
            if self.of_weight is not None:
                add_product(self.of_weight, lower.t(), features, self.product)
            return
        if self.of_features is not None:
            of_rows = self.of_features[rows]
            product = multiply_transposed(by_logits, self.weight.t(), out=of_rows)
            if divisor is not None:
                torch.div(product, divisor, out=of_rows)
            elif product is not of_rows:
                of_rows.copy_(product)
        if self.of_weight is not None:
            self.of_weight.addmm_(
                by_logits.t(), features if divisor is None else features / divisor
            )

    def sums(self) -> tuple[Tensor | None, ...]:
        """The gradients of features, weight and bias; ask once, when all tokens are added."""
        if self.is_lower:
            for grad in (self.of_features, self.of_weight):
                if grad is not None:
                    grad /= self.scale
        return self.of_features, self.of_weight, self.of_bias


def times(
    gradients: Sequence[Tensor | None], factor: Tensor, dtype: torch.dtype
) -> list[Tensor | None]:
    """Gradients that a forward pass has kept, times that of its result, in a dtype.

    On a CPU a factor of 1 hands out what was kept.
    """
    if factor.device.type != "cpu" or factor != 1:  # a GPU would be waited for
        gradients = [None if x is None else x * factor for x in gradients]
    return [None if x is None else x.to(dtype) for x in gradients]


def add_product(total: Tensor, x: Tensor, y: Tensor, buffer: Tensor) -> None:
    """Add x y to `total`, (types, dim), by way of `buffer`; all but `total` in lower precision."""
    torch.mm(x, y, out=buffer)
    count = TYPES_AT_ONCE if total.device.type == "cpu" else len(total)
    parts = (z.split(count) for z in (total, buffer))
    for some, more in zip(*parts, strict=True):
        some += more
