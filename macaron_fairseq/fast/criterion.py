"""The criterion `chunked_label_smoothed_cross_entropy`: fairseq's, in less memory and time."""

from collections.abc import Mapping
from typing import Any

import torch
from fairseq.criterions import CRITERION_REGISTRY, register_criterion
from fairseq.criterions.label_smoothed_cross_entropy import (
    LabelSmoothedCrossEntropyCriterion,
    LabelSmoothedCrossEntropyCriterionConfig,
)
from fairseq.models import BaseFairseqModel
from fairseq.models.transformer import TransformerModelBase
from fairseq.models.transformer_lm import TransformerLanguageModel
from fairseq.tasks.translation import TranslationTask
from torch import Tensor, nn

from macaron_fairseq.fast.linear import multiply_transposed
from macaron_fairseq.fast.replaceable import (
    PROBABILITIES,
    inherits,
    is_watched,
    projects_features,
)
from macaron_fairseq.fast.transformer import FusedTransformerModel
from macaron_fairseq.model.base import MacaronModel

NAME = "chunked_label_smoothed_cross_entropy"

# Tokens x types in memory at a time. From about this size on, matrix products on a CPU are as fast
# as in one piece. An accelerator wants fewer and larger ones.
CHUNK_ELEMENTS_CPU = 2**22
CHUNK_ELEMENTS = 2**25

# A CPU copies what it adds in another precision, so the gradients of this many types at a time.
TYPES_AT_ONCE = 2**11

# No layer has this number, so no attention weights are computed: the loss needs none.
NO_LAYER = -1

# Gradients by logits are within [-1, 1]; fp16 would lose more of the small ones as they are.
SCALE = 4


class ChunkedLabelSmoothedCrossEntropyCriterion(LabelSmoothedCrossEntropyCriterion):
    """fairseq's `label_smoothed_cross_entropy` without the matrix of all tokens' logits.

    Options, the loss and what is logged are fairseq's. Padding is left out before the output
    projection. Projection, softmax and both gradients are computed for some tokens at a time.

    fairseq's criterion computes in four cases: the model's output is no plain projection; the loss
    of each token is asked for (`reduce=False`); autocast is on; or --find-unused-parameters is set.
    """

    def forward(
        self, model: BaseFairseqModel, sample: dict[str, Any], reduce: bool = True
    ) -> tuple[Tensor, int, dict[str, Any]]:
        """Return loss, sample size and logging output, as fairseq's criterion does."""
        if reduce and has_plain_projection(model):
            # The parent hands the sample and the model's output on to the two methods below.
            sample = {**sample, "net_input": for_features(sample["net_input"])}
        return super().forward(model, sample, reduce)

    def compute_loss(
        self, model: BaseFairseqModel, net_output: Any, sample: dict[str, Any], reduce: bool = True
    ) -> tuple[Tensor, Tensor]:
        """Return the sums over the target tokens of the loss, and of the NLL for the log."""
        if "features_only" not in sample["net_input"]:
            return super().compute_loss(model, net_output, sample, reduce)
        features, weight, target = self.select(model, net_output, sample)
        return label_smoothed_nll_loss(features, weight, target, self.eps, products_dtype(model))

    def compute_accuracy(
        self, model: BaseFairseqModel, net_output: Any, sample: dict[str, Any]
    ) -> tuple[Tensor, Tensor]:
        """Return how many targets are the most probable type, and how many there are."""
        if "features_only" not in sample["net_input"]:
            return super().compute_accuracy(model, net_output, sample)
        features, weight, target = self.select(model, net_output, sample)
        return accuracy(features, weight, target)

    @classmethod
    def reduce_metrics(cls, logging_outputs: list[dict[str, Any]]) -> None:
        """Log as fairseq's criterion does; a GPU is waited for once, for all sums together."""
        super().reduce_metrics(on_the_host(logging_outputs))

    def select(
        self, model: BaseFairseqModel, net_output: Any, sample: dict[str, Any]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return what the loss is of.

        Returns:
            Features, (tokens, dim), of the tokens that count; the projection's weight,
            (types, dim); targets, (tokens,).
        """
        target = model.get_targets(sample, net_output)[:, self.ignore_prefix_size :].flatten()
        features = net_output[0][:, self.ignore_prefix_size :].flatten(0, 1)
        counted = self.counted(target, sample)
        weight = unwrap(model).decoder.output_projection.weight
        return features.index_select(0, counted), weight, target.index_select(0, counted)

    def counted(self, target: Tensor, sample: dict[str, Any]) -> Tensor:
        """The places of targets that count, (tokens,), of all targets of a sample in a row."""
        is_padding = target.eq(self.padding_idx)
        if self.knows_count(sample):  # so that nobody waits for a GPU to count
            return is_padding.argsort(stable=True)[: sample["ntokens"]]
        return is_padding.logical_not_().nonzero().squeeze(1)

    def knows_count(self, sample: dict[str, Any]) -> bool:
        """Whether "ntokens" of a sample on a GPU is the number of targets that count.

        It is in translation; fairseq's denoising counts the tokens of the source.
        """
        return (
            sample["target"].device.type != "cpu"
            and isinstance(self.task, TranslationTask)
            and isinstance(sample.get("ntokens"), int)
            and not self.ignore_prefix_size
        )


def on_the_host(logging_outputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What criteria logged, with the sums of what is on a GPU as plain numbers in the first."""
    names = {
        name
        for log in logging_outputs
        for name, value in log.items()
        if torch.is_tensor(value) and value.device.type != "cpu"
    }
    if not names:
        return logging_outputs
    order = sorted(names)
    sums = [sum(log.get(name, 0) for log in logging_outputs) for name in order]
    found = dict(zip(order, torch.stack([x.double() for x in sums]).tolist(), strict=True))
    first, *others = ({**log, **dict.fromkeys(names, 0)} for log in logging_outputs)
    return [{**first, **found}, *others]


def register() -> None:
    """Make the criterion known to fairseq, once: a second import keeps the first class."""
    if NAME not in CRITERION_REGISTRY:
        config = LabelSmoothedCrossEntropyCriterionConfig
        register_criterion(NAME, dataclass=config)(ChunkedLabelSmoothedCrossEntropyCriterion)


def accuracy(features: Tensor, weight: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """How many targets are the most probable type, and how many there are; without gradients."""
    correct = target.new_zeros(())
    with torch.no_grad():
        for rows in chunks(len(target), weight):
            best = torch.mm(features[rows], weight.t()).argmax(1)
            correct += best.eq(target[rows]).sum()
    return correct, torch.tensor(len(target))


def label_smoothed_nll_loss(
    features: Tensor,
    weight: Tensor,
    target: Tensor,
    epsilon: float,
    products: torch.dtype | None = None,
    bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Label-smoothed cross-entropy of a linear layer's softmax, and its NLL, summed over tokens.

    As in fairseq, each type but the target gets `epsilon / (types - 1)`; Szegedy et al. 2016 give
    the target a share too. Softmax and sums are fp32, or fp64 where the features are.

    Args:
        features: (tokens, dim).
        weight: of the layer, (types, dim), of the same dtype.
        target: (tokens,).
        epsilon: the label smoothing.
        products: the dtype of matrix products; None for the parameters'.
        bias: of the layer, (types,), if it has one.

    Returns:
        The loss, and the NLL, which has no gradient.
    """
    return rdrop_loss(features, weight, target, epsilon, 0.0, products, bias)[:2]


def rdrop_loss(
    features: Tensor,
    weight: Tensor,
    target: Tensor,
    epsilon: float,
    alpha: float,
    products: torch.dtype | None = None,
    bias: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Label-smoothed cross-entropy and R-Drop's divergence (Liang et al. 2021).

    Arguments are those of `label_smoothed_nll_loss`; with `alpha` above 0, rows 2i and 2i + 1 are
    two passes over one token. Their divergence is (KL(p, q) + KL(q, p)) / 2 of the two softmax.

    Returns:
        the loss, cross-entropy plus alpha times the divergence; the NLL; the divergence: summed
        over rows. Only the loss has a gradient.
    """
    dtype = products or weight.dtype
    return ChunkedLoss.apply(
        features, weight, bias, target, epsilon, alpha, dtype, torch.is_grad_enabled()
    )


class ChunkedLoss(torch.autograd.Function):
    """`rdrop_loss`, with the gradients computed in the forward pass.

    Let e be the share of each other type, and t = 1 - (types - 1) e the target's. A token's loss is

        (t - e) nll + e sum(-log p),    its gradient by the logits    p - (t - e) onehot - e.

    The last term is the same for all logits and enters both products as a sum of rows. R-Drop adds
    what `diverge` says. On a CPU a loss whose gradient is 1 hands out the gradients it kept.
    """

    @staticmethod
    def forward(
        ctx: Any,
        features: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        target: Tensor,
        epsilon: float,
        alpha: float,
        products: torch.dtype,
        training: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Compute loss, NLL and divergence, and keep the gradients of the loss if training."""
        types, dtype_of_parameters = len(weight), weight.dtype
        share = epsilon / (types - 1)
        peak = 1.0 - epsilon - share
        dtype = torch.promote_types(weight.dtype, torch.float32)
        exact = features.to(dtype)
        weight_sum = weight.sum(0, dtype=dtype)
        features, weight = features.to(products), weight.to(products)
        target = target.unsqueeze(1)
        losses, nlls = features.new_empty(2, len(target), 1, dtype=dtype)
        divergence = losses.new_zeros(())
        scale = SCALE / (1 + alpha)  # R-Drop's gradients are larger by about so much
        features_grad = weight_grad = bias_grad = None
        if training and ctx.needs_input_grad[0]:
            features_grad = features.new_zeros(features.shape, dtype=dtype)
        if training and ctx.needs_input_grad[1]:
            weight_grad = weight.new_zeros(weight.shape, dtype=dtype)
        if training and ctx.needs_input_grad[2]:
            bias_grad = weight.new_zeros(types, dtype=dtype)

        # All logits of a token, summed, are its features by the sum of all types' weights.
        totals = torch.mv(exact, weight_sum).unsqueeze(1)
        if bias is not None:
            totals += bias.sum(dtype=dtype)
        pieces = chunks(len(target), weight, together=2 if alpha else 1)
        longest = max((rows.stop - rows.start for rows in pieces), default=0)
        buffer = weight.new_empty(longest, types, dtype=dtype)
        is_trained = any(x is not None for x in (features_grad, weight_grad, bias_grad))
        is_lower = is_trained and products != dtype
        lower_buffer = weight.new_empty(longest if is_lower else 0, types)
        is_summed = is_lower and weight_grad is not None
        lower_grad = torch.empty_like(weight if is_summed else weight[:0])
        for rows in pieces:
            scores = buffer[: rows.stop - rows.start]
            if products == dtype:
                scores = multiply_transposed(features[rows], weight, out=scores)
            else:
                scores.copy_(torch.mm(features[rows], weight.t()))
            if bias is not None:
                scores += bias
            target_score = scores.gather(1, target[rows])
            highest = scores.amax(1, keepdim=True)
            log_ratio = scores[0::2] - scores[1::2] if alpha else None
            normalizer = scores.sub_(highest).exp_().sum(1, keepdim=True)
            log_normalizer = normalizer.log() + highest
            nlls[rows] = log_normalizer - target_score
            losses[rows] = peak * nlls[rows] + share * (types * log_normalizer - totals[rows])
            if log_ratio is not None:
                log_ratio -= log_normalizer[0::2] - log_normalizer[1::2]
                scores /= normalizer
                normalizer.fill_(1)
                divergence += diverge(scores[0::2], scores[1::2], log_ratio, alpha / 2, is_trained)
            if not is_trained:
                continue
            scores.scatter_add_(1, target[rows], -peak * normalizer)
            if bias_grad is not None:
                bias_grad += torch.mv(scores.t(), normalizer.reciprocal().squeeze(1))
            if products == dtype:  # divide the smaller side of the products
                if features_grad is not None:
                    of_rows = features_grad[rows]
                    product = multiply_transposed(scores, weight.t(), out=of_rows)
                    torch.div(product, normalizer, out=of_rows)
                if weight_grad is not None:
                    weight_grad.addmm_(scores.t(), features[rows] / normalizer)
            else:
                lower = torch.mul(scores, scale / normalizer, out=lower_buffer[: len(scores)])
                if features_grad is not None:
                    features_grad[rows] = torch.mm(lower, weight)
                if weight_grad is not None:
                    add_product(weight_grad, lower.t(), features[rows], lower_grad)

        for grad in (features_grad, weight_grad):
            if grad is not None and products != dtype:
                grad /= scale
        # What all logits' gradients have in common.
        if features_grad is not None:
            features_grad -= share * weight_sum
        if weight_grad is not None:
            weight_grad -= share * exact.sum(0)
        if bias_grad is not None:
            bias_grad -= share * len(target)
        ctx.save_for_backward(features_grad, weight_grad, bias_grad)
        ctx.dtype = dtype_of_parameters
        loss, nll = losses.sum(), nlls.sum()
        if alpha:
            loss += alpha * divergence
        ctx.mark_non_differentiable(nll, divergence)
        return loss, nll, divergence

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, loss_grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        """Scale the kept gradients."""
        grads = ctx.saved_tensors
        if loss_grad.device.type != "cpu" or loss_grad != 1:  # a GPU would be waited for
            grads = [None if grad is None else grad * loss_grad for grad in grads]
        grads = [None if grad is None else grad.to(ctx.dtype) for grad in grads]
        return (*grads, None, None, None, None, None)


def diverge(p: Tensor, q: Tensor, log_ratio: Tensor, weight: float, training: bool) -> Tensor:
    """Half of KL(p, q) + KL(q, p), summed over rows; all three arguments are overwritten.

    p, q and log_ratio = log(p / q) are (tokens, types). With p = softmax(x), the gradient of
    KL(p, q) + KL(q, p) by x is p (log(p / q) - KL(p, q)) + p - q. In training p and q become
    themselves, which is what the cross-entropy wants, and `weight` times these gradients.
    """
    p_from_q = torch.linalg.vecdot(p, log_ratio).unsqueeze(1)  # KL(p, q)
    q_from_p = torch.linalg.vecdot(q, log_ratio).unsqueeze(1).neg_()
    if training:
        before = p.clone()
        factor_of_p, factor_of_q = (1 + weight * (1 - x) for x in (p_from_q, q_from_p))
        factor = log_ratio.mul_(weight)
        p.mul_(factor.add_(factor_of_p)).sub_(q, alpha=weight)
        q.mul_(factor.neg_().add_(factor_of_p + factor_of_q)).sub_(before, alpha=weight)
    return (p_from_q + q_from_p).sum() / 2


def add_product(total: Tensor, x: Tensor, y: Tensor, buffer: Tensor) -> None:
    """Add x y to `total`, (types, dim), by way of `buffer`; all but `total` in lower precision."""
    torch.mm(x, y, out=buffer)
    count = TYPES_AT_ONCE if total.device.type == "cpu" else len(total)
    parts = (z.split(count) for z in (total, buffer))
    for some, more in zip(*parts, strict=True):
        some += more


def chunks(tokens: int, weight: Tensor, together: int = 1) -> list[slice]:
    """Return slices of the tokens whose logits, tokens x types, fit the chunk size.

    So many tokens as stay `together` are in one slice, whatever its size.
    """
    elements = CHUNK_ELEMENTS_CPU if weight.device.type == "cpu" else CHUNK_ELEMENTS
    size = max(1, elements // len(weight))
    if weight.dtype == torch.float16:  # so many gradients, times SCALE, can be summed
        size = min(size, 2048)
    size = max(together, size - size % together)
    return [slice(start, min(start + size, tokens)) for start in range(0, tokens, size)]


def unwrap(model: Any) -> BaseFairseqModel:
    """Return the model inside those that wrap it for data parallelism."""
    while isinstance(inner := getattr(model, "module", None), nn.Module):
        model = inner
    return model


def products_dtype(model: Any) -> torch.dtype | None:
    """Return in which precision a model wants its matrix products, None for its parameters'."""
    model = unwrap(model)
    is_bf16 = isinstance(model, MacaronModel) and model.has_bf16_products()
    return torch.bfloat16 if is_bf16 else None


def for_features(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Inputs of a model with a plain projection that ask for features alone."""
    asked = {**inputs, "features_only": True}
    if inputs["src_tokens"].device.type != "cpu":
        asked.setdefault("alignment_layer", NO_LAYER)
    return asked


def has_plain_projection(model: BaseFairseqModel) -> bool:
    """Return whether the output is softmax(features weight^T), and the weight can be used here."""
    if getattr(model, "find_unused_parameters", False):
        return False  # DistributedDataParallel would not see the projection's weight used
    model = unwrap(model)
    kinds = TransformerModelBase, TransformerLanguageModel
    kind = next((x for x in kinds if isinstance(model, x)), None)
    if kind is None:
        return False
    owners = FusedTransformerModel, MacaronModel, kind
    owner = next(x for x in owners if isinstance(model, x))
    return (
        inherits(model, owner, "forward")
        and inherits(model, kind, *PROBABILITIES)
        and not any(map(is_watched, (model, model.decoder)))
        and projects_features(model.decoder)
    )
