"""The archives of a benchmark: which there are, and having them in `downloads` with checksums."""

import sys
from importlib.metadata import PackageNotFoundError, version
from itertools import product
from pathlib import Path

from common import extract
from common.benchmark import Part
from common.fetch import have
from common.recipe import Recipe
from common.steps import code, say
from macaron_fairseq.common import files


def inputs(recipe: Recipe) -> list[str]:
    """Fetch the archives; returns texts that change when what they hold does."""
    if recipe.benchmark.program:
        packages = recipe.benchmark.program_packages
        try:
            versions = [*map(version, packages)]
        except PackageNotFoundError as error:
            sys.exit(f"{error.name} is not installed: pip install {' '.join(packages)}")
        return [code(recipe.folder / recipe.benchmark.program), *versions]
    if recipe.benchmark.own_text:
        if not recipe.given:
            source, target = recipe.languages
            sys.exit(
                f"say where your text is: --from FOLDER, which holds train.{source} and "
                f"train.{target}"
            )
        names = product(recipe.sets, recipe.languages)
        paths = [recipe.given / f"{name}.{language}" for name, language in names]
        return [f"{path.name} {files.sha256(path)}" for path in paths if path.exists()]
    parts = [(name, chosen(recipe, part)) for name, x in recipe.sets.items() for part in x.parts]
    archives = dict.fromkeys(archive for _, part in parts for archive in names_of(recipe, part))
    addresses = {extract.address(x.testset): x.testset for _, x in parts if x.testset}
    tested = {Path(address).name: name for address, name in addresses.items()}
    if len(tested) < len(addresses):
        sys.exit(
            f"{', '.join(addresses.values())} have archives of one name, and they are kept by "
            "name: take one of these test sets"
        )
    unknown = [name for name in archives if not (checksum(recipe, name) or name in tested)]
    if not recipe.is_usual:
        unknown = [*archives]
    sums = [fetch(recipe, archive, tested.get(archive, "")) for archive in archives]
    if unknown:
        say(
            recipe.name,
            f"notice: taken as they are, since nothing says what checksum they should have: "
            f"{' '.join(unknown)} (SHA256SUMS, next to each in {recipe.work}/downloads, tells it)",
        )
    return [
        *sums,
        *(f"{name} {part}" for name, part in parts),
        *[f"held out by {recipe.benchmark.held_out_by}"] * bool(recipe.benchmark.held_out_by),
    ]


def chosen(recipe: Recipe, part: Part) -> Part:
    """The part, or what it has instead.

    That is taken where sacreBLEU does not have the languages, and where --from has it alone.
    """
    if not part.instead:
        return part
    if part.testset and not extract.has_pair(part.testset, recipe.languages):
        return part.instead
    folder = recipe.given
    if folder:
        here, other = (
            all((folder / name).is_file() for name in names_of(recipe, x))
            for x in (part, part.instead)
        )
        if other and not here:
            return part.instead
    return part


def names_of(recipe: Recipe, part: Part) -> list[str]:
    """The files that a part is in."""
    if part.testset:
        return [Path(extract.address(part.testset)).name]
    source = recipe.source
    names = [part.archive.format(language=x, source=source) for x in recipe.languages]
    return list(dict.fromkeys(names))


def checksum(recipe: Recipe, archive: str) -> str:
    """The SHA-256 that an archive must have; "" for any."""
    known = recipe.benchmark.archives.get(archive)
    return known.sha256 if known and recipe.is_usual else ""


def fetch(recipe: Recipe, archive: str, testset: str) -> str:
    """Have an archive in downloads; returns its name and checksum."""
    downloads, known = recipe.work / "downloads", recipe.benchmark.archives.get(archive)
    addresses = [f"{mirror}/{archive}" for mirror in recipe.mirrors]
    addresses += [extract.address(testset)] if testset else []
    addresses += known.addresses if known else []
    if not testset and not (known and known.addresses):
        addresses += [address.format(archive=archive) for address in recipe.benchmark.addresses]
    digest = have(
        downloads / archive,
        [*dict.fromkeys(addresses)],
        (recipe.given / archive).parent if recipe.given else None,
        checksum(recipe, archive),
    )
    return f"{digest}  {Path(archive).name}"  # as in SHA256SUMS
