"""fairseq's beam search, shown a few candidates for each hypothesis instead of all types.

At each step fairseq passes over the (hypotheses x types) matrix to look for NaN, to mask, to add
scores and to sort. No more than the best `2 * beam` types of a hypothesis can be chosen, though, so
those are found first, and the search is fairseq's own on a matrix of about that width.
"""

from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.models.transformer import TransformerModelBase
from fairseq.search import BeamSearch
from fairseq.sequence_generator import EnsembleModel, SequenceGenerator
from torch import Tensor, nn
from torch.nn import functional

from macaron_fairseq.acceleration import caches, plain

GROUP = 64  # types whose maximum is looked at first
FEW = 16  # hypotheses for which that takes longer than to sort all
PROBABILITIES = "get_normalized_probs", "get_normalized_probs_scriptable"


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

    def choose(self, log_probs: Tensor, times: int = 1) -> Tensor:
        """Those of the special symbols, at their own place, then of the best other types.

        Args:
            log_probs: (hypothesis, type).
            times: how many hypotheses each row is for.

        Returns:
            Log-probabilities, (hypothesis, `width`).
        """
        special, others = log_probs.split([self.specials, log_probs.shape[1] - self.specials], 1)
        best, types = top(others, self.best)
        own = torch.arange(self.specials, device=types.device).expand(len(types), -1)
        types = torch.cat((own, types + self.specials), 1)
        self.types = types.repeat_interleave(times, 0) if times > 1 else types
        chosen = torch.cat((special, best), 1)
        return chosen.repeat_interleave(times, 0) if times > 1 else chosen

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
    """Models that tell a search the log-probabilities of its candidates only."""

    def __init__(self, models: list[nn.Module], search: CandidateSearch) -> None:
        """Search with models, whose probabilities fairseq averages."""
        super().__init__(models)
        self.search = search
        self.draws = any(getattr(x, "apply_during_inference", False) for x in self.modules())
        self.matrices: dict[str, Tensor] = {}

    def forward_decoder(
        self,
        tokens: Tensor,
        encoder_outs: list[Any],
        incremental_states: list[Any],
        temperature: float = 1.0,
    ) -> tuple[Tensor, Tensor | None]:
        """fairseq's log-probabilities, but of candidates, and its attention."""
        if not self.is_plain():
            log_probs, attention = super().forward_decoder(
                tokens, encoder_outs, incremental_states, temperature
            )
            return self.search.choose(log_probs), attention
        decoder: Any = self.single_model.decoder
        source, state, beam = encoder_outs[0], incremental_states[0], self.search.beam
        # A sentence's hypotheses are still the same, unless they draw dropout.
        is_first = tokens.shape[1] == 1 and beam > 1 and not self.draws
        if is_first:
            tokens = tokens[::beam]
            first = torch.arange(0, len(tokens) * beam, beam)
            source = self.single_model.encoder.reorder_encoder_out(source, first)
        features, extra = decoder(tokens, source, state, features_only=True)
        project = caches.batch(state).linear(decoder.output_projection)
        log_probs = self.search.choose(
            self.log_probs(project(features[:, -1]), temperature), beam if is_first else 1
        )
        weights = extra["attn"][0]
        weights = None if weights is None else weights[:, -1]
        if is_first:
            each = torch.arange(len(tokens)).repeat_interleave(beam)
            decoder.reorder_incremental_state_scripting(state, each)
            weights = None if weights is None else weights[each]
        return log_probs, weights

    def is_plain(self) -> bool:
        """Whether this is one Transformer in fp32 on a CPU, which has its projection done here."""
        model: Any = self.single_model
        return (
            self.models_size == 1
            and isinstance(model, TransformerModelBase)
            and plain.inherits(model, TransformerModelBase, PROBABILITIES)
            and plain.projects_features(model.decoder)
            and model.decoder.output_projection.weight.dtype == torch.float32
            and model.decoder.output_projection.weight.device.type == "cpu"
            and not torch.is_grad_enabled()
        )

    def log_probs(self, logits: Tensor, temperature: float) -> Tensor:
        """Log-probabilities of all types, in a matrix that the next step overwrites.

        Fresh memory of that size would cost more than what is written in it.
        """
        if temperature != 1:
            logits.div_(temperature)
        return torch.log_softmax(logits, -1, out=self.matrix("log_probs", *logits.shape))

    def matrix(self, name: str, rows: int, columns: int) -> Tensor:
        """A matrix of that name with any content."""
        found = self.matrices.get(name)
        if found is None or len(found) < rows or found.shape[1] != columns:
            self.matrices[name] = found = torch.empty(rows, columns, dtype=torch.float32)
        return found[:rows]


class CandidateGenerator(SequenceGenerator):
    """fairseq's generator, faster for plain beam search, with the same hypotheses and scores.

    What asks for more than the best types is left to fairseq: sampling, diverse or constrained
    search, prefixes, blocked n-grams, suppressed tokens, language models.
    """

    def __init__(self, models: list[nn.Module], tgt_dict: Dictionary, **kwargs: Any) -> None:
        """Take what fairseq's generator takes."""
        super().__init__(models, tgt_dict, **kwargs)
        self.stock = stock = SequenceGenerator(models, tgt_dict, **kwargs)
        search = CandidateSearch(tgt_dict, stock.beam_size)
        self.is_plain = (
            type(stock.search) is BeamSearch
            and not stock.match_source_len
            and stock.repeat_ngram_blocker is None
            and stock.token_indices_to_suppress is None
            and stock.lm_model is None
            and max(stock.pad, stock.unk, stock.eos) < tgt_dict.nspecial
            and stock.vocab_size >= search.width
        )
        if self.is_plain:
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
        if self.is_plain and prefix_tokens is None and constraints is None:
            return super()._generate(sample, bos_token=bos_token)
        return self.stock._generate(sample, prefix_tokens, constraints, bos_token)


def top(x: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """`torch.topk` of each row, in less time where rows are long and on a CPU.

    The best lie in the groups with the best maxima, which take one pass to find.

    Returns:
        Values, in descending order, and columns, both (row, count).
    """
    groups = x.shape[1] // GROUP
    if x.device.type != "cpu" or len(x) < FEW or groups < 2 * count:
        values, columns = x.topk(count)
        return values, columns
    grouped, rest = x[:, : groups * GROUP].unflatten(1, (groups, GROUP)), x[:, groups * GROUP :]
    chosen = grouped.amax(2).topk(count, sorted=False).indices
    own = torch.arange(len(x))[:, None]
    values, places = torch.cat((grouped[own, chosen].flatten(1), rest), 1).topk(count)
    chosen = functional.pad(chosen, (0, 1), value=groups)  # the rest comes after the last group
    return values, chosen.gather(1, places // GROUP) * GROUP + places % GROUP
