"""Schemes side by side: one recipe with a model for each of them, and a table of all."""

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import recipe
from common import entry
from common.options import Once, Parser, add_words, own_and_flags, seeds_of

HERE = Path(__file__).resolve().parent
EXAMPLES = HERE.parent

NAME = "schemes"
# The recipe's script, and where the runs are unless --work says it.
RECIPES = {
    "quickstart": ("quickstart/run.sh", "runs/schemes"),
    "multi30k": ("multi30k/reproduce.sh", "runs/schemes-multi30k"),
}
BASELINE = "baseline"
VARIANTS = (
    f"{BASELINE} lie-trotter-reversed strang-marchuk strang-marchuk-attention strang-symmetric "
    "parallel yoshida4 strang-symmetric/midpoint parallel/midpoint parallel/rk4 "
    "parallel/gated-rk2 yoshida4/midpoint"
)
# Options of the recipe that are set here, and what to do instead.
SET_HERE = {
    "--work": "give it before the word --",
    "--archs": "--variants names the models",
    "--seeds": "give it before the word --",
    "--dry-run": "there is no dry run",
}
OF_VARIANT = re.compile("--macaron-(.*scheme|substep)$")  # flags that a name of --variants is for


class TwofoldParser(Parser):
    """Its hint names both words --."""

    hint = "options of the recipe follow a word --, and flags of fairseq-train a second one"


def parser() -> argparse.ArgumentParser:
    """What the command line may hold."""
    result = TwofoldParser(
        usage="run.sh [OPTION...] [-- OPTION... [-- FLAG...]]",
        description=entry.header(HERE / "run.sh"),
        epilog="-- OPTION...: of the recipe; -- FLAG...: further flags of fairseq-train, for all",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = result.add_argument
    add("--recipe", choices=RECIPES, default="quickstart", help="default: quickstart")
    add_words(result, "--variants", f"default: {VARIANTS}", VARIANTS)
    add(
        "--seeds",
        type=seeds_of,
        action=Once,
        metavar='"1 2"',
        default=[1, 2, 3],
        help='train each with each of these seeds (default: "1 2 3")',
    )
    add("--work", type=Path, metavar="FOLDER", help="where all is kept (default: see above)")
    return result


def main(words: Sequence[str]) -> None:
    """Train, score and compare; every mistake is one sentence and a status of 1."""
    with entry.refusals(NAME):
        run(words)


def run(words: Sequence[str]) -> None:
    """Do what the command line says."""
    end = words.index("--") if "--" in words else len(words)
    args = parser().parse_args(words[:end])
    options = words[end + 1 :]
    of_recipe, flags = own_and_flags(options)
    for name in (word.partition("=")[0] for word in of_recipe):
        if name in SET_HERE:
            sys.exit(f"{name} is not for the recipe here: {SET_HERE[name]}; see --help")
    for flag in (word.partition("=")[0] for word in flags):
        if OF_VARIANT.match(flag):
            sys.exit(
                f"{flag} would make the models others than the table calls them: leave it out; "
                "--variants can name a sub-step"
            )
    if len({*args.variants}) < len(args.variants):
        sys.exit("--variants: a variant is named twice; see --help")
    script, usual = RECIPES[args.recipe]
    work = (args.work or EXAMPLES.parent / usual).absolute()
    seeds = " ".join(map(str, args.seeds))
    archs = [arch_of(variant) for variant in args.variants]
    stages = "prepare", "train", "evaluate"
    own = ("--work", str(work), "--archs", " ".join(archs), "--seeds", seeds)
    recipe.run(EXAMPLES / script, [*stages, *own, *options])
    folders = {
        variant: [work / arch / f"seed{seed}" for seed in args.seeds]
        for variant, arch in zip(args.variants, archs, strict=True)
    }
    import table  # with fairseq, which --help does not wait for

    table.write(folders, work)


def arch_of(variant: str) -> str:
    """What --archs calls a variant."""
    if variant == BASELINE:
        return "transformer_tiny_pre_norm"
    return f"macaron_transformer_tiny/{variant}"


if __name__ == "__main__":
    main(sys.argv[1:])
