"""The criterion `chunked_masked_lm`: fairseq's `masked_lm`, in less memory and time."""

from typing import Any

import torch
from fairseq.criterions.masked_lm import MaskedLmLoss
from fairseq.models import BaseFairseqModel
from fairseq.models.roberta import RobertaEncoder, RobertaModel
from fairseq.models.roberta.model import RobertaLMHead
from torch import Tensor

from macaron_fairseq.fast.chunked_loss import label_smoothed_nll_loss
from macaron_fairseq.fast.criterion import products_dtype, unwrap
from macaron_fairseq.fast.replaceable import PROBABILITIES, inherits, is_linear, is_watched
from macaron_fairseq.model.base import MacaronModel
from macaron_fairseq.model.released_bert import MaskedTokenHead, ReleasedBertEncoder

NAME = "chunked_masked_lm"


class ChunkedMaskedLmLoss(MaskedLmLoss):
    """fairseq's `masked_lm` without the matrix of all masked tokens' logits.

    The options, the loss and what is logged are fairseq's. Softmax and gradients are computed as in
    `ChunkedLabelSmoothedCrossEntropyCriterion`, for some tokens at a time.

    fairseq's criterion computes in three cases: the model's head is not that of fairseq's RoBERTa;
    autocast is on; or --find-unused-parameters is set.
    """

    def forward(
        self, model: BaseFairseqModel, sample: dict[str, Any], reduce: bool = True
    ) -> tuple[Tensor, Tensor, dict[str, Any]]:
        """Return loss, sample size and logging output, as fairseq's criterion does."""
        if self.tpu or not has_plain_head(model):
            return super().forward(model, sample, reduce)
        target = sample["target"]
        masked = target.ne(self.padding_idx).flatten().nonzero().squeeze(1)  # a GPU waits once
        features = model(**sample["net_input"], features_only=True)[0].flatten(0, 1)
        head = unwrap(model).encoder.lm_head
        y = head.dense(features.index_select(0, masked))
        y = head.layer_norm(head.activation_fn(y))
        loss, _ = label_smoothed_nll_loss(
            y,
            head.weight,
            target.flatten().index_select(0, masked),
            epsilon=0.0,
            products=products_dtype(model),
            bias=getattr(head, "bias", None),
        )
        sample_size = target.new_tensor(len(masked))
        log = {
            "loss": loss.data,
            "ntokens": sample["ntokens"],
            "nsentences": sample["nsentences"],
            "sample_size": sample_size,
        }
        return loss, sample_size, log


def has_plain_head(model: BaseFairseqModel) -> bool:
    """Whether masked tokens have fairseq's head or the authors', whose weights can be used here."""
    if getattr(model, "find_unused_parameters", False):
        return False  # DistributedDataParallel would not see the head's weights used
    model = unwrap(model)
    if not isinstance(model, RobertaModel):
        return False
    base = MacaronModel if isinstance(model, MacaronModel) else RobertaModel
    encoder = model.encoder
    kind = ReleasedBertEncoder if isinstance(encoder, ReleasedBertEncoder) else RobertaEncoder
    head = encoder.lm_head
    return (
        inherits(model, base, "forward")
        and inherits(model, RobertaModel, *PROBABILITIES)
        and inherits(encoder, kind, "forward")
        and inherits(encoder, RobertaEncoder, "output_layer")
        and type(head) in (RobertaLMHead, MaskedTokenHead)
        and is_linear(head.dense)
        and not any(map(is_watched, (model, encoder, head)))
        and not torch.is_autocast_enabled(head.weight.device.type)
    )
