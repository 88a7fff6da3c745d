"""The criterion `chunked_label_smoothed_cross_entropy_with_rdrop`: fairseq's, in less memory.

R-Drop (Liang et al. 2021, arXiv 2106.14448) sees each sentence twice in an update, with two draws
of dropout. It pulls the two predictions towards each other:

    L = CE(p) + CE(q) + alpha (KL(p, q) + KL(q, p)) / 2

The batch is doubled and goes through the model once, so that it works with any model.
"""

import math
from typing import Any

import torch
from fairseq.criterions.label_smoothed_cross_entropy_with_rdrop import (
    RdropLabelSmoothedCrossEntropyCriterion,
)
from fairseq.models import BaseFairseqModel
from torch import Tensor

from macaron_fairseq.common.errors import UserError
from macaron_fairseq.fast import chunked_loss, criterion
from macaron_fairseq.fast.chunked_loss import rdrop_loss
from macaron_fairseq.fast.criterion import (
    ChunkedLabelSmoothedCrossEntropyCriterion,
    for_features,
    products_dtype,
    takes_features,
    unwrap,
)

NAME = f"{criterion.NAME}_with_rdrop"


class ChunkedRdropLabelSmoothedCrossEntropyCriterion(RdropLabelSmoothedCrossEntropyCriterion):
    """fairseq's `label_smoothed_cross_entropy_with_rdrop` without the matrix of all tokens' logits.

    Options, loss and gradients in training are fairseq's; for other models than those of
    `ChunkedLabelSmoothedCrossEntropyCriterion` it is fairseq's criterion. Where fairseq's counts
    each token twice, this one counts it once: in evaluation, where both passes would be the same
    and this is the plain criterion, and in the NLL that training logs.
    """

    def __init__(
        self,
        task: Any,
        sentence_avg: bool,
        label_smoothing: float,
        ignore_prefix_size: int = 0,
        report_accuracy: bool = False,
        rdrop_alpha: float = 0.0,
    ) -> None:
        if not 0 <= rdrop_alpha < math.inf:
            raise UserError(f"--rdrop-alpha is {rdrop_alpha}: give a number, 0 or more")
        options = task, sentence_avg, label_smoothing, ignore_prefix_size, report_accuracy
        super().__init__(*options, rdrop_alpha)
        self.plain = ChunkedLabelSmoothedCrossEntropyCriterion(*options)

    def forward(
        self, model: BaseFairseqModel, sample: dict[str, Any], reduce: bool = True
    ) -> tuple[Tensor, int, dict[str, Any]]:
        """Return loss, sample size and logging output, as fairseq's criterion does."""
        if not (model.training and self.rdrop_alpha):
            return self.plain(model, sample, reduce)
        inputs = {**sample["net_input"]}  # in which the parent doubles the batch
        if reduce and takes_features(self, model, RdropLabelSmoothedCrossEntropyCriterion):
            inputs = for_features(inputs)
        loss, sample_size, log = super().forward(model, {**sample, "net_input": inputs}, reduce)
        log["nll_loss"] = log["nll_loss"] / 2  # a perplexity of both passes would be the square
        return loss, sample_size, log

    def compute_loss(
        self, model: BaseFairseqModel, net_output: Any, sample: dict[str, Any], reduce: bool = True
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the sums over both passes of the loss and the NLL, and of the divergence."""
        if "features_only" not in sample["net_input"]:
            return super().compute_loss(model, net_output, sample, reduce)
        features, weight, target = self.select(model, net_output, sample)
        products = products_dtype(model)
        return rdrop_loss(features, weight, target, self.eps, self.rdrop_alpha, products)

    def compute_accuracy(
        self, model: BaseFairseqModel, net_output: Any, sample: dict[str, Any]
    ) -> tuple[Tensor, Tensor]:
        """Return how many targets are the most probable type, and how many there are."""
        if "features_only" not in sample["net_input"]:
            return super().compute_accuracy(model, net_output, sample)
        features, weight, target = self.select(model, net_output, sample)
        return chunked_loss.accuracy(features, weight, target)

    def select(
        self, model: BaseFairseqModel, net_output: Any, sample: dict[str, Any]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return what the loss is of, with the two passes over a token one after the other.

        Returns:
            Features, (2 tokens, dim), of the tokens that count; the projection's weight,
            (types, dim); targets, (2 tokens,).
        """
        target = model.get_targets(sample, net_output)[:, self.ignore_prefix_size :].flatten()
        features = net_output[0][:, self.ignore_prefix_size :].flatten(0, 1)
        counted = self.plain.counted(target, sample)
        places = torch.stack((counted, counted + len(target)), 1).flatten()
        weight = unwrap(model).decoder.output_projection.weight
        target = target.index_select(0, counted).repeat_interleave(2)
        return features.index_select(0, places), weight, target
