"""fairseq's translation task with a faster beam search: `--task macaron_translation`."""

from typing import Any

from fairseq.tasks import register_task
from fairseq.tasks.translation import TranslationConfig, TranslationTask

from macaron_fairseq.acceleration.beam_search import CandidateGenerator

NAME = "macaron_translation"


class MacaronTranslationTask(TranslationTask):
    """fairseq's task and options; any model of fairseq's can be used with it."""

    def build_generator(
        self, models: list[Any], args: Any, seq_gen_cls: Any = None, *others: Any, **kwargs: Any
    ) -> Any:
        """fairseq's generator, the faster one where no other is asked for."""
        if seq_gen_cls is None and not getattr(args, "print_alignment", None):
            seq_gen_cls = CandidateGenerator
        return super().build_generator(models, args, seq_gen_cls, *others, **kwargs)


def register() -> None:
    """Make fairseq know the task."""
    register_task(NAME, dataclass=TranslationConfig)(MacaronTranslationTask)
