"""The model `macaron_transformer`: fairseq's transformer with layers that integrate a scheme."""

import os
from argparse import SUPPRESS, ArgumentParser, Namespace
from pathlib import Path
from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.hub_utils import GeneratorHubInterface
from fairseq.models import register_model
from fairseq.models.transformer import TransformerConfig, TransformerModel
from fairseq.tasks import FairseqTask
from fairseq.tasks.translation import TranslationTask
from omegaconf import OmegaConf
from torch import Tensor, nn

from macaron_fairseq import architectures, checkpoints, kernels, released, schemes, substeps
from macaron_fairseq.checkpoints import PassUserDir
from macaron_fairseq.decoder import MacaronTransformerDecoder
from macaron_fairseq.encoder import MacaronTransformerEncoder
from macaron_fairseq.errors import UserError
from macaron_fairseq.task import MacaronTranslationTask


@register_model("macaron_transformer")
class MacaronTransformerModel(TransformerModel):
    """Macaron Net for translation (Lu et al. 2019), with all arguments of fairseq's transformer.

    Trained models load as fairseq users know it, `bpe` and `tokenizer` being fairseq's names:

        model = MacaronTransformerModel.from_pretrained(
            "checkpoints", "checkpoint_best.pt", "data-bin",
            bpe="subword_nmt", bpe_codes="codes", tokenizer="moses",
        )
        model.translate(["A sentence."], beam=5)
    """

    @classmethod
    def hub_models(cls) -> dict[str, str]:
        """No model is published under a name; give `from_pretrained` a folder."""
        return {}

    @classmethod
    def from_pretrained(
        cls,
        model_name_or_path: str,
        checkpoint_file: str = "model.pt",
        data_name_or_path: str = ".",
        **kwargs: Any,
    ) -> GeneratorHubInterface:
        """fairseq's loader of trained models, which see; refuses bad files by name."""
        for name in checkpoint_file.split(os.pathsep):
            checkpoints.load(Path(model_name_or_path, name))
        hub = super().from_pretrained(
            model_name_or_path, checkpoint_file, data_name_or_path, **kwargs
        )
        if type(hub.task) is TranslationTask:  # which only searches slower
            dictionaries = hub.task.source_dictionary, hub.task.target_dictionary
            hub.task = MacaronTranslationTask(hub.task.cfg, *dictionaries)
        return hub

    @classmethod
    def add_args(cls, parser: ArgumentParser) -> None:
        """Add fairseq's transformer arguments and the scheme's."""
        super().add_args(parser)
        add = parser.add_argument
        add(
            "--macaron-scheme",
            metavar="NAME",
            default=SUPPRESS,
            help="splitting scheme of each layer: "
            f"{', '.join(schemes.SCHEMES)} (default: {schemes.DEFAULT})",
        )
        for side in ("encoder", "decoder"):
            add(
                f"--macaron-{side}-scheme",
                metavar="NAME",
                default=SUPPRESS,
                help=f"that of the {side}, where it is another",
            )
        add(
            "--macaron-substep",
            metavar="NAME",
            default=SUPPRESS,
            help="how each step of a scheme is taken: "
            f"{', '.join(substeps.SUBSTEPS)} (default: {substeps.DEFAULT})",
        )
        add(
            "--macaron-post-norm",
            action="store_true",
            default=SUPPRESS,
            help="LayerNorm after each residual connection instead of before each operator",
        )
        add(
            "--macaron-kernels",
            choices=kernels.NAMES,
            default=SUPPRESS,
            help="who computes attention and dropout: this package, or fairseq for comparison; "
            f"the results are the same (default: {kernels.NAMES[0]})",
        )
        add(
            "--macaron-matmul",
            choices=["fp32", "bf16"],
            default=SUPPRESS,
            help="precision of matrix products in training on a CPU: bf16 is faster, less exact; "
            "parameters and sums stay fp32 (default: fp32; on GPUs use --bf16)",
        )
        for side in ("encoder", "decoder"):
            add(
                f"--{side}-first-ffn-embed-dim",
                type=int,
                metavar="N",
                default=SUPPRESS,
                help=f"inner width of the first FFN of each {side} layer, where it is another "
                f"than --{side}-ffn-embed-dim",
            )

    @classmethod
    def build_model(cls, args: Namespace, task: FairseqTask) -> "MacaronTransformerModel":
        """Build a model from the command line's or a checkpoint's arguments."""
        if OmegaConf.is_config(args):  # of fairseq-hydra-train; fairseq loses what it does not know
            values: Any = OmegaConf.to_object(args)
            args = Namespace(**values)
        released.upgrade_args(args)
        architectures.complete(args)
        complete_layers_to_keep(args)
        refuse_unworkable(args, task)
        refuse_senseless_steps(args)
        args.__class__ = PassUserDir  # as which fairseq will save it; see there
        model = super().build_model(args, task)
        if args.macaron_kernels == kernels.FUSED:
            kernels.fuse(model)
            model.decoder.trains_without_weights = not getattr(args, "load_alignments", None)
        return model

    @classmethod
    def build_encoder(
        cls, cfg: TransformerConfig, src_dict: Dictionary, embed_tokens: nn.Module
    ) -> MacaronTransformerEncoder:
        """Build the encoder."""
        return MacaronTransformerEncoder(cfg, src_dict, embed_tokens)

    @classmethod
    def build_decoder(
        cls, cfg: TransformerConfig, tgt_dict: Dictionary, embed_tokens: nn.Module
    ) -> MacaronTransformerDecoder:
        """Build the decoder."""
        return MacaronTransformerDecoder(
            cfg, tgt_dict, embed_tokens, no_encoder_attn=cfg.no_cross_attention
        )

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the decoder's output for source and previous target tokens, as fairseq does."""
        if not self.has_bf16_products():
            return super().forward(*args, **kwargs)
        with torch.autocast("cpu", torch.bfloat16):
            output, extra = super().forward(*args, **kwargs)
        return output.float(), extra  # a sum of losses needs more than 8 bits

    def has_bf16_products(self) -> bool:
        """Whether matrix products are to be of bf16: in training, where asked for."""
        return self.training and self.args.macaron_matmul == "bf16"

    def upgrade_state_dict_named(self, state_dict: dict[str, Tensor], name: str) -> None:
        """Rename what the authors' released code named otherwise, then what old fairseq did."""
        released.upgrade_state(state_dict)
        super().upgrade_state_dict_named(state_dict, name)

    def load_state_dict(self, state_dict: dict[str, Tensor], *args: Any, **kwargs: Any) -> Any:
        """Load parameters; refuses those that were trained with another dictionary."""
        for side, embed in (("encoder", "source"), ("decoder", "target")):
            key = f"{side}.embed_tokens.weight"
            types = len(getattr(self, side).dictionary)
            if key in state_dict and len(state_dict[key]) != types:
                raise UserError(
                    f"the checkpoint embeds {len(state_dict[key])} {embed} types, but the {embed} "
                    f"dictionary has {types}: use the data folder, or the dict.*.txt, that the "
                    "model was trained with"
                )
        return super().load_state_dict(state_dict, *args, **kwargs)


def complete_layers_to_keep(args: Namespace) -> None:
    """Mend `--encoder-layers-to-keep` and `--decoder-layers-to-keep` in place.

    fairseq parses a list but expects its text, and given one side's it loses the other's layers.
    """
    kept = [getattr(args, f"{side}_layers_to_keep", None) for side in ("encoder", "decoder")]
    if not any(kept):
        return
    for side, layers in zip(("encoder", "decoder"), kept, strict=True):
        layers = layers or range(getattr(args, f"{side}_layers"))
        text = layers if isinstance(layers, str) else ",".join(map(str, layers))
        setattr(args, f"{side}_layers_to_keep", text)


def refuse_unworkable(args: Namespace, task: FairseqTask) -> None:
    """Refuse, before data is read, what fairseq would reject later or ignore."""
    source, target = task.source_dictionary, task.target_dictionary
    if args.share_all_embeddings and source != target:
        raise UserError(
            f"--share-all-embeddings needs one dictionary for both languages, but the source has "
            f"{len(source)} types and the target {len(target)}, not the same: run "
            "fairseq-preprocess with --joined-dictionary, or drop the flag"
        )
    if args.share_all_embeddings and args.encoder_embed_dim != args.decoder_embed_dim:
        raise UserError(
            f"--share-all-embeddings needs one width, but --encoder-embed-dim is "
            f"{args.encoder_embed_dim} and --decoder-embed-dim {args.decoder_embed_dim}: set both"
        )
    if args.macaron_matmul == "bf16" and is_for_gpu(args):
        raise UserError(
            "--macaron-matmul bf16 is for training on a CPU, where all else stays fp32: drop it "
            "and give --bf16, or give --cpu without --fp16 and --bf16"
        )
    for side in ("encoder", "decoder"):
        width, heads = (
            getattr(args, f"{side}_{name}") for name in ("embed_dim", "attention_heads")
        )
        if width % heads:
            raise UserError(
                f"--{side}-embed-dim {width} cannot be divided among --{side}-attention-heads "
                f"{heads}: choose a multiple"
            )


def is_for_gpu(args: Namespace) -> bool:
    """Whether fairseq-train was asked for half precision or will use a GPU that is here."""
    if getattr(args, "fp16", False) or getattr(args, "bf16", False):
        return True
    return torch.cuda.is_available() and not getattr(args, "cpu", True)


def refuse_senseless_steps(args: Namespace) -> None:
    """Refuse schemes and sub-steps that the layers' norms or kernels do not go with."""
    substep = substeps.get(args.macaron_substep)
    for side in ("encoder", "decoder"):
        name, steps = schemes.name_of_side(args, side), schemes.of_side(args, side)
        if getattr(args, f"{side}_normalize_before"):
            continue
        reason = None
        if substep.evaluations > 1:
            reason = (
                f"the sub-step '{args.macaron_substep}'",
                "it follows the flow x' = f(x), and a post-norm layer normalises the state",
            )
        elif any(len(x.operators) > 1 for x in steps):
            reason = (
                f"the scheme '{name}'",
                "its operators add to one state, and in post-norm each has a LayerNorm of its own",
            )
        elif any(x.size < 0 for x in steps):
            reason = (
                f"the scheme '{name}'",
                "some of its steps go back, but a post-norm layer has normalised the state since",
            )
        if reason:
            raise UserError(f"{reason[0]} needs pre-norm in the {side}, since {reason[1]}")
    if args.macaron_kernels == kernels.FAIRSEQ:
        applied = schemes.operators(schemes.of_side(args, "decoder"))
        attentions = [x for x in applied if x.kind == schemes.SELF_ATTENTION]
        if substep.evaluations > 1 or len(set(attentions)) < len(attentions):
            raise UserError(
                "--macaron-kernels fairseq has one cache for each attention, and the decoder's "
                f"'{schemes.name_of_side(args, 'decoder')}' with the sub-step "
                f"'{args.macaron_substep}' evaluates self-attention several times: drop the flag"
            )
