"""The criterion `chunked_label_smoothed_cross_entropy`: fairseq's, in less memory and time."""

from collections.abc import Mapping
from typing import Any

import torch
from fairseq.criterions.label_smoothed_cross_entropy import (
    LabelSmoothedCrossEntropyCriterion,
)
from fairseq.models import BaseFairseqModel
from fairseq.models.transformer import TransformerModelBase
from fairseq.models.transformer_lm import TransformerLanguageModel
from fairseq.tasks.translation import TranslationTask
from torch import Tensor, nn

from macaron_fairseq.fast.chunked_loss import accuracy, label_smoothed_nll_loss
from macaron_fairseq.fast.replaceable import (
    PROBABILITIES,
    inherits,
    is_watched,
    projects_features,
)
from macaron_fairseq.fast.task import MacaronTranslationTask
from macaron_fairseq.fast.transformer import FusedTransformerModel
from macaron_fairseq.model.base import MacaronModel

NAME = "chunked_label_smoothed_cross_entropy"

# No layer has this number, so no attention weights are computed: the loss needs none.
NO_LAYER = -1


class ChunkedLabelSmoothedCrossEntropyCriterion(LabelSmoothedCrossEntropyCriterion):
    """fairseq's `label_smoothed_cross_entropy` without the matrix of all tokens' logits.

    Options, the loss and what is logged are fairseq's. Padding is left out before the output
    projection. Projection, softmax and both gradients are computed for some tokens at a time.

    fairseq's criterion computes in four cases: the model's output is no plain projection; the loss
    of each token is asked for (`reduce=False`); autocast is on; or --find-unused-parameters is set.
    So it does in a subclass with its own `get_lprobs_and_target`.
    """

    def forward(
        self, model: BaseFairseqModel, sample: dict[str, Any], reduce: bool = True
    ) -> tuple[Tensor, int, dict[str, Any]]:
        """Return loss, sample size and logging output, as fairseq's criterion does."""
        if reduce and takes_features(self, model):
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
            and type(self.task) in (TranslationTask, MacaronTranslationTask)  # which mask none
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
    return {"alignment_layer": NO_LAYER, **inputs, "features_only": True}


def takes_features(
    criterion: Any, model: BaseFairseqModel, base: type = LabelSmoothedCrossEntropyCriterion
) -> bool:
    """Whether a criterion can compute its loss from a model's features alone.

    Not where a subclass makes log-probabilities in its own way, of logits; `base` is fairseq's.
    """
    return inherits(criterion, base, "get_lprobs_and_target") and has_plain_projection(model)


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
