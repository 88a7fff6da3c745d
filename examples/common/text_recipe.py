"""A recipe on text of one language: its options, and what they make of its settings."""

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from common import benchmark, refused_flags
from common import options as recipe_options
from common.benchmark import Set
from common.options import Once, Parser
from common.recipe import Recipe
from macaron_fairseq.commands.arguments import positive
from macaron_fairseq.evaluation.training import training_flags

TOKENS_PER_SAMPLE = 512


@dataclass(frozen=True, kw_only=True)
class TextRecipe(Recipe):
    """A recipe that learns a language from text: all that the stages go by."""

    texts: list[Path]  # --text
    split_at: str  # how a line begins that begins a document; "": a file is one
    held_out: dict[str, list[str]]  # names of documents, by set
    block: int  # tokens of a training sample, and the models' positions
    short: tuple[int, int] | None = None  # tokens of a sample in the first so many updates

    @property
    def longest_sample(self) -> int:
        """The tokens of a training sample."""
        return self.block

    @property
    def checkpoint_name(self) -> str:
        """The last one."""
        return "checkpoint_last.pt"

    def parts(self) -> Sequence["TextRecipe"]:
        """The updates on short samples, if any, and the others."""
        if not self.short:
            return [self]
        tokens, updates = self.short
        training = self.benchmark.training
        flags = f"{training.more_flags} --tokens-per-sample {tokens}"
        described = replace(self.benchmark, training=replace(training, more_flags=flags))
        return [replace(self, benchmark=described, max_update=updates, short=None), self]


def add_text(result: Parser) -> None:
    """Add the options of a recipe on text."""
    option = result.option
    option(
        "--text",
        "FILE",
        "the text, a sentence or paragraph a line; also NAME.gz, NAME.xz and NAME.bz2",
        type=Path,
        nargs="+",
        action=Once,
        default=[],
    )
    option(
        "--split-at",
        "BEGINNING",
        "a line that begins so begins a document, and the rest of it is its name, as of "
        "'# Title: Emma' (default: a file is a document)",
        default="",
    )
    option(
        "--valid",
        "NAME",
        "documents to validate with (default: every 200th line)",
        nargs="+",
        action=Once,
        default=[],
    )
    option("--language", "XX", "of the text, for Moses' rules (default: en)", default="en")
    option(
        "--merges",
        "N",
        "BPE merges to learn from the text, in the stage prepare (default: the recipe's)",
        type=positive,
    )
    option(
        "--tokens-per-sample",
        "N",
        f"tokens of a training sample, and the models' positions (default: {TOKENS_PER_SAMPLE})",
        type=positive,
        default=TOKENS_PER_SAMPLE,
    )


TextRecipeT = TypeVar("TextRecipeT", bound=TextRecipe)


def of_text(
    kind: type[TextRecipeT],
    name: str,
    folder: Path,
    options: Any,
    extra: list[str],
    is_scored: bool,
    **more: Any,
) -> TextRecipeT:
    """A recipe on text with what the options say.

    Ends the program with a sentence where they do not fit.

    Args:
        kind: of the recipe.
        name: of the recipe.
        folder: of its benchmark.yaml.
        options: with those of `add_text` and of `add_training`.
        extra: flags of fairseq-train after --.
        is_scored: whether anything is done with what is trained.
        more: the other fields.
    """
    described = benchmark.read(folder / "benchmark.yaml")
    if not re.fullmatch("[a-z]{2,3}", options.language):
        sys.exit(f"--language takes two or three letters, such as en, not {options.language}")
    refused_flags.check_extra(extra, [], options, is_scored, refused_flags.REFUSED_ON_TEXT)
    paths = [path.resolve() for path in options.text]
    if twice := [path for path in paths if paths.count(path) > 1]:
        sys.exit(f"--text names {twice[0]} twice: leave one out")
    names = [path.name for path in options.text]
    held_out = {name for some in more["held_out"].values() for name in some}
    if not options.split_at and (twice_named := [x for x in held_out if names.count(x) > 1]):
        sys.exit(f"--text has two documents called {twice_named[0]}: rename one of the files")
    recipe = recipe_options.of_training(
        kind,
        name,
        "",
        described,
        options,
        **{"merges": options.merges or described.preprocessing.merges, **more},
        folder=folder,
        source=options.language,
        target=options.language,
        sets={name: Set() for name in described.sets},
        extra=extra,
        texts=[path.absolute() for path in options.text],
        split_at=options.split_at,
        block=options.tokens_per_sample,
    )
    refused_flags.check_schemes(recipe.archs, extra)
    if recipe.block > recipe.tokens_at_once:
        sys.exit(
            f"a sample of {recipe.block} tokens does not fit into batches of "
            f"{recipe.tokens_at_once}: give a smaller --tokens-per-sample, or a larger --max-tokens"
        )
    more_flags = f"{described.training.more_flags} --tokens-per-sample {recipe.block}"
    given = training_flags.parse([*described.training.words(), *extra])
    if given.get("--lr-scheduler") == ["polynomial_decay"]:
        # The schedule ends with the training, which may be shorter than the recipe's.
        more_flags += f" --total-num-update {recipe.max_update}"
    training = replace(described.training, more_flags=more_flags)
    refuse_long_warmup([*training.words(), *extra], recipe.max_update)
    return replace(recipe, benchmark=replace(described, training=training))


def refuse_long_warmup(flags: list[str], max_update: int) -> None:
    """End the program where the rate would still rise when the training ends."""
    given = training_flags.parse(flags).get("--warmup-updates")
    warmup = int(given[0]) if given and given[0].isdecimal() else 0
    if warmup >= max_update:
        sys.exit(
            f"the learning rate would rise for {warmup} updates, and there are {max_update}: give "
            "-- --warmup-updates N with a smaller N"
        )
