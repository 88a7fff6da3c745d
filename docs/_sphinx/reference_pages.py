"""A Sphinx extension: the parts of the reference that the code itself can tell.

A page says where one belongs with a comment, which the Markdown named by `PARTS` replaces:

    <!-- generated: commands -->

So a new argument or command stands in the reference without another edit. Short tables stand in the
pages, too, for those who read them without the site, up to a second comment:

    <!-- generated: schemes -->
    ...
    <!-- end -->

`python docs/_sphinx/reference_pages.py` writes these anew; a test fails where they are old.
"""

import argparse
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairseq.criterions.label_smoothed_cross_entropy import (
    LabelSmoothedCrossEntropyCriterionConfig,
)
from fairseq.dataclass.utils import gen_parser_from_dataclass

from macaron_fairseq import cli, plugin
from macaron_fairseq.analysis import empty_models
from macaron_fairseq.analysis.by_layer import Group
from macaron_fairseq.analysis.dynamics import glossary
from macaron_fairseq.analysis.residual import glossary as residual_glossary
from macaron_fairseq.common.markdown import table
from macaron_fairseq.distillation.criterion import (
    DistilledLabelSmoothedCrossEntropyCriterionConfig,
)
from macaron_fairseq.distillation.cross_vocabulary.criterion import (
    CrossVocabularyLabelSmoothedCrossEntropyCriterionConfig,
)
from macaron_fairseq.distillation.student_criterion import StudentConfig
from macaron_fairseq.model import architectures, arguments
from macaron_fairseq.schemes import splitting, substeps
from macaron_fairseq.schemes.splitting import CROSS_ATTENTION, FFN, SELF_ATTENTION, Steps

if TYPE_CHECKING:
    from sphinx.application import Sphinx

DOCS = Path(__file__).parent.parent
WRITTEN_PART = "(?:(?!<!-- generated).)*?<!-- end -->"
MARKER = re.compile(f"<!-- generated: ([a-z-]+) -->(?:\n\n{WRITTEN_PART})?", re.DOTALL)
WRITTEN = re.compile(f"(<!-- generated: ([a-z-]+) -->\n\n){WRITTEN_PART}", re.DOTALL)
LETTERS = {SELF_ATTENTION: "F", CROSS_ATTENTION: "C", FFN: "G"}


def setup(app: "Sphinx") -> dict[str, Any]:
    """Tell Sphinx of the extension."""
    app.connect("source-read", insert)
    app.connect("doctree-read", enlarge)
    app.connect("autodoc-process-docstring", mark_code, priority=400)  # before napoleon
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}


def insert(app: "Sphinx", page: str, source: list[str]) -> None:
    """Put the generated parts into a page's source."""
    source[0] = MARKER.sub(lambda found: PARTS[found[1]](), source[0])


def renewed(page: str) -> str:
    """A page whose tables are those of the code."""
    return WRITTEN.sub(lambda found: f"{found[1]}{PARTS[found[2]]()}\n\n<!-- end -->", page)


def enlarge(app: "Sphinx", page: Any) -> None:
    """Give pictures a width: Sphinx links those that have one to their file, in full size."""
    from docutils import nodes

    for image in page.findall(nodes.image):
        if image["uri"].endswith(".png"):
            image["width"] = "100%"


def mark_code(
    app: "Sphinx", what: str, name: str, value: Any, options: Any, lines: list[str]
) -> None:
    """Make reStructuredText of a docstring: what it indents after a blank line is code."""
    result: list[str] = []
    text_indent, is_code, after_blank = 0, False, False
    is_example = False  # from >>> to the next blank line
    for line in lines:
        is_example = bool(line.strip()) and (is_example or line.lstrip().startswith(">>>"))
        indent = len(line) - len(line.lstrip())
        if line.strip():
            if after_blank and not is_code and indent > text_indent:
                is_code = True
                result += [" " * text_indent + "::", ""]
            elif indent <= text_indent:
                is_code = False
            if not is_code:
                text_indent = indent
        after_blank = not line.strip()
        result.append(line if is_code or is_example else line.replace("|", r"\|"))
    lines[:] = result


# --- schemes and architectures -------------------------------------------------------------------


def schemes() -> str:
    """A row for each scheme: its formulas in the letters F, C and G."""
    rows = [
        [f"`{name}`", letters(scheme.encoder), letters(scheme.decoder)]
        for name, scheme in splitting.SCHEMES.items()
    ]
    return table(["`--macaron-scheme`", "encoder layer", "decoder layer"], rows)


def letters(steps: Steps) -> str:
    """Steps in the order of their application, as in ½G₁ F ½G₂."""
    return " · ".join(
        factor(step.size) + " + ".join(letter(x, steps) for x in step.operators) for step in steps
    )


def factor(size: float) -> str:
    """A step's size as people write it, nothing for a whole step."""
    return "" if size == 1 else splitting.as_fraction(size).replace("1/2", "½")


def letter(operator: splitting.Operator, steps: Steps) -> str:
    """An operator's letter, with a number where a layer has several of its kind."""
    number = "₁₂"[operator.number - 1]
    is_one_of_several = operator.kind == FFN and splitting.count_ffns(steps) > 1
    return LETTERS[operator.kind] + number * is_one_of_several


def sub_steps() -> str:
    """A row for each sub-step."""
    rows = [
        [f"`{name}`", f"`{substep.formula}`", str(substep.evaluations)]
        for name, substep in substeps.SUBSTEPS.items()
    ]
    return table(["`--macaron-substep`", "k in x ← x + h k", "evaluations"], rows)


def named_architectures() -> str:
    """A row for each Macaron architecture, with its baseline."""
    rows = []
    sizes = {suffix: (size, size.layers) for suffix, size in architectures.SIZES.items()}
    for suffix, (size, decoder_layers) in {**sizes, **architectures.STUDENTS}.items():
        dropouts = (size.dropout, size.attention_dropout, size.activation_dropout)
        rows.append(
            [
                f"`{architectures.MODEL}{suffix}`",
                f"`transformer{suffix}_pre_norm`",
                f"{size.embed_dim} / {size.heads} / {size.layers}+{decoder_layers}",
                f"2x{size.ffn_embed_dim // 2} ({size.ffn_embed_dim})",
                millions(f"{architectures.MODEL}{suffix}", share_all_embeddings=True),
                " / ".join(f"{x:g}" for x in dropouts),
            ]
        )
    heads = ["`--arch`", "baseline of equal size", "width / heads / layers", "FFN (baseline)"]
    return table([*heads, "parameters", "dropout / attention / activation"], rows)


def millions(arch: str, **flags: bool) -> str:
    """The parameters of a model with the usual number of types."""
    described = empty_models.of_architecture(arch, argparse.Namespace(**flags), empty_models.TYPES)
    count = sum(x.numel() for x in empty_models.build(*described).parameters())
    return f"{count / 1e6:.1f} million"


def language_model_architectures() -> str:
    """A row for each masked and each causal Macaron language model, with its baseline."""
    kinds = (
        (architectures.ROBERTA_SIZES, f"{architectures.ROBERTA}_{{}}", "roberta_{}_pre_norm"),
        (architectures.LM_SIZES, f"{architectures.LM}{{}}", "transformer_lm{}_pre_norm"),
    )
    rows = [
        [
            f"`{macaron.format(name)}`",
            f"`{baseline.format(name)}`",
            f"{size.embed_dim} / {size.heads} / {size.layers}",
            f"2x{size.ffn_embed_dim // 2} ({size.ffn_embed_dim})",
            millions(macaron.format(name)),
        ]
        for sizes, macaron, baseline in kinds
        for name, size in sizes.items()
    ]
    heads = ["`--arch`", "baseline of equal size", "width / heads / layers", "FFN (baseline)"]
    return table([*heads, "parameters"], rows)


def released_bert() -> str:
    """A row for each name of the BERT of the authors' code."""
    rows = [
        [f"`{name}`, `{name}_macaron`", f"{size.embed_dim} / {size.heads} / {size.layers}"]
        for name, size in architectures.BERT_SIZES.items()
    ]
    return table(["`--arch`", "width / heads / layers"], rows)


def released_architectures() -> str:
    """A row for each name of the authors' released code."""
    rows = [
        [f"`{name}`", str(size.embed_dim), str(size.ffn_embed_dim), "pre" if pre else "post"]
        for name, (size, pre) in architectures.RELEASED.items()
    ]
    return table(["`--arch`", "width", "FFN of the baseline", "norm"], rows)


def measures() -> str:
    """What `macaron-fairseq dynamics` measures, with its defaults."""
    defaults = {"threshold": 0.9, "beta": 1.0, "jacobians": 16}
    return "\n\n".join(measures_of((glossary.STATES, *glossary.MOVES), defaults))


def residual_measures() -> str:
    """What `macaron-fairseq dynamics --jacobian` measures, with its defaults."""
    return "\n\n".join(measures_of(residual_glossary.GROUPS, {"tokens": 16}))


def measures_of(groups: Sequence[Group], defaults: dict[str, float]) -> Iterator[str]:
    """A heading, an introduction and a table for each group of measures."""
    for group in groups:
        rows = [[x.title, escape(x.definition.format(**defaults))] for x in group.measures]
        yield f"### {group.title}"
        yield escape(group.introduction.format(**defaults))
        yield table(["measure", "definition"], rows)


# --- arguments and commands ----------------------------------------------------------------------


def macaron_arguments() -> str:
    """The model's own arguments."""
    parser = argparse.ArgumentParser(add_help=False)
    arguments.add(parser)
    return argument_table(parser, parser._actions)


def transformer_arguments() -> str:
    """Those of fairseq's transformer."""
    own, parser = (argparse.ArgumentParser(add_help=False) for _ in range(2))
    arguments.add(own)
    plugin.MacaronTransformerModel.add_args(parser)
    names = {x.dest for x in own._actions}
    return argument_table(parser, [x for x in parser._actions if x.dest not in names])


def criterion_arguments(config: Any, parent: Any) -> str:
    """Those of a criterion that its parent does not have."""
    own, parents = (argparse.ArgumentParser(add_help=False) for _ in range(2))
    gen_parser_from_dataclass(own, config)
    gen_parser_from_dataclass(parents, parent)
    names = {x.dest for x in parents._actions}
    return argument_table(own, [x for x in own._actions if x.dest not in names])


def command_names() -> str:
    """A row for each command."""
    return table(["command", "what it does"], [[f"`{x}`", y] for x, y in cli.COMMANDS.items()])


def commands() -> str:
    """A section for each command."""
    parts: list[str] = []
    for name, summary in cli.COMMANDS.items():
        parser = argparse.ArgumentParser(prog=f"macaron-fairseq {name}")
        import_module(f"macaron_fairseq.commands.{name.replace('-', '_')}").add_arguments(parser)
        parts += [f"## {name}", f"`macaron-fairseq {name}`: {escape(summary)}."]
        parts += command(parser, "###")
    return "\n\n".join(parts)


def command(parser: argparse.ArgumentParser, heading: str) -> Iterator[str]:
    """What --help says of a command, and of the choices that it has."""
    yield escape(parser.description or "")
    chosen = {}
    for group in parser._action_groups:
        actions = [x for x in group._group_actions if x.help != argparse.SUPPRESS]
        if isinstance(choices := next(iter(actions), None), argparse._SubParsersAction):
            chosen = dict(choices.choices)
        elif (group.title or "").startswith("flags of the model"):
            yield "It also takes all [arguments of the model](arguments.md)."
        elif actions := [x for x in actions if x.dest != "help"]:
            yield argument_table(parser, actions)
    if parser.epilog:
        yield f"```text\n{parser.epilog.rstrip()}\n```"
    for name, choice in chosen.items():
        yield f"{heading} {parser.prog.removeprefix('macaron-fairseq ')} {name}"
        yield from command(choice, f"{heading}#")


def argument_table(parser: argparse.ArgumentParser, actions: Sequence[argparse.Action]) -> str:
    """A row for each argument."""
    return table(["argument", "meaning"], [[usage(x), meaning(parser, x)] for x in actions])


def usage(action: argparse.Action) -> str:
    """An argument as one types it."""
    choices = "{" + ",".join(map(str, action.choices)) + "}" if action.choices else None
    values = action.metavar or choices or (action.dest.upper() if action.nargs != 0 else "")
    words = " ".join(values) if isinstance(values, tuple) else values
    if not action.option_strings:
        return f"`{words}`"
    return " ".join(f"`{x} {words}`".replace(" `", "`") for x in action.option_strings)


def meaning(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    """An argument's help."""
    return escape((action.help or "") % {**vars(action), "prog": parser.prog})


def escape(text: str) -> str:
    """Plain text as Markdown that shows it, on one line; `table` takes care of the bars."""
    return re.sub(r"([\\`*_<>\[\]])", r"\\\1", " ".join(text.split()))


PARTS: dict[str, Callable[[], str]] = {
    "schemes": schemes,
    "sub-steps": sub_steps,
    "architectures": named_architectures,
    "language-model-architectures": language_model_architectures,
    "released-architectures": released_architectures,
    "released-bert": released_bert,
    "macaron-arguments": macaron_arguments,
    "transformer-arguments": transformer_arguments,
    "distillation-arguments": partial(
        criterion_arguments, DistilledLabelSmoothedCrossEntropyCriterionConfig(), StudentConfig()
    ),
    "cross-vocabulary-arguments": partial(
        criterion_arguments,
        CrossVocabularyLabelSmoothedCrossEntropyCriterionConfig(),
        StudentConfig(),
    ),
    "student-arguments": partial(
        criterion_arguments, StudentConfig(), LabelSmoothedCrossEntropyCriterionConfig()
    ),
    "command-names": command_names,
    "commands": commands,
    "measures": measures,
    "residual-measures": residual_measures,
}


if __name__ == "__main__":
    for path in DOCS.rglob("*.md"):
        page = path.read_text("utf-8")
        if (new := renewed(page)) != page:
            path.write_text(new, "utf-8")
            print(f"wrote {path}")
