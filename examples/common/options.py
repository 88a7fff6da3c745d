"""The options of a recipe, and what they and its benchmark.yaml make of one another."""

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from common import benchmark, refused_flags
from common.benchmark import Benchmark
from common.recipe import PLUGIN, Recipe, RecipeT
from macaron_fairseq.commands.arguments import not_negative_integer, positive, whole
from macaron_fairseq.common import names
from macaron_fairseq.common.command_words import before_dashes, empty_word, unknown_option
from macaron_fairseq.common.environment import available_cores
from macaron_fairseq.evaluation.training.runs import name_of

STAGES = ("prepare", "train", "evaluate", "report")
EPILOG = """\
-- FLAG...: further flags of fairseq-train, for all architectures

Was it interrupted? Run the same command again: finished work is kept, training resumes. If you run
the stages one by one, give each the same options. Flags after -- are for the stage train; prepare
reads --max-source-positions and --max-target-positions among them.
Several nodes: start it once on each with NNODES, NODE_RANK, MASTER_ADDR and MASTER_PORT set."""


class Parser(argparse.ArgumentParser):
    """Mistakes get one sentence, and status 1 as all others."""

    hint = "flags of fairseq-train follow a word --"  # after an option that there is not

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """What argparse does, once all words can be read."""
        self.refuse_unknown(args)
        return super().parse_args(args, namespace)

    def parse_intermixed_args(self, args: Any = None, namespace: Any = None) -> Any:
        """The same where stages may stand among options, of which it would take a value for one.

        Python 3.13.1 no longer calls `parse_known_args` here.
        """
        self.refuse_unknown(args)
        return super().parse_intermixed_args(args, namespace)

    def refuse_unknown(self, args: Sequence[str] | None) -> None:
        """End the program at an option that there is not, or an empty word."""
        words = [*(sys.argv[1:] if args is None else args)]
        if sentence := empty_word(words, self._option_string_actions):
            sys.exit(sentence)
        if sentence := unknown_option(words, self._option_string_actions, may_be_cut=False):
            is_asked = sentence.endswith("?")
            hint = self.hint.capitalize() if is_asked else self.hint
            self.error(f"{sentence} {hint}" if is_asked else f"{sentence}; {hint}")

    def option(self, name: str, metavar: str, help: str, **rest: Any) -> None:
        """Add an option that takes a value."""
        self.add_argument(name, metavar=metavar, help=help, **rest)

    def error(self, message: str) -> NoReturn:
        """End the program."""
        sentence = message.removeprefix("argument ")
        sys.exit(f"{sentence} See --help" if sentence.endswith("?") else f"{sentence}; see --help")

    def format_help(self) -> str:
        """What the recipe is about comes first."""
        about, self.description = self.description, None
        return f"{about}\n\n{super().format_help()}"


class Once(argparse.Action):
    """An option that is a list, which a second one would not add to."""

    def __call__(self, parser: Any, space: Any, values: Any, option_string: Any = None) -> None:
        """Keep the value."""
        given = vars(space).setdefault("given", set())
        if self.dest in given:
            parser.error(f"{option_string} is given twice")
        given.add(self.dest)
        setattr(space, self.dest, values)


def words_of(text: str) -> list[str]:
    """The words of an argument, at least one."""
    if not text.split():
        raise argparse.ArgumentTypeError("names nothing")
    return text.split()


def add_words(result: argparse.ArgumentParser, name: str, help: str, default: str = "") -> None:
    """Add an option that is words, each a name."""
    result.add_argument(
        name, type=words_of, action=Once, metavar='"A B"', default=default.split(), help=help
    )


def one_of(stages: Sequence[str]) -> Callable[[str], str]:
    """The type of an argument that names a stage."""

    def stage(text: str) -> str:
        if text not in stages:
            question = names.question(text, stages)
            several = " (several values are one word, as in --seeds '1 2 3')"
            raise argparse.ArgumentTypeError(
                f"{text} is neither a stage nor an option{question or several}"
            )
        return text

    return stage


def parser(header: str, program: str) -> Parser:
    """What a recipe's command line may hold; `header` says what the recipe is about."""
    result = new_parser(header, STAGES, EPILOG, program)
    option = result.option
    option(
        "--pair",
        "S-T",
        "translate from S to T (default: the first of the recipe's pairs)",
        action=Once,
    )
    option(
        "--setting",
        "NAME",
        "a variant of the recipe, if any are listed above",
        action=Once,
        default="",
    )
    option(
        "--from", "FOLDER", "copy the archives, or your text, from there; use no network", type=Path
    )
    option(
        "--mirror",
        "ADDRESS",
        "try ADDRESS/ARCHIVE first; may be repeated",
        action="append",
        default=[],
    )
    add_training(result, default_work="runs/RECIPE, and pair and setting")
    option(
        "--merges",
        "N",
        "BPE merges to learn from both languages, in the stage prepare (default: the recipe's)",
        type=positive,
    )
    option(
        "--average",
        "N",
        "score the mean of the last N epochs' checkpoints; 0: the best checkpoint "
        "(default: the recipe's)",
        type=not_negative_integer,
    )
    option(
        "--sizes",
        "any",
        "accept archives of other sizes and checksums than the usual ones",
        choices=["any"],
    )
    return result


def new_parser(
    header: str, stages: Sequence[str], epilog: str, program: str, about_stages: str = ""
) -> Parser:
    """A parser that knows the stages.

    Args:
        header: what the recipe is, for --help.
        stages: their names, in the order in which they are done.
        epilog: the end of --help.
        program: what starts the recipe.
        about_stages: their help, where not all of them are done if none is named.
    """
    result = Parser(
        usage=f"{program} [STAGE...] [OPTION...] [-- FLAG...]",
        description=header,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    result.add_argument(
        "stages",
        nargs="*",
        type=one_of(stages),
        metavar="STAGE",
        help=about_stages or f"{', '.join(stages)}, done in this order; none named: all of them",
    )
    return result


def add_training(
    result: Parser,
    with_seeds: str = "train each architecture",
    default_work: str = "runs/RECIPE",
) -> None:
    """Add the options of any recipe that trains: where, what, with which batch, on what.

    Args:
        result: the recipe's parser.
        with_seeds: what is done with each of --seeds.
        default_work: what is taken without --work.
    """
    option = result.option

    def switch(name: str, help: str) -> None:
        result.add_argument(name, action="store_true", help=help)

    option(
        "--work",
        "FOLDER",
        f"where everything is written (default: {default_work})",
        type=Path,
    )
    option(
        "--archs",
        '"A B"',
        "architectures, the baseline first; ARCH/SCHEME and ARCH/SCHEME/SUBSTEP are a Macaron "
        "architecture with another scheme (default: the recipe's)",
        action=Once,
        type=archs_of,
    )
    option(
        "--seeds",
        '"1 2 3"',
        f"{with_seeds} with each of these (default: 1)",
        action=Once,
        type=seeds_of,
        default=[1],
    )
    for name, help in (
        ("--max-update", "end training at N updates (default: the recipe's)"),
        ("--batch", "tokens of an update, on all devices together (default: the recipe's)"),
        (
            "--max-tokens",
            "tokens on a device at once; the batch of an update stays the same (default: what "
            "divides it evenly)",
        ),
        ("--processes", "train in N processes on a CPU, which share its cores (default: 1)"),
        ("--gpus", "with --dry-run: plan as if there were N GPUs"),
        ("--workers", "processes for text work (default: all cores)"),
    ):
        option(name, "N", help, type=positive)
    switch("--bf16", "train in bf16 on GPUs (default: fp16; on a CPU always fp32)")
    switch("--fp32", "train in fp32 on GPUs")
    switch("--cpu", "compute on the CPU even if there is a GPU")
    switch("--dry-run", "print the training commands and do nothing")


def archs_of(text: str) -> list[str]:
    """An argument that is architectures: each ARCH, ARCH/SCHEME or ARCH/SCHEME/SUBSTEP."""
    for name in (archs := text.split()):
        if not re.fullmatch("[^/]+(/[^/]+){0,2}", name):
            raise argparse.ArgumentTypeError(
                f"'{name}' should be ARCH, ARCH/SCHEME or ARCH/SCHEME/SUBSTEP"
            )
    if not archs:
        raise argparse.ArgumentTypeError(f"'{text}' should name architectures")
    models: dict[str, str] = {}
    for name in archs:
        if (other := models.setdefault(name_of(*name.split("/")), name)) != name:
            raise argparse.ArgumentTypeError(f"'{other}' and '{name}' are the same model")
    if len(models) < len(archs):
        raise argparse.ArgumentTypeError("an architecture is named twice")
    return archs


seed = whole(1, 2**32 - 1, "from 1 to below 2^32")  # as NumPy takes them


def seeds_of(text: str) -> list[int]:
    """An argument that is whole numbers above 0, each once."""
    found = [seed(word) for word in text.split()]
    if len({*found}) < len(found) or not found:
        raise argparse.ArgumentTypeError(f"'{text}' should name seeds, each once")
    return found


def in_order(named: Sequence[str], stages: Sequence[str]) -> list[str]:
    """The stages that are named, or all, as one follows the other."""
    return [stage for stage in stages if stage in named or not named]


def own_and_flags(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """A recipe's own words, and the flags of fairseq-train that follow --."""
    own = before_dashes(words)
    return [*own], [*words[len(own) + 1 :]]


def refuse_no_folder(path: Path | None, option: str) -> None:
    """End the program where an option names what is no folder."""
    if path and not path.is_dir():
        sys.exit(f"{path}, given by {option}, is not a folder")


def work_of(options: Any, name: str) -> Path:
    """--work, or the usual folder; ends the program where fairseq would take it for several."""
    work: Path = (options.work or PLUGIN.parent / "runs" / name).absolute()
    if re.search("[:,]", str(work)):
        sys.exit(f"fairseq splits paths at ':' and ',': choose another --work than {work}")
    return work


def of_training(
    kind: type[RecipeT], name: str, suffix: str, described: Benchmark, options: Any, **more: Any
) -> RecipeT:
    """A recipe with what the options of `add_training` say.

    Ends the program with a sentence where they do not fit.

    Args:
        kind: of the recipe.
        name: of the recipe.
        suffix: of its usual folder's name.
        described: what its benchmark.yaml says.
        options: with those of `add_training`.
        more: the other fields.
    """
    training = described.training
    if options.bf16 and options.fp32:
        sys.exit("--bf16 and --fp32 exclude each other: give one of them")
    if options.gpus and not options.dry_run:
        sys.exit("--gpus is for --dry-run: hide GPUs with CUDA_VISIBLE_DEVICES")
    return kind(
        name=name,
        benchmark=described,
        work=work_of(options, name + suffix),
        archs=options.archs or training.archs,
        seeds=options.seeds,
        max_update=options.max_update or training.max_update,
        batch=options.batch or training.tokens * training.batches,
        max_tokens=options.max_tokens,
        precision="bf16" if options.bf16 else "fp32" if options.fp32 else "fp16",
        cpu=options.cpu,
        gpus=options.gpus,
        processes=options.processes or 1,
        workers=options.workers or available_cores(),
        dry_run=options.dry_run,
        **more,
    )


def read(
    file: Path, name: str, header: str, words: Sequence[str], program: str = "RECIPE"
) -> Recipe:
    """The recipe of a benchmark.yaml with these words of the command line.

    Ends the program with a sentence where they do not fit, before anything is written.
    """
    own, extra = own_and_flags(words)
    options = parser(header, program).parse_intermixed_args(own)
    described = benchmark.read(file, options.setting)
    pairs, pair = described.pairs, pair_of(described, options)
    source, target = pair.split("-")
    sets = described.sets_of(source, target)
    if not {"train", "valid"} <= {*sets} or len(sets) < 3:
        sys.exit(f"{file}: sets should have train, valid, and a test set of {pair}")
    try:
        described.check_languages(source, target)
    except ValueError as error:
        sys.exit(f"{file}: {error}")
    is_other_pair = bool(options.pair) and pair not in pairs[:1]
    if is_other_pair:
        described = replace(described, published=[])
    refuse_useless(described, options)
    given = getattr(options, "from")
    refuse_no_folder(given, "--from")
    suffix = f"-{pair}" * is_other_pair + f"-{options.setting}" * bool(options.setting)
    average = described.evaluation.average if options.average is None else options.average
    recipe = of_training(
        Recipe,
        name,
        suffix,
        described,
        options,
        folder=file.parent,
        source=source,
        target=target,
        sets=sets,
        is_usual=not options.sizes,
        stages=["train"] if options.dry_run else in_order(options.stages, STAGES),
        given=given and given.absolute(),
        mirrors=[address.rstrip("/") for address in options.mirror],
        merges=options.merges or described.preprocessing.merges,
        average=average,
        extra=extra,
    )
    refused_flags.check_extra(extra, [average], options, is_scored=options.stages != ["train"])
    if average and "--no-epoch-checkpoints" in described.training.words():
        sys.exit(f"--average {average}: this recipe keeps no checkpoints of epochs; leave it out")
    refused_flags.check_schemes(recipe.archs, extra)
    return recipe


def pair_of(described: Benchmark, options: Any) -> str:
    """The languages, as S-T: of --pair, or the first of the recipe's."""
    pairs = described.pairs
    pair = options.pair or (pairs or [""])[0]
    if not re.fullmatch("[a-z]{2,3}-[a-z]{2,3}", pair):
        sys.exit("say which languages: --pair S-T, for example en-de")
    if pairs and pair not in pairs:
        sys.exit(f"the pairs are {' '.join(pairs)}, not {pair}")
    source, target = pair.split("-")
    if source == target:
        sys.exit(f"--pair names two languages, not {source} twice")
    return str(pair)


def refuse_useless(described: Benchmark, options: Any) -> None:
    """End the program at an option on archives where none is fetched."""
    of_archives = ("from", "mirror", "sizes")
    if described.program and (useless := [x for x in of_archives if getattr(options, x)]):
        sys.exit(f"--{useless[0]} is for archives: this recipe makes its own corpus")
    if described.own_text and (useless := [x for x in of_archives[1:] if getattr(options, x)]):
        sys.exit(f"--{useless[0]} is for archives: this recipe takes your own text")
    if getattr(options, "from") and options.mirror:
        sys.exit("--from and --mirror exclude each other: what is in a folder is not fetched")
