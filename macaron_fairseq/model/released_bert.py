"""The BERT of the authors' released code, as a format to load, to examine and to fine-tune.

Their `bert/` is a fork of fairseq 0.6. Its network differs from `macaron_roberta`:

- LayerNorms have no gain and bias.
- The first FFN of a layer always has ReLU, the second exact GELU.
- Embeddings are scaled, and a text's two sentences have embeddings.
- The head for masked tokens has no bias.
- A sentence's class comes from its first token by one linear map.

Their code puts six symbols in front of the words of a dictionary: see `dictionary`.
"""

import logging
import re
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from fairseq import utils
from fairseq.data import Dictionary
from fairseq.models import BaseFairseqModel
from fairseq.models.roberta.hub_interface import RobertaHubInterface
from fairseq.models.transformer import TransformerConfig
from fairseq.tasks import FairseqTask
from torch import Tensor, nn
from torch.nn import functional

from macaron_fairseq.common.errors import UserError
from macaron_fairseq.model import arguments, released
from macaron_fairseq.model.checkpoint_sizes import CLASSES_HEAD, of_head, rows
from macaron_fairseq.model.layers import MacaronEncoderLayer
from macaron_fairseq.model.masked_language_model import (
    MacaronRobertaEncoder,
    MacaronRobertaModel,
    refuse_other_sizes,
)
from macaron_fairseq.model.transformer import MacaronTransformerEncoder
from macaron_fairseq.schemes import splitting

logger = logging.getLogger(__name__)

MASK, CLS = "<mask>", "<cls>"  # a text begins with the second
NEXT_SENTENCE = "next_sentence"  # the head of pre-training: above 0, the second sentence follows

FIRST, SECOND = 1, 0  # rows of the sentences' embeddings; the first is zero and stays so

# What their files hold but the encoder, by their names.
CLASSIFIER = ("classifier.weight", "classifier.bias")
PRETRAINED = (
    "embed_out",
    *(f"mid_layer.{layer}.{name}" for layer in (0, 2) for name in ("weight", "bias")),
    *CLASSIFIER,
)

RENAMED = {
    **released.FFNS_RENAMED,
    r"mid_layer\.0\.(.*)": r"encoder.lm_head.dense.\1",
    r"mid_layer\.2\.(.*)": r"encoder.lm_head.layer_norm.\1",
    r"embed_out": r"encoder.lm_head.weight",
}


def dictionary(path: Path) -> Dictionary:
    """Read the dict.txt of a model of theirs, which lacks the symbols that their code adds.

    A dict.txt whose first two words are `<mask>` and `<cls>` is the same for fairseq's own tasks.
    """
    words = Dictionary()
    for symbol in (MASK, CLS):
        words.add_symbol(symbol)
    words.add_from_file(str(path))
    return words


class ReleasedLayer(MacaronEncoderLayer):
    """A layer whose first FFN has ReLU, and whose LayerNorms may have no gain and bias."""

    def __init__(self, cfg: TransformerConfig, return_fc: bool = False) -> None:
        super().__init__(cfg, return_fc)
        if cfg.no_normalize_affine:
            self.self_attn_layer_norm = plain_layer_norm(self.embed_dim)
            self.final_layer_norm = plain_layer_norm(self.embed_dim)
            for sublayer in self.earlier.values():
                sublayer.layer_norm = plain_layer_norm(self.embed_dim)

    def feed_forward(self, network: Any, x: Tensor) -> Tensor:
        """FFN(x); x is (time, batch, channel)."""
        if network is self:
            return super().feed_forward(network, x)
        y = self.activation_dropout_module(functional.relu(network.fc1(x)))
        return network.fc2(y)


class ReleasedSentenceEncoder(MacaronTransformerEncoder):
    """The layers, and the embeddings of which sentence a token is in."""

    layer_class = ReleasedLayer

    def __init__(self, cfg: TransformerConfig, words: Dictionary, embed_tokens: nn.Module) -> None:
        super().__init__(cfg, words, embed_tokens)
        width = cfg.encoder.embed_dim
        self.embed_segment = nn.Embedding(2, width, padding_idx=FIRST)
        if cfg.no_normalize_affine:
            self.layer_norm = plain_layer_norm(width)


def segments(tokens: Tensor, words: Dictionary) -> Tensor:
    """Which sentence each token is in, (batch, time): the first ends with the first `</s>`."""
    ends = tokens.eq(words.eos())
    is_second = (ends.cumsum(1) - ends.long()).gt(0) & tokens.ne(words.pad())
    return torch.where(is_second, SECOND, FIRST)


def plain_layer_norm(width: int) -> nn.LayerNorm:
    """A LayerNorm without gain and bias."""
    return nn.LayerNorm(width, elementwise_affine=False)


class MaskedTokenHead(nn.Module):
    """Logits of masked tokens: linear map, activation, LayerNorm, and the tokens' embeddings."""

    def __init__(self, width: int, types: int, activation: str, weight: Tensor | None) -> None:
        super().__init__()
        self.dense = nn.Linear(width, width)
        self.activation_fn = utils.get_activation_fn(activation)
        self.layer_norm = nn.LayerNorm(width)
        self.weight = nn.Linear(width, types, bias=False).weight if weight is None else weight

    def forward(self, features: Tensor, masked_tokens: Tensor | None = None) -> Tensor:
        """The logits, (..., types), of features, (batch, time, channel), or of those chosen."""
        if masked_tokens is not None:
            features = features[masked_tokens]
        y = self.layer_norm(self.activation_fn(self.dense(features)))
        return functional.linear(y, self.weight)


class SentenceHead(nn.Module):
    """Scores of a text: a linear map of its first token's features."""

    def __init__(self, width: int, classes: int, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.out_proj = nn.Linear(width, classes)

    def forward(self, features: Tensor) -> Tensor:
        """Scores, (batch, classes), of features, (batch, time, channel)."""
        return self.out_proj(self.dropout(features[:, 0]))


class ReleasedBertEncoder(MacaronRobertaEncoder):
    """The encoder, with the head for masked tokens where the model has it."""

    encoder_class = ReleasedSentenceEncoder

    def forward(
        self,
        src_tokens: Tensor,
        features_only: bool = False,
        return_all_hiddens: bool = False,
        masked_tokens: Tensor | None = None,
        segment: Tensor | None = None,
        **unused: Any,
    ) -> tuple[Tensor, dict[str, Any]]:
        """fairseq's output; `segment`, (batch, time), is what `segments` would say otherwise."""
        x, extra = self.extract_features(src_tokens, return_all_hiddens, segment=segment)
        if not features_only:
            if self.lm_head is None:
                raise UserError(
                    "this classifier of the authors' code has no head for masked tokens: use "
                    "--task sentence_prediction, or --arch transformer_bert_..."
                )
            x = self.output_layer(x, masked_tokens=masked_tokens)
        return x, extra

    def extract_features(
        self,
        src_tokens: Tensor,
        return_all_hiddens: bool = False,
        segment: Tensor | None = None,
        **unused: Any,
    ) -> tuple[Tensor, dict[str, Any]]:
        """fairseq's features, (batch, time, channel), and the layers' states."""
        inner = self.sentence_encoder
        if segment is None:
            segment = segments(src_tokens, self.dictionary)
        # fairseq scales what it gets in place of the tokens' embeddings.
        embedded = inner.embed_tokens(src_tokens)
        embedded = embedded + inner.embed_segment(segment) / inner.embed_scale
        return super().extract_features(src_tokens, return_all_hiddens, token_embeddings=embedded)

    def build_lm_head(
        self, embed_dim: int, output_dim: int, activation_fn: str, weight: Tensor | None
    ) -> MaskedTokenHead | None:
        """The head; None in a classifier."""
        if self.args.only_classifies:
            return None
        return MaskedTokenHead(embed_dim, output_dim, activation_fn, weight)


class ReleasedBertInterface(RobertaHubInterface):
    """What `from_pretrained` returns: fairseq's interface, for texts that begin with `<cls>`."""

    def encode(
        self, sentence: str, *addl_sentences: str, no_separator: bool = False
    ) -> torch.LongTensor:
        """The tokens, (time,), of `<cls> A </s> B </s>`; these models have no other separator."""
        texts = "".join(f" {self.bpe.encode(x)} </s>" for x in (sentence, *addl_sentences))
        words = self.task.source_dictionary
        return words.encode_line(CLS + texts, append_eos=False, add_if_not_exist=False).long()

    def decode(self, tokens: torch.LongTensor) -> str | list[str]:
        """The text of tokens, (time,), or of several sentences each."""
        words = self.task.source_dictionary
        inner = tokens[tokens != words.index(CLS)]
        ends = inner.eq(words.eos()).nonzero().flatten() + 1
        sentences = [self.bpe.decode(words.string(x)) for x in inner.tensor_split(ends[:-1].cpu())]
        return sentences[0] if len(sentences) == 1 else sentences

    def fill_mask(self, masked_input: str, topk: int = 5) -> list[tuple[str, float, str]]:
        """Raise a `UserError`: fairseq would put `<s>` in front of the text."""
        raise UserError(
            f"fill_mask puts <s> in front of a text, and this model's begin with {CLS}: give "
            "model.model the tokens of encode, with <mask> among them"
        )


class ReleasedBertModel(MacaronRobertaModel):
    """The authors' BERT: `transformer_bert_*`, and fine-tuned `transformer_classifier_*`.

    fairseq's tasks `masked_lm` and `sentence_prediction` train it. The former leaves the head for
    the next sentence as it is: for several GPUs give `--ddp-backend legacy_ddp`. That head's
    scores are `model(tokens, classification_head_name="next_sentence")[0]`.
    """

    encoder_class = ReleasedBertEncoder

    def __init__(self, args: Namespace, encoder: ReleasedBertEncoder) -> None:
        super().__init__(args, encoder)
        if not args.only_classifies:
            self.register_classification_head(NEXT_SENTENCE, 1)

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> ReleasedBertInterface:
        """Load trained models as `MacaronModel.from_pretrained` does."""
        found = super().from_pretrained(*args, **kwargs)
        return ReleasedBertInterface(found.cfg, found.task, found.model)

    @classmethod
    def build_model(cls, args: Namespace, task: FairseqTask) -> "ReleasedBertModel":
        """Build a model from the command line's or a checkpoint's arguments."""
        words = task.source_dictionary
        if words.index(CLS) == words.unk():
            raise UserError(
                f"the dictionary has no {CLS}, with which this model's texts begin: put the lines "
                f"'{MASK} 1' and '{CLS} 1' in front of the dict.txt of the authors' code"
            )
        return super().build_model(args, task)

    def register_classification_head(
        self, name: str, num_classes: int | None = None, inner_dim: int | None = None, **_: Any
    ) -> None:
        """Put a head on the model; it has no inner layer."""
        width = self.args.encoder_embed_dim
        self.classification_heads[name] = SentenceHead(
            width, num_classes or 1, self.args.pooler_dropout
        )

    def upgrade_state_dict_named(self, state_dict: dict[str, Tensor], name: str) -> None:
        """Rename what the authors' code named otherwise, and complete new heads.

        As in fairseq's RoBERTa, a head that the model has not is left out, or with the argument
        `load_checkpoint_heads` put on it. A new head and one left out are logged.

        Raises:
            UserError: if a file of theirs has other heads than their code saves.
        """
        is_pretrained = any(x == "embed_out" or ".lm_head." in x for x in state_dict)
        if "encoder.embed_tokens.weight" in state_dict:
            self.refuse_other_heads(state_dict)
            self.rename(state_dict, is_pretrained)
        BaseFairseqModel.upgrade_state_dict_named(self, state_dict, name)
        heads = {x for x in self.classification_heads if x != NEXT_SENTENCE}
        saved = {head for x in state_dict if (head := head_of(x)) not in (None, NEXT_SENTENCE)}
        others = saved - heads
        if getattr(self.args, "load_checkpoint_heads", False):  # as the hub interface does
            for head in sorted(others):
                self.register_classification_head(head, rows(state_dict, of_head(head)))
            others = set()
        for key in [x for x in state_dict if head_of(x) in others]:
            logger.warning("the checkpoint's head '%s' is left out: %s", head_of(key), key)
            del state_dict[key]
        if not (is_pretrained or others):
            return  # a classifier without its head, which is missed
        for key, value in self.state_dict().items():
            if head_of(key) in heads - saved:
                logger.warning("the checkpoint lacks '%s', which begins untrained", key)
                state_dict[key] = value

    def refuse_other_heads(self, state_dict: dict[str, Tensor]) -> None:
        """Raise a `UserError` if the authors' file has too few or too many parameters of heads."""
        found = [x for x in state_dict if not x.startswith("encoder.")]
        is_classifier = self.args.only_classifies and "embed_out" not in found
        kind = "classifier" if is_classifier else "pre-trained model"
        wanted = CLASSIFIER if is_classifier else PRETRAINED
        if missing := [x for x in wanted if x not in found]:
            raise UserError(
                f"the checkpoint lacks {shortened(missing)}, which each {kind} of the authors' "
                "code has: use a whole one, or another --arch"
            )
        if more := [x for x in found if x not in wanted]:
            raise UserError(
                f"the checkpoint has {shortened(more)}, which no {kind} of the authors' code has: "
                "use a file as their code saved it, or another --arch"
            )

    def rename(self, state_dict: dict[str, Tensor], is_pretrained: bool) -> None:
        """Give a file's parameters their names here."""
        head = NEXT_SENTENCE if is_pretrained else CLASSES_HEAD
        for old in list(state_dict):
            new = re.sub(r"^classifier\.", f"classification_heads.{head}.out_proj.", old)
            new = released.renamed(new, RENAMED)
            new = re.sub(r"^encoder\.(?!lm_head)", "encoder.sentence_encoder.", new)
            value = state_dict.pop(old)
            unused = is_pretrained and self.args.only_classifies
            if unused and new.startswith(("encoder.lm_head.", "classification_heads.")):
                continue  # as their --load-type no_out
            if not new.endswith("._float_tensor"):
                state_dict[new] = value
        released.keep_final_layer_norm(state_dict, "encoder.sentence_encoder")

    def load_state_dict(self, state_dict: dict[str, Tensor], *args: Any, **kwargs: Any) -> Any:
        """Load parameters, of the authors' file or of a run of fairseq-train.

        Raises:
            UserError: as `refuse_other_parameters` does.
        """
        self.refuse_other_parameters(state_dict)
        return super().load_state_dict(state_dict, *args, **kwargs)

    def refuse_other_parameters(self, state_dict: dict[str, Tensor]) -> None:
        """Give parameters their names here, and compare them with the model's.

        Raises:
            UserError: if the file lacks some, or has more than the model, or of other shapes.
        """
        self.upgrade_state_dict(state_dict)
        refuse_other_sizes(self, state_dict)
        own = self.state_dict()
        if missing := [x for x in own if x not in state_dict]:
            raise UserError(
                f"the checkpoint lacks {shortened(missing)}: use one of {self.kind()}, or another "
                "--arch"
            )
        if more := [x for x in state_dict if x not in own]:
            raise UserError(
                f"the checkpoint has {shortened(more)}, which the model does not have: use one of "
                f"{self.kind()}, or another --arch"
            )
        for name, tensor in own.items():
            shapes = [tuple(x.shape) for x in (state_dict[name], tensor)]
            if shapes[0] != shapes[1]:
                raise UserError(
                    f"'{name}' is {shapes[0]} in the checkpoint and {shapes[1]} in the model: "
                    "give the model the checkpoint's sizes"
                )

    def kind(self) -> str:
        """What the model is, in words."""
        ffns = splitting.count_ffns(arguments.steps_of(self.args, "encoder"))
        steps = "a Macaron" if ffns > 1 else "a plain"
        layers = len(self.encoder.sentence_encoder.layers)
        return f"{steps} model of {layers} layers"


def head_of(name: str) -> str | None:
    """Which head a parameter is of, by today's names; None if of none."""
    return name.split(".")[1] if name.startswith("classification_heads.") else None


def shortened(names: Sequence[str]) -> str:
    """Two of the names, and how many more there are."""
    shown = [f"'{name}'" for name in names[:2]]
    if more := names[2:]:
        shown.append(f"{len(more)} more")
    return " and ".join(shown)
