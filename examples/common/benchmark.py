"""A benchmark as its benchmark.yaml describes it: text, preprocessing, training, scores.

YAML, since such a file is read and compared by people who do not read Python: names, numbers and
fairseq's own flags as one types them, with comments. PyYAML comes with fairseq.
"""

import argparse
import re
import sys
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from pathlib import Path
from shlex import split
from typing import Any, NoReturn, TypeVar

from common import extract

KindT = TypeVar("KindT")


@dataclass(frozen=True)
class Part:
    """Sentence pairs from one place: an archive of two files, two text files, or sacreBLEU.

    In a name `{language}` stands for each language, and `{side}` for src and ref. In an archive's
    name `{source}` stands for the source language.
    """

    archive: str = ""  # a tar archive, or without members a text file, which may be NAME.gz
    members: str = ""  # the two files in it, or in a zip archive the table
    format: str = "lines"  # of the files: see FORMATS and TABLES in extract.py
    columns: list[str] = field(default_factory=list)  # languages of a table's; else as the pair
    testset: str = ""  # as sacreBLEU calls it; it knows where its archive is
    instead: "Part | None" = None  # where --from lacks this one, or sacreBLEU the languages

    def __post_init__(self) -> None:
        """Raise a ValueError where nothing could be read so."""
        if bool(self.archive) == bool(self.testset):
            raise ValueError("archive or testset should be there, and not both")
        if self.format not in (known := [*extract.FORMATS, *extract.TABLES]):
            raise ValueError(f"format should be one of {', '.join(known)}, not {self.format}")
        for name, text in (("archive", self.archive), ("members", self.members)):
            try:
                text.format(language="", side="", source="")
            except (LookupError, ValueError) as error:
                places = "{language}, {side} and {source}"
                raise ValueError(f"{name} may have {places}, not as in {text}") from error


def said(value: Any) -> Any:
    """A part of a benchmark as plain data, without what is empty: it may be newer than a file."""
    if is_dataclass(value):
        return {name: said(x) for name, x in vars(value).items() if x}
    return [*map(said, value)] if isinstance(value, list) else value


@dataclass(frozen=True)
class Set:
    """Sentence pairs: the parts one after the other."""

    parts: list[Part] = field(default_factory=list)
    pairs: int = 0  # that there should be; 0: any number
    every: int = 0  # every so many-th pair of train, once it is clean, instead of parts
    without: list[str] = field(default_factory=list)  # languages that do not have it


@dataclass(frozen=True)
class Archive:
    """What is known of a file to fetch."""

    sha256: str = ""
    addresses: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Raise a ValueError where no file could have the checksum."""
        if self.sha256 and not re.fullmatch("[0-9a-fA-F]{64}", self.sha256):
            raise ValueError(f"sha256 should be 64 hexadecimal digits, not {self.sha256}")


@dataclass(frozen=True)
class Clean:
    """Which training pairs are kept, in tokens: see `parallel_text.clean`."""

    min: int = 1
    max: int = 80
    ratio: float = 9


@dataclass(frozen=True)
class Preprocessing:
    """From text to what fairseq trains on."""

    steps: list[str]  # of `macaron-fairseq tokenize`, in the order that is asked for
    merges: int  # of the joint BPE; 0: the tokens stay whole
    clean: Clean | None = None  # None: all pairs are kept
    joined: bool = True  # one dictionary for both languages

    def __post_init__(self) -> None:
        """Raise a ValueError where no text could be prepared so."""
        from macaron_fairseq.text import tokenization

        refuse_below(0, merges=self.merges)
        if unknown := [step for step in self.steps if step not in tokenization.STEPS]:
            known = ", ".join(tokenization.STEPS)
            raise ValueError(f"steps should be some of {known}, not {unknown[0]}")


@dataclass(frozen=True)
class Training:
    """What all training runs of the benchmark share; they differ in --arch and --seed alone."""

    archs: list[str]  # the baseline first
    tokens: int  # an update is BATCHES batches of at most TOKENS tokens
    batches: int
    max_update: int  # where it ends at the latest
    flags: str  # of fairseq-train
    more_flags: str = ""  # for a setting: these follow, and the later one counts

    def __post_init__(self) -> None:
        """Raise a ValueError where nothing could be trained so."""
        refuse_below(1, tokens=self.tokens, batches=self.batches, max_update=self.max_update)
        if not self.archs:
            raise ValueError("archs should name one at least")
        refuse_open_quotes(flags=self.flags, more_flags=self.more_flags)

    def words(self) -> list[str]:
        """The flags one by one."""
        return [*split(self.flags), *split(self.more_flags)]


@dataclass(frozen=True)
class Evaluation:
    """How what was trained is decoded and scored."""

    decode: str  # flags of fairseq-generate
    score: str  # flags of `macaron-fairseq score`
    average: int = 0  # how many of the last checkpoints are averaged; 0: the best one alone

    def __post_init__(self) -> None:
        """Raise a ValueError where nothing could be scored so."""
        refuse_below(0, average=self.average)
        refuse_open_quotes(decode=self.decode)
        self.metrics  # noqa: B018  raises it

    @property
    def metrics(self) -> list[str]:
        """The metrics of the scores, as tables call them."""
        from macaron_fairseq.commands import score
        from macaron_fairseq.evaluation.scores.metrics import METRICS
        from macaron_fairseq.evaluation.scores.scoring import DEFAULT

        named = parsed(score, "score", self.score, "x", "--reference", "x", "--target-lang", "x")
        return [METRICS[name].title for name in named.metric or DEFAULT]


@dataclass(frozen=True)
class Benchmark:
    """All that benchmark.yaml says."""

    sets: dict[str, Set]  # train, valid, and the test sets in the order of the report
    preprocessing: Preprocessing
    training: Training
    evaluation: Evaluation
    pairs: list[str] = field(default_factory=list)  # S-T, the default first; none: any languages
    archives: dict[str, Archive] = field(default_factory=dict)
    addresses: list[str] = field(default_factory=list)  # of other archives; {archive}: its name
    program: str = ""  # writes the sets into the folder that it is given, instead of parts
    program_packages: list[str] = field(default_factory=list)  # on whose versions they depend
    own_text: bool = False  # the sets are files of --from instead; what is missing is held out
    held_out_by: str = ""  # language: test and valid are drawn from train, its sentences once each
    published: list[dict[str, Any]] = field(
        default_factory=list
    )  # as `macaron-fairseq report` reads
    one_gpu: bool = False  # trained on one GPU though there be more, unless the user chose some

    def __post_init__(self) -> None:
        """Raise a ValueError where a set could not be made."""
        for name, content in self.sets.items():
            if content.every and name != "valid":
                raise ValueError(f"sets/{name}/every is for valid alone")

    def sets_of(self, source: str, target: str) -> dict[str, Set]:
        """The sets that these languages have."""
        return {
            name: content
            for name, content in self.sets.items()
            if not {source, target} & {*content.without}
        }

    def check_languages(self, source: str, target: str) -> None:
        """Raise a ValueError where something is said of other languages than these."""
        pair = f"{source} and {target}"
        if self.held_out_by not in ("", source, target):
            raise ValueError(f"held_out_by should be one of {pair}, not {self.held_out_by}")
        for name, content in self.sets_of(source, target).items():
            for part in content.parts:
                for one in (part, part.instead):
                    if one and one.columns and {*one.columns} != {source, target}:
                        found = " and ".join(one.columns)
                        raise ValueError(f"sets/{name}: columns should be {pair}, not {found}")


def refuse_below(least: float, **numbers: float) -> None:
    """Raise a ValueError where a number is too small; they are given by their names in the file."""
    for name, number in numbers.items():
        if number < least:
            raise ValueError(f"{name} should be at least {least:g}, not {number:g}")


def refuse_open_quotes(**flags: str) -> None:
    """Raise a ValueError where flags, by their name in the file, cannot be told apart."""
    for name, words in flags.items():
        try:
            split(words)
        except ValueError as error:
            raise ValueError(f"{name} should be flags as one types them: {error}") from error


class FlagsOfFile(argparse.ArgumentParser):
    """What it refuses is a ValueError."""

    def error(self, message: str) -> NoReturn:
        """Raise it."""
        raise ValueError(message)


def parsed(command: Any, name: str, flags: str, *needed: str) -> argparse.Namespace:
    """What flags in a file say to a command of macaron-fairseq.

    Args:
        command: its module.
        name: of the flags in the file.
        flags: as one types them.
        needed: words without which the command would refuse them.

    Raises:
        ValueError: if it does not know one.
    """
    refuse_open_quotes(**{name: flags})
    parser = FlagsOfFile(allow_abbrev=False)
    command.add_arguments(parser)
    try:
        return parser.parse_args([*needed, *split(flags)])
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


def read_yaml(path: Path) -> Any:
    """What a YAML file holds; ends the program where it is none, or has a name twice."""
    import yaml

    class Loader(yaml.SafeLoader):
        """Refuses what stands twice."""

    def mapping(loader: Any, node: Any) -> dict[Any, Any]:
        names = [loader.construct_object(key) for key, _ in node.value]
        if twice := [name for i, name in enumerate(names) if name in names[:i]]:
            sys.exit(f"{path}: {twice[0]} stands twice in it")
        return {**yaml.SafeLoader.construct_mapping(loader, node, deep=True)}

    Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, mapping)
    try:
        return yaml.load(path.read_text("utf-8"), Loader)
    except OSError as error:
        sys.exit(f"cannot read {path}: {error.strerror}")
    except (ValueError, yaml.YAMLError, RecursionError) as error:  # some dates are ValueErrors
        sys.exit(f"{path} is no YAML file: {' '.join(str(error).split())}")


def read(path: Path, setting: str = "") -> Benchmark:
    """What a benchmark.yaml says, with one of its settings over it.

    Ends the program with a sentence where the file is not as it should be.
    """
    content = read_yaml(path)
    if not isinstance(content, dict):
        sys.exit(f"{path} should hold {', '.join(x.name for x in fields(Benchmark))}")
    settings = content.pop("settings", None) or {}
    if not isinstance(settings, dict):
        sys.exit(f"{path}: settings should be a mapping, not {settings!r}")
    if setting:
        if setting not in settings:
            known = ", ".join(settings) or "none"
            sys.exit(f"there is no setting {setting}; see --help (known: {known})")
        content = merged(content, settings[setting])
    return checked(Benchmark, content, path)


def read_as(kind: type[KindT], path: Path) -> KindT:
    """What a YAML file holds as that class; ends the program where it is not as it should be."""
    return checked(kind, read_yaml(path), path)


def checked(kind: type[KindT], content: Any, path: Path) -> KindT:
    """The same of what has been read."""
    try:
        found: KindT = typed(kind, content, "")
    except ValueError as error:
        sys.exit(f"{path}: {error}")
    return found


def merged(base: Any, change: Any) -> Any:
    """Of two mappings what `change` says over `base`, at any depth; else `change`."""
    if not (isinstance(base, dict) and isinstance(change, dict)):
        return change
    return {**base, **{name: merged(base.get(name), value) for name, value in change.items()}}


def typed(kind: Any, value: Any, where: str) -> Any:
    """A value as that type; raises a ValueError that says where it is another."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return typed(inner[0], value, where)
    if kind is Any:
        return value
    if is_dataclass(kind):
        return record(kind, value, where)
    if origin is list and isinstance(value, list):
        return [typed(inner[0], item, f"{where}, item {i}") for i, item in enumerate(value, 1)]
    if origin is dict and isinstance(value, dict):
        return {str(k): typed(inner[1], item, f"{where}/{k}") for k, item in value.items()}
    if kind is float and type(value) is int:
        return float(value)
    if (origin or kind) is not type(value):
        raise ValueError(f"{where} should be {NAMES.get(origin or kind, kind)}, not {value!r}")
    return value


NAMES = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}
NAMES |= {list: "a list", dict: "a mapping"}


def record(kind: Any, value: Any, where: str) -> Any:
    """A mapping as one of the classes above."""
    hints = typing.get_type_hints(kind)
    if not isinstance(value, Mapping):
        raise ValueError(f"{where} should have {', '.join(hints)}")
    place = where or "the file"
    for name in value:
        if name not in hints:
            raise ValueError(f"{place} has no '{name}'; it may have {', '.join(hints)}")
    prefix = where + "/" if where else ""
    found = {name: typed(hints[name], item, prefix + name) for name, item in value.items()}
    for x in fields(kind):
        if x.name not in value and x.default is MISSING and x.default_factory is MISSING:
            raise ValueError(f"{place} lacks '{x.name}'")
    try:
        return kind(**found)
    except ValueError as error:
        raise ValueError(f"{prefix}{error}") from error
