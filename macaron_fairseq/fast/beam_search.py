"""fairseq's beam search on the best types of each hypothesis instead of all types.

At each step fairseq passes several times over a (hypotheses x types) matrix: to look for NaN, to
mask, to add scores and to sort. Only the best `2 * beam` types of a hypothesis can be chosen. Here
they are found first, and fairseq's search runs on a matrix of about that width.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.models.transformer import TransformerModelBase
from fairseq.search import BeamSearch
from fairseq.sequence_generator import EnsembleModel, SequenceGenerator
from torch import Tensor, nn
from torch.nn import functional

from macaron_fairseq.fast import caches
from macaron_fairseq.fast.linear import ConstantLinear, constant_weights
from macaron_fairseq.fast.replaceable import PROBABILITIES, inherits, projects_features

GROUP = 64  # types whose maximum is looked at first
FEW = 16  # with fewer hypotheses `torch.topk` of all types is faster


class CandidateSearch(BeamSearch):
    """Beam search among the columns that `choose` chose."""

    def __init__(self, dictionary: Dictionary, beam: int) -> None:
        """Search in a dictionary; fairseq looks at 2 * beam candidates of a sentence."""
        super().__init__(dictionary)
        self.specials = dictionary.nspecial
        self.beam, self.best = beam, 2 * beam
        self.types: Tensor | None = None  # of the candidates, (hypothesis, candidate)

    @property
    def width(self) -> int:
        """Candidates for each hypothesis."""
        return self.specials + self.best

    def choose(self, log_probs: Tensor) -> Tensor:
        """Choose the special symbols, which keep their places, and the best other types.

        Args:
            log_probs: (hypothesis, type).

        Returns:
            Log-probabilities, (hypothesis, `width`).
        """
        special, others = log_probs.split([self.specials, log_probs.shape[1] - self.specials], 1)
        best, types = top_k(others, self.best)
        own = torch.arange(self.specials, device=types.device).expand(len(types), -1)
        self.types = torch.cat((own, types + self.specials), 1)
        return torch.cat((special, best), 1)

    def step(
        self,
        step: int,
        lprobs: Tensor,
        scores: Tensor | None,
        prev_output_tokens: Tensor | None = None,
        original_batch_idxs: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """fairseq's step on candidates, (sentence, beam, candidate); it returns their types."""
        found, columns, beams = super().step(step, lprobs, scores)
        if self.types is None:
            raise AssertionError("candidates are chosen before a step")
        types = self.types.view(len(lprobs), -1)
        return found, types.gather(1, beams * self.width + columns), beams


class CandidateModel(EnsembleModel):
    """An ensemble that gives a search the log-probabilities of its candidates only."""

    def __init__(self, models: list[nn.Module], search: CandidateSearch) -> None:
        """Search with these models, whose probabilities fairseq averages."""
        super().__init__(models)
        self.search = search
        self.memory = torch.empty(0, 0)
        self.projection: ConstantLinear | None = None  # while weights stay as they are

    def forward_decoder(
        self,
        tokens: Tensor,
        encoder_outs: list[Any],
        incremental_states: list[Any],
        temperature: float = 1.0,
    ) -> tuple[Tensor, Tensor | None]:
        """fairseq's log-probabilities, but of candidates, and its attention."""
        if not self.projects_here():
            log_probs, attention = super().forward_decoder(
                tokens, encoder_outs, incremental_states, temperature
            )
            return self.search.choose(log_probs), attention
        decoder: Any = self.single_model.decoder
        features, extra = decoder.forward(  # past its hooks, as fairseq's search calls it
            tokens, encoder_outs[0], incremental_states[0], features_only=True
        )
        logits = (self.projection or decoder.output_projection)(features[:, -1])
        weights = extra["attn"][0]
        log_probs = self.search.choose(self.log_probs(logits, temperature))
        return log_probs, None if weights is None else weights[:, -1]

    @contextmanager
    def constant_weights(self, rows: int) -> Iterator[None]:
        """A block in which no weight changes, and `rows` hypotheses are continued at a time."""
        decoders = [model.decoder for model in self.models if hasattr(model, "decoder")]
        with constant_weights(decoders, rows):  # an encoder uses each weight only once a batch
            outermost = self.projection is None and self.projects_here()
            if outermost:
                model: Any = self.single_model
                weight = model.decoder.output_projection.weight
                self.projection = ConstantLinear(weight, None, rows)
            try:
                yield
            finally:
                if outermost:
                    self.projection = None

    def reorder_encoder_out(self, encoder_outs: list[Any] | None, new_order: Tensor) -> list[Any]:
        """fairseq's, which a search need not ask for while no sentence has left it.

        Then hypotheses stay in their sentences, and the source is the same for all of a sentence.
        """
        are_known = all(isinstance(x, TransformerModelBase) for x in self.models)
        if are_known and encoder_outs and all(is_as_long(x, new_order) for x in encoder_outs):
            return encoder_outs
        return super().reorder_encoder_out(encoder_outs, new_order)

    def reorder_incremental_state(self, incremental_states: list[Any], new_order: Tensor) -> None:
        """fairseq's, for caches that know that a search asks."""
        for state in incremental_states:
            if caches.BATCH in state:
                caches.batch(state).is_searched = True
        super().reorder_incremental_state(incremental_states, new_order)

    def projects_here(self) -> bool:
        """Whether this is one Transformer, so that its projection is done here.

        On a CPU in fp32: in other precisions nobody has measured it there.
        """
        model: Any = self.single_model
        return (
            self.models_size == 1
            and isinstance(model, TransformerModelBase)
            and inherits(model, TransformerModelBase, *PROBABILITIES)
            and projects_features(model.decoder)
            and is_measured(model.decoder.output_projection.weight)
            and not torch.is_grad_enabled()
        )

    def log_probs(self, logits: Tensor, temperature: float) -> Tensor:
        """The log-probabilities of all types, in fp32, as fairseq's models compute them.

        On a CPU they are in memory that the next step uses again.
        """
        if temperature != 1:
            logits.div_(temperature)
        if logits.device.type != "cpu":  # PyTorch's allocator does so there
            return torch.log_softmax(logits, -1, dtype=torch.float32)
        rows, types = logits.shape
        is_closed = self.memory.is_inference() and not torch.is_inference_mode_enabled()
        if self.memory.shape[1] != types or len(self.memory) < rows or is_closed:
            self.memory = torch.empty_like(logits)
        return torch.log_softmax(logits, -1, out=self.memory[:rows])


class CandidateGenerator(SequenceGenerator):
    """fairseq's generator, faster for plain beam search, with the same hypotheses and scores.

    fairseq's generator still does what needs more than the best types: sampling, diverse or
    constrained search, prefixes, blocked n-grams, suppressed tokens, language models.

    A generator is for one thread at a time. Several may search with the same models.
    """

    def __init__(self, models: list[nn.Module], tgt_dict: Dictionary, **kwargs: Any) -> None:
        """Take what fairseq's generator takes."""
        super().__init__(models, tgt_dict, **kwargs)
        self.stock = stock = SequenceGenerator(models, tgt_dict, **kwargs)
        search = CandidateSearch(tgt_dict, stock.beam_size)
        self.is_on_candidates = (
            type(stock.search) is BeamSearch
            and type(stock.model) is EnsembleModel  # a user may give one of their own kind
            and not stock.match_source_len
            and stock.repeat_ngram_blocker is None
            and stock.token_indices_to_suppress is None
            and stock.lm_model is None
            and max(stock.pad, stock.unk, stock.eos) < tgt_dict.nspecial
            and stock.vocab_size >= search.width
        )
        if self.is_on_candidates:
            self.search = search
            self.model = CandidateModel(list(stock.model.models), search)
            self.vocab_size = search.width  # of the matrix that the search sees

    def _generate(
        self,
        sample: dict[str, Any],
        prefix_tokens: Tensor | None = None,
        constraints: Tensor | None = None,
        bos_token: int | None = None,
    ) -> list[list[dict[str, Tensor]]]:
        if self.is_on_candidates and prefix_tokens is None and constraints is None:
            rows = len(sample["net_input"]["src_tokens"]) * self.search.beam
            with torch.no_grad(), self.model.constant_weights(rows):
                return super()._generate(sample, bos_token=bos_token)
        return self.stock._generate(sample, prefix_tokens, constraints, bos_token)

    def finalize_hypos(
        self, step: int, bbsz_idx: Tensor, eos_scores: Tensor, *others: Any
    ) -> list[int]:
        """fairseq's; the scores come to the host together, and not one by one at the end."""
        return super().finalize_hypos(step, bbsz_idx, eos_scores.cpu(), *others)


def is_measured(weight: Tensor) -> bool:
    """Whether to project to candidates here: on a GPU, and on a CPU in fp32, where it pays."""
    return weight.device.type != "cpu" or weight.dtype == torch.float32


def is_as_long(encoder_out: dict[str, Any], new_order: Tensor) -> bool:
    """Whether the encoder's output has a column for each row of `new_order`."""
    return bool(encoder_out["encoder_out"]) and (
        encoder_out["encoder_out"][0].shape[1] == len(new_order)
    )


def top_k(x: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """`torch.topk` of each row, in less time on a CPU where rows are long.

    The best types are in the groups with the best maxima, which one pass finds.

    Returns:
        Values, in descending order, and columns, both (row, count).
    """
    groups = x.shape[1] // GROUP
    if x.device.type != "cpu" or len(x) < FEW or groups < 2 * count:
        values, columns = x.topk(count)
        return values, columns
    grouped, rest = x[:, : groups * GROUP].unflatten(1, (groups, GROUP)), x[:, groups * GROUP :]
    chosen = grouped.amax(2).topk(count, sorted=False).indices
    own = torch.arange(len(x), device=x.device)[:, None]
    values, places = torch.cat((grouped[own, chosen].flatten(1), rest), 1).topk(count)
    chosen = functional.pad(chosen, (0, 1), value=groups)  # the rest comes after the last group
    return values, chosen.gather(1, places // GROUP) * GROUP + places % GROUP
