"""The masked language model with this room's layers."""

from macaron_fairseq.fast.transformer import FusedTransformerEncoder
from macaron_fairseq.model.masked_language_model import MacaronRobertaEncoder, MacaronRobertaModel


class FusedRobertaEncoder(MacaronRobertaEncoder):
    """The encoder with its head."""

    encoder_class = FusedTransformerEncoder


class FusedRobertaModel(MacaronRobertaModel):
    """`macaron_roberta` with `--macaron-kernels fused`."""

    encoder_class = FusedRobertaEncoder
