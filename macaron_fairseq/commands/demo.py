"""`macaron-fairseq demo`: phrases, translated by the trained pair that comes with the package."""

import argparse
import os
import shlex
import sys
from pathlib import Path
from typing import Any

from macaron_fairseq import api
from macaron_fairseq.commands.arguments import new_folder, positive
from macaron_fairseq.common import files
from macaron_fairseq.common.errors import explain_missing
from macaron_fairseq.translation import demo
from macaron_fairseq.translation.demo import Phrase

DESCRIPTION = """\
Translate phrases from English to German with a small Transformer and a small Macaron Net. Both come
with the package; it takes less than a minute on a CPU and needs no input. References stand next to
the translations. Neither model has seen these phrases. Both were trained on others of the same
kind, which examples/quickstart makes, and know nothing else.
"""

EXAMPLES = """\
examples:
  macaron-fairseq demo
  macaron-fairseq demo --phrases 100 | less
  macaron-fairseq demo --page            (also what the layers do to the tokens: dynamics.html)
"""
NAMES = {"transformer": "Transformer", "macaron": "Macaron"}
PAGE = "dynamics.html"
# Few, so that it takes about half a minute of one core.
PAGE_SENTENCES, PAGE_JACOBIANS = 10, 4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments and what its --help says."""
    parser.description = DESCRIPTION
    parser.epilog = EXAMPLES
    parser.add_argument(
        "--phrases",
        type=positive,
        default=8,
        metavar="N",
        help="show the first N of 100 (default: 8)",
    )
    parser.add_argument(
        "--page",
        nargs="?",
        type=new_folder,
        const=Path("demo-dynamics"),
        metavar="FOLDER",
        help="also measure both models as macaron-fairseq dynamics does, and write its page there; "
        "about a minute more (FOLDER if none is named: demo-dynamics)",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Translate, print, and with --page measure."""
    about = demo.about()
    demo.texts(args.phrases)  # which refuses too many
    if args.page:  # now, not after the translations
        try:
            import matplotlib  # noqa: F401
        except ImportError as error:
            explain_missing(error, "matplotlib", "dynamics")
        files.refuse_unwritable(args.page)
    print("loading both models: up to a minute", file=sys.stderr, flush=True)
    from macaron_fairseq import plugin  # noqa: F401 - registers the models with fairseq

    phrases = demo.translate(args.phrases)
    files.show("\n".join([*introduction(about, len(phrases)), *map(shown, phrases), legend(about)]))
    if args.page:
        measure(args.page)
        page = quoted(args.page / PAGE)
        files.show(f"\nA page that explains these rows: python3 -m webbrowser -t {page}")
    files.show("\n".join(commands(is_page_drawn=bool(args.page))))


def introduction(about: dict[str, Any], number: int) -> list[str]:
    """What is to be seen, in words."""
    millions = max(model["parameters"] for model in about["models"]) / 1e6
    return [
        f"A Transformer and Macaron Net, {millions:.1f} million parameters each, trained on",
        f"{about['training_pairs']:,} made-up phrases with dates, numbers and places. The first "
        f"{number} of the test set:",
        "",
    ]


def shown(phrase: Phrase) -> str:
    """A phrase with its reference and translations."""
    lines = [f"  English       {phrase.source}", f"  reference     {phrase.reference}"]
    for model, translation in phrase.translations.items():
        mark = "=" if phrase.as_reference[model] else "≠"
        lines.append(f"  {NAMES[model]:<11} {mark} {translation}")
    return "\n".join([*lines, ""])


def legend(about: dict[str, Any]) -> str:
    """What the marks mean, and the scores on the whole test set."""
    sentences = about["test_sentences"]
    rows = "\n".join(
        f"  {NAMES[model['name']]:<11}   BLEU {model['bleu']:.2f}, "
        f"{model['as_reference']:,} are the reference"
        for model in about["models"]
    )
    return (
        "= means the translation equals the reference, ignoring spaces and quotation marks.\n"
        f"On all {sentences:,} phrases of the test set:\n"
        f"{rows}\n"
        "One training run each: the difference says nothing about the scheme."
    )


def measure(folder: Path) -> None:
    """Measure both models on the first phrases, and write the page to a folder."""
    source, target = (demo.phrases_file(language) for language in demo.LANGUAGES)
    found = api.dynamics(
        [demo.checkpoint(model) for model in demo.MODELS],
        demo.FOLDER,
        source,
        target=target,
        labels=[*NAMES.values()],
        sentences=PAGE_SENTENCES,
        jacobian_sentences=PAGE_JACOBIANS,
    )
    command = f"macaron-fairseq demo --page {quoted(folder)}"
    api.Dynamics({**found.content, "command": command}).write(folder)
    files.show(f"\n{found}")


def commands(is_page_drawn: bool) -> list[str]:
    """Commands to paste."""
    folder, macaron = quoted(demo.FOLDER), quoted(demo.checkpoint("macaron"))
    more = [
        ("your own phrases, a line each", f"translate --data {folder} --path {macaron}"),
        ("its layers as formulas", f"describe --path {macaron}"),
    ]
    if not is_page_drawn:
        more.append(("what the layers do to the tokens", "demo --page"))
    lines = ["", "More:"]
    for what, words in more:
        lines += [f"  # {what}", f"  macaron-fairseq {words}"]
    return lines


def quoted(path: Path) -> str:
    """A path as one types it in a shell: from here where that is shorter."""
    relative = os.path.relpath(path)
    return shlex.quote(min(relative, str(path), key=len))
