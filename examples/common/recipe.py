"""A recipe: a benchmark with the options of one run."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from shlex import split
from typing import TypeVar

from common.benchmark import Benchmark, Set

PLUGIN = Path(__file__).resolve().parents[2] / "macaron_fairseq"


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A benchmark with the options of one run: all that the stages go by."""

    name: str
    folder: Path  # of benchmark.yaml
    benchmark: Benchmark
    stages: list[str]
    work: Path
    dry_run: bool = False

    # The text.
    source: str
    target: str
    sets: dict[str, Set]  # those that these languages have
    given: Path | None = None  # --from
    mirrors: list[str] = field(default_factory=list)
    is_usual: bool = True  # whether sizes and checksums are checked
    merges: int
    workers: int = 1

    # What is trained, and scored.
    archs: list[str]
    seeds: list[int]
    max_update: int
    batch: int  # tokens of an update, on all devices
    extra: list[str]  # flags of fairseq-train after --
    average: int = 0

    # The devices.
    precision: str  # on GPUs
    cpu: bool
    max_tokens: int | None  # on a device at once; None: what divides `batch` well
    gpus: int | None = None  # as if so many were here
    processes: int = 1

    @property
    def data(self) -> Path:
        """What is prepared."""
        return self.work / "data"

    @property
    def data_flags(self) -> list[str]:
        """What all commands of fairseq begin with: the data, and this package."""
        return [str(self.data / "data-bin"), "--user-dir", str(PLUGIN)]

    def reference(self, test: str, language: str, kind: str = "reference") -> Path:
        """A test set as it was given, or with `tokenized` for `kind` as it was before BPE."""
        return self.data / kind / f"{test}.{language}"

    @property
    def checkpoint_name(self) -> str:
        """What is scored of a training, in its folder."""
        return "averaged/checkpoint.pt" if self.average else "checkpoint_best.pt"

    @property
    def languages(self) -> tuple[str, str]:
        """Source and target."""
        return self.source, self.target

    @property
    def tests(self) -> list[str]:
        """The test sets."""
        return [name for name in self.sets if name not in ("train", "valid")]

    @property
    def usual_batch(self) -> int:
        """The benchmark's own tokens an update."""
        return self.benchmark.training.tokens * self.benchmark.training.batches

    @property
    def tokens_at_once(self) -> int:
        """Tokens on a device at once, at most."""
        return self.max_tokens or min(self.benchmark.training.tokens, self.batch)

    @property
    def longest_sample(self) -> int:
        """Tokens that a batch must have room for; 0: not known."""
        return 0

    @property
    def score_flags(self) -> list[str]:
        """Of `macaron-fairseq score`."""
        return split(self.benchmark.evaluation.score)

    def run(self, arch: str, seed: int) -> Path:
        """The folder of one training."""
        return self.work / arch / f"seed{seed}"

    @property
    def folder_of_run(self) -> Path:
        """The same of the first training, which in recipes of many runs is the only one."""
        return self.run(self.archs[0], self.seeds[0])

    def parts(self) -> Sequence["Recipe"]:
        """The parts of a training in their order, each from where the last one ended."""
        return [self]

    def runs(self) -> list[Path]:
        """The folders of all, in the order of the report."""
        return [self.run(arch, seed) for arch in self.archs for seed in self.seeds]


RecipeT = TypeVar("RecipeT", bound=Recipe)
