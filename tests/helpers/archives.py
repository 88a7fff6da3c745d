"""Miniatures of the archives that the recipes take: the same names and layout, made-up sentences.

Each builder writes into a folder and returns the sentence pairs (English, German) it put there, by
the name of the set. Crawled text is as odd as it really is: see `ODD`.
"""

import gzip
import io
import random
import tarfile
from pathlib import Path

Pair = tuple[str, str]

ANIMALS = [("cat", "Katze"), ("cow", "Kuh"), ("duck", "Ente"), ("goat", "Ziege"), ("bee", "Biene")]
COLOURS = [("black", "schwarze"), ("white", "weiße"), ("brown", "braune"), ("small", "kleine")]
VERBS = [("sleeps", "schläft"), ("eats", "frisst"), ("waits", "wartet"), ("sings", "singt")]
PLACES = [("here", "hier"), ("outside", "draußen"), ("in the garden", "im Garten")]
ENDS = [(".", "."), ("!", "!"), (", isn't it?", ", nicht wahr?")]

# Pairs as one finds them in Common Crawl. A "\r" here stands inside a line.
ODD = [
    ("Old files end\rin many ways.", "Alte Dateien enden\rverschieden."),
    ("One line\u2028all the same.", "Eine Zeile\u2028trotz allem."),
    ("Next\x85line", "Nächste\x85Zeile"),
    ("A bell \x07 and a form feed \x0c", "Eine Glocke \x07 und ein Vorschub \x0c"),
    ("10\u00a0% &amp; more &lt;b&gt;", "10\u00a0% &amp; mehr &lt;b&gt;"),
    ("“Quoted” \u2013 it\u2019s fine…", "„Zitiert“ \u2013 schon gut…"),
    ("Nothing on the other side.", ""),
    ("", "Nichts auf der anderen Seite."),
    ("very " * 300 + "long", "sehr " * 300 + "lang"),
    ("a" * 1500, "b"),
    ("well-known", "wohl-bekannt"),
]


def sentences(size: int, seed: int, clauses: int = 1) -> list[Pair]:
    """Pairs that translate each other word by word; a clause has five to seven words."""
    if clauses > 1:
        pairs = iter(sentences(size * clauses, seed))
        groups = ([next(pairs) for _ in range(clauses)] for _ in range(size))
        return [(" ".join(x[0] for x in group), " ".join(x[1] for x in group)) for group in groups]
    rng = random.Random(seed)
    pairs = []
    for _ in range(size):
        words = [rng.choice(x) for x in (COLOURS, ANIMALS, VERBS, PLACES, ENDS)]
        english, german = (" ".join(side[:4]) + side[4] for side in zip(*words, strict=True))
        pairs.append(("The " + english, "Die " + german))
    return pairs


def text(lines: list[str], end: str = "\n") -> bytes:
    return "".join(line + end for line in lines).encode()


def tgz(path: Path, files: dict[str, bytes]) -> None:
    """A tar.gz, the same bytes for the same files, with entries for the folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with (
        path.open("wb") as raw,
        gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w") as tar,
    ):
        for folder in dict.fromkeys(name.split("/")[0] for name in files if "/" in name):
            entry = tarfile.TarInfo(folder + "/")
            entry.type = tarfile.DIRTYPE
            entry.mode = 0o755
            tar.addfile(entry)
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))


def bitext(path: Path, stem: str, pairs: list[Pair], end: str = "\n") -> None:
    """STEM.de-en.{de,en}, and another pair of languages in front, as the real ones have."""
    english, german = zip(*pairs, strict=True)
    files = {f"{stem}.{name}": b"not this one\n" for name in ("cs-en.cs", "cs-en.en")}
    if "/" not in stem:  # Common Crawl
        files[f"{stem}.de-en.annotation"] = b"from somewhere\n" * len(pairs)
    files |= {f"{stem}.de-en.de": text(german, end), f"{stem}.de-en.en": text(english, end)}
    tgz(path, files)


def sgm(kind: str, setid: str, language: str, lines: list[str]) -> bytes:
    """WMT's SGML: a srcset or a refset of two documents, with a headline and paragraphs."""
    system, target = ("", "") if kind == "src" else (' sysid="ref"', f' trglang="{language}"')
    out = [f'<{kind}set setid="{setid}" srclang="any"{target}>']
    half = (len(lines) + 1) // 2
    for number, document in enumerate((lines[:half], lines[half:])):
        out.append(f'<doc{system} docid="{number}-paper" genre="news" origlang="en">')
        for i, line in enumerate(document, 1):
            tag = "hl" if i == 1 else "p"
            out += [f"<{tag}>", f'<seg id="{i}">{line}</seg>', f"</{tag}>"]
        out.append("</doc>")
    return text([*out, f"</{kind}set>"])


def sgm_files(stem: str, setid: str, pairs: list[Pair]) -> dict[str, bytes]:
    """Both languages as source and as reference, as all these archives have them."""
    sides = dict(zip(("en", "de"), zip(*pairs, strict=True), strict=True))
    return {
        f"{stem}-{kind}.{language}.sgm": sgm(kind, setid, language, lines)
        for kind in ("src", "ref")
        for language, lines in sides.items()
    }


def wmt14(folder: Path, size: int = 300, test_size: int = 20) -> dict[str, list[Pair]]:
    """The training archives, News Commentary v12 and v9, and those with newstest2013 and 2014."""
    pairs = {
        "europarl-v7": sentences(size, 1),
        "commoncrawl": [*sentences(size // 2, 2), *ODD],
        "nc-v12": sentences(size // 2, 3),
        "nc-v9": sentences(size // 3, 4),
        "newstest2013": sentences(test_size, 5),
        "newstest2014": [*sentences(test_size - 1, 6), ("Cats &amp; cows", "Katzen &amp; Kühe")],
    }
    for name, stem in {
        "europarl-v7": "training/europarl-v7",
        "commoncrawl": "commoncrawl",
        "nc-v12": "training/news-commentary-v12",
        "nc-v9": "training/news-commentary-v9",
    }.items():
        end = "\r\n" if name == "nc-v9" else "\n"
        bitext(folder / f"training-parallel-{name}.tgz", stem, pairs[name], end)
    english, german = zip(*pairs["newstest2013"], strict=True)
    tgz(
        folder / "dev.tgz",
        {
            "dev/newstest2013.en": text(english),
            "dev/newstest2013.de": text(german),
            **sgm_files("dev/newstest2013", "newstest2013", pairs["newstest2013"]),
        },
    )
    tgz(
        folder / "test-full.tgz",
        sgm_files("test-full/newstest2014-deen", "newstest2014", pairs["newstest2014"]),
    )
    tgz(
        folder / "test-filtered.tgz",
        sgm_files("test/newstest2014-deen", "newstest2014", pairs["newstest2014"][1:]),
    )
    return pairs


def iwslt14(
    folder: Path, size: int = 300, test_size: int = 10, clauses: int = 1
) -> dict[str, list[Pair]]:
    """de-en.tgz: tagged talks, and five sets in XML, of TEST_SIZE and a few more segments each.

    Of the returned pairs those of train are what remains of the talks when tags and lines with
    addresses, keywords and numbers are gone.
    """
    odd = [*ODD[1:3], *ODD[4:9]]
    talks = [
        sentences(size // 2, 1, clauses),
        [*sentences(size - size // 2, 2, clauses), *odd],
    ]
    pairs, tagged = [], []
    for number, talk in enumerate(talks):
        title = (f"Talk {number}: on cats", f"Vortrag {number}: über Katzen")
        description = (" A speaker on cats. ", " Jemand über Katzen. ")
        speaker = ("<speaker>A. Speaker</speaker>",) * 2
        tagged += [
            (f"<url>http://example.org/talks/{number}</url>",) * 2,
            ("<keywords>talks, cats, cows</keywords>",) * 2,
            speaker,
            (f"<talkid>{number}</talkid>",) * 2,
            tuple(f"<title>{line}</title>" for line in title),
            tuple(f"<description>{line}</description>" for line in description),
            *talk,
        ]
        pairs += [speaker, title, description, *talk]
    names = ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012")
    tests = {name: sentences(test_size + i, 10 + i, clauses) for i, name in enumerate(names)}
    tests["TED.tst2012"][0] = ("It\u2019s 5 &gt; 4", "Ist\u2019s 5 &gt; 4")
    files = {"de-en/README": b"Read me\n"}
    for i, language in enumerate(("en", "de")):
        for name, test in tests.items():
            files[f"de-en/IWSLT14.{name}.de-en.{language}.xml"] = ted_xml(
                name, language, [pair[i] for pair in test]
            )
        files[f"de-en/train.tags.de-en.{language}"] = text([pair[i] for pair in tagged])
    tgz(folder / "de-en.tgz", files)
    return {"train": pairs, **tests}


def ted_xml(name: str, language: str, lines: list[str]) -> bytes:
    return text(
        [
            '<?xml version="1.0" encoding="UTF-8"?>',
            "<mteval>",
            f'<refset setid="{name}" srclang="x" trglang="{language}">',
            '<doc docid="1" genre="lectures">',
            "<url>http://example.org/talks/1</url>",
            "<keywords>talks, cats</keywords>",
            "<talkid>1</talkid>",
            "<title>On cats</title>",
            *(f'<seg id="{i}"> {line} </seg>' for i, line in enumerate(lines, 1)),
            "</doc>",
            "</refset>",
            "</mteval>",
        ]
    )


def multi30k(folder: Path, size: int = 300, test_size: int = 20) -> dict[str, list[Pair]]:
    """NAME.LANGUAGE.gz in German and English, and in Czech without the sets of 2017."""
    pairs = {
        "train": sentences(size, 1),
        "val": sentences(test_size, 2),
        "test_2016_flickr": sentences(test_size, 3),
        "test_2017_flickr": sentences(test_size, 4),
        "test_2017_mscoco": sentences(test_size // 2, 5),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, lines in pairs.items():
        english, german = zip(*lines, strict=True)
        for language, side in (("en", english), ("de", german), ("cs", german)):
            if language != "cs" or "2017" not in name:
                path = folder / f"{name}.{language}.gz"
                path.write_bytes(gzip.compress(text(side), mtime=0))
    return pairs


def wmt13_of_sacrebleu(folder: Path, pairs: list[Pair]) -> None:
    """The archive in which sacreBLEU has newstest2013."""
    tgz(folder / "test.tgz", sgm_files("test/newstest2013", "newstest2013", pairs))


def multi30k_of_sacrebleu(folder: Path, pairs: dict[str, list[Pair]]) -> None:
    """The archive in which sacreBLEU has the test sets of Flickr."""
    files = {}
    for name in ("test_2016_flickr", "test_2017_flickr"):
        for language, side in zip(("en", "de"), zip(*pairs[name], strict=True), strict=True):
            files[f"{name}.{language}"] = text(list(side))
    tgz(folder / "multi30k_test_sets_d3ec2a38.tar.gz", files)
