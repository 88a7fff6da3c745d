"""The model `macaron_transformer`: fairseq's transformer with layers that integrate a scheme.

And the baselines, which are fairseq's transformer with a choice of its initialisation.
"""

from argparse import ArgumentParser, Namespace
from typing import Any

from fairseq.data import Dictionary
from fairseq.models.transformer import (
    TransformerConfig,
    TransformerDecoderBase,
    TransformerEncoderBase,
    TransformerModel,
)
from fairseq.modules.fairseq_dropout import FairseqDropout
from fairseq.tasks import FairseqTask
from torch import Tensor, nn

from macaron_fairseq.compat.adaptive_softmax import keep_weights_apart
from macaron_fairseq.compat.arguments import complete_layers_to_keep
from macaron_fairseq.model import arguments, checkpoint_sizes, initialization, released
from macaron_fairseq.model.base import (
    MacaronModel,
    UnpublishedModel,
    as_namespace,
    refuse_other_task,
)
from macaron_fairseq.model.layers import MacaronDecoderLayer, MacaronEncoderLayer, wrap_layer


class MacaronTransformerEncoder(TransformerEncoderBase):
    """fairseq's encoder with layers that integrate a scheme."""

    layer_class = MacaronEncoderLayer
    dropout_module: FairseqDropout

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # As `--retain-dropout-modules` knows that of fairseq's transformer.
        self.dropout_module.module_name = "TransformerEncoder"

    def build_encoder_layer(self, cfg: TransformerConfig) -> nn.Module:
        """One layer, wrapped as fairseq wraps its own."""
        return wrap_layer(self.layer_class(cfg, return_fc=self.return_fc), cfg)


class MacaronTransformerDecoder(TransformerDecoderBase):
    """fairseq's decoder with layers that integrate a scheme."""

    layer_class = MacaronDecoderLayer
    dropout_module: FairseqDropout

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.dropout_module.module_name = "TransformerDecoder"
        keep_weights_apart(self)

    def build_decoder_layer(
        self, cfg: TransformerConfig, no_encoder_attn: bool = False
    ) -> nn.Module:
        """One layer, wrapped as fairseq wraps its own."""
        return wrap_layer(self.layer_class(cfg, no_encoder_attn), cfg)


class MacaronTransformerModel(MacaronModel, TransformerModel):
    """Macaron Net for translation (Lu et al. 2019), with all arguments of fairseq's transformer.

    Trained models load as fairseq users know it, `bpe` and `tokenizer` being fairseq's names:

        model = MacaronTransformerModel.from_pretrained(
            "checkpoints", "checkpoint_best.pt", "data-bin",
            bpe="subword_nmt", bpe_codes="code", tokenizer="moses", moses_no_dash_splits=True,
        )
        model.translate(["A sentence."], beam=5)
    """

    sides = arguments.SIDES
    tasks = ("translation",)
    encoder_class = MacaronTransformerEncoder
    decoder_class = MacaronTransformerDecoder

    @classmethod
    def add_args(cls, parser: ArgumentParser) -> None:
        """Add fairseq's transformer arguments and the scheme's."""
        super().add_args(parser)
        arguments.add(parser)

    @classmethod
    def build_model(cls, args: Namespace, task: FairseqTask) -> "MacaronTransformerModel":
        """Build a model from the command line's or a checkpoint's arguments."""
        args = as_namespace(args)
        complete_layers_to_keep(args)
        cls.complete(args, task)
        arguments.refuse_scales(args)
        arguments.refuse_unlike_embeddings(args, task)
        model = super().build_model(args, task)
        initialization.start(model, args)
        return model

    @classmethod
    def build_encoder(
        cls, cfg: TransformerConfig, src_dict: Dictionary, embed_tokens: nn.Module
    ) -> MacaronTransformerEncoder:
        """Build the encoder."""
        return cls.encoder_class(cfg, src_dict, embed_tokens)

    @classmethod
    def build_decoder(
        cls, cfg: TransformerConfig, tgt_dict: Dictionary, embed_tokens: nn.Module
    ) -> MacaronTransformerDecoder:
        """Build the decoder."""
        return cls.decoder_class(
            cfg, tgt_dict, embed_tokens, no_encoder_attn=cfg.no_cross_attention
        )

    def upgrade_state_dict_named(self, state_dict: dict[str, Tensor], name: str) -> None:
        """Rename what the authors' released code named otherwise, then what old fairseq did."""
        released.upgrade_state(state_dict)
        super().upgrade_state_dict_named(state_dict, name)

    def load_state_dict(self, state_dict: dict[str, Tensor], *args: Any, **kwargs: Any) -> Any:
        """Load parameters; refuses those that were trained with another dictionary."""
        # Merged dictionaries have one embedding, whose types are those of both.
        types = (len(side.embed_tokens.weight) for side in (self.encoder, self.decoder))
        checkpoint_sizes.refuse_other_dictionaries("the checkpoint", state_dict, *types)
        return super().load_state_dict(state_dict, *args, **kwargs)


class BaselineTransformerModel(UnpublishedModel, TransformerModel):
    """What builds the baselines: the model is fairseq's own, of fairseq's own class."""

    @classmethod
    def add_args(cls, parser: ArgumentParser) -> None:
        """Add fairseq's transformer arguments and the choice of initialisation."""
        super().add_args(parser)
        initialization.add_argument(parser)

    @classmethod
    def build_model(cls, args: Namespace, task: FairseqTask) -> TransformerModel:
        """Build fairseq's transformer from the command line's or a checkpoint's arguments."""
        refuse_other_task(args, task, MacaronTransformerModel.tasks)
        complete_layers_to_keep(args)
        arguments.refuse_unlike_embeddings(args, task)
        arguments.refuse_senseless_values(args, arguments.SIDES)
        model = TransformerModel.build_model(args, task)
        keep_weights_apart(model.decoder)
        initialization.start(model, args)
        return model
