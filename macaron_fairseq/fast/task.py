"""fairseq's translation task with a faster beam search: `--task macaron_translation`."""

from dataclasses import dataclass, field
from typing import Any

from fairseq.tasks.translation import TranslationConfig, TranslationTask

from macaron_fairseq.fast import parallel
from macaron_fairseq.fast.beam_search import CandidateGenerator

NAME = "macaron_translation"


@dataclass
class MacaronTranslationConfig(TranslationConfig):
    """fairseq's options, and one."""

    decoding_processes: int = field(
        default=0,
        metadata={
            "help": "how many batches fairseq-generate translates at a time, each in a process of "
            "one thread (plain beam search on a CPU under Linux). Each process takes memory. "
            "Default: as many as there are threads. 1: one batch after the other, with all threads"
        },
    )


class MacaronTranslationTask(TranslationTask):
    """fairseq's task; any model of fairseq's can be used with it."""

    batches: Any = None  # the last iterator that was asked for
    translated: parallel.TranslatedBatches | None = None

    def get_batch_iterator(self, *args: Any, **kwargs: Any) -> Any:
        """fairseq's iterator."""
        self.translated = None
        self.batches = super().get_batch_iterator(*args, **kwargs)
        return self.batches

    def build_generator(
        self, models: list[Any], args: Any, seq_gen_cls: Any = None, *others: Any, **kwargs: Any
    ) -> Any:
        """The faster generator, or fairseq's where another one is asked for.

        In fairseq-generate the batches are known, and the models no longer change. Then processes
        start to translate, and the generator and the models must stay as they are.
        """
        if seq_gen_cls is None and not getattr(args, "print_alignment", None):
            seq_gen_cls = CandidateGenerator
        generator = super().build_generator(models, args, seq_gen_cls, *others, **kwargs)
        needs_targets = getattr(args, "prefix_size", 0) or getattr(args, "constraints", None)
        self.translated = None
        waiting = self.batches and not self.batches.iterations_in_epoch
        if waiting and not needs_targets and parallel.is_possible(generator, models):
            wanted = getattr(self.cfg, "decoding_processes", 0)  # fairseq's config lacks it
            self.translated = parallel.translate_ahead(generator, models, self.batches, wanted)
        return generator

    def inference_step(
        self, generator: Any, models: list[Any], sample: dict[str, Any], *others: Any, **kwargs: Any
    ) -> Any:
        """The hypotheses for each sentence of a batch."""
        plain = all(x is None for x in (*others, *kwargs.values()))  # no prefixes, no constraints
        if plain and self.translated and generator is self.translated.generator:
            found = self.translated.next(sample)
            if found is not None:
                return found
        return super().inference_step(generator, models, sample, *others, **kwargs)
