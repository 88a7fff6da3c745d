"""Run folders as the stages train and evaluate leave them, written by hand; nothing is trained."""

import hashlib
import json
import random

import sacrebleu

BASE, MACARON = "transformer_tiny_pre_norm", "macaron_transformer_tiny"
FLAGS = ["--share-all-embeddings", "--lr", "0.005", "--adam-betas", "(0.9,0.98)", "--patience=-1"]
SENTENCES = 40
BLEU, CHRF = "nrefs:1|case:{}|eff:no|tok:13a|smooth:exp|version:2.6.0", "nrefs:1|eff:yes|nc:6"
START = {
    "date": "2026-11-20T10:00:00+00:00",
    "code": {"revision": "0123456789abcdef", "modified": False},
    "versions": {"python": "3.11.7", "torch": "2.13.0"},
    "hardware": {
        "cpu": "A CPU",
        "cores": 4,
        "memory_gib": 15.6,
        "gpus": ["A GPU", "A GPU"],
        "system": "Linux",
    },
}


def sentences(errors=0.0, seed=0):
    """The reference, or a hypothesis that has that share of its words wrong."""
    text, wrong = random.Random(7), random.Random(seed)
    words = [f"Word{i}" for i in range(300)]
    lines = [[text.choice(words) for _ in range(text.randint(6, 14))] for _ in range(SENTENCES)]
    return [" ".join("x" if wrong.random() < errors else w for w in line) + "." for line in lines]


def write_lines(path, lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(line + "\n" for line in lines), "utf-8")
    return path


def edit(path, change):
    """Change a JSON file."""
    content = json.loads(path.read_text("utf-8"))
    change(content)
    path.write_text(json.dumps(content), "utf-8")


def write_manifest(run, fingerprint):
    """The manifest of a run on data of this fingerprint, without what most do not read."""
    data = {"source": "en", "target": "de", "tests": [], "fingerprint": fingerprint}
    content = {"arch": BASE, "seed": 1, "flags": FLAGS, "starts": [], "data": data}
    run.mkdir(parents=True, exist_ok=True)
    (run / "manifest.json").write_text(json.dumps(content))


def inner(update, loss=5.0, wps=1000, train_wall=10, epoch=1, passed=0.5):
    return (
        f'2026-11-20 11:26:04 | INFO | train_inner | {{"epoch": {epoch}, "update": {passed}, '
        f'"loss": "{loss}", "wps": "{wps}", "num_updates": "{update}", '
        f'"train_wall": "{train_wall}", "wall": "0"}}'
    )


def epoch_end(epoch, update, train_wall):
    return (
        f'2026-11-20 11:26:04 | INFO | train | {{"epoch": {epoch}, "train_loss": "4", '
        f'"train_num_updates": "{update}", "train_train_wall": "{train_wall}", "train_wall": "9"}}'
    )


def valid(update, loss):
    return (
        f'2026-11-20 11:26:04 | INFO | valid | {{"epoch": 1, "valid_loss": "{loss}", '
        f'"valid_num_updates": "{update}"}}'
    )


LOG = [
    "x | INFO | fairseq_cli.train | num. shared model params: 2,571,776 (num. trained: 2,571,776)",
    inner(10, loss=6, wps=0),
    inner(20, loss=5, wps=1100),
    valid(24, 5.5),
    epoch_end(1, 24, 1800),
    inner(30, loss=4, wps=1300, epoch=2, passed=1.25),
    valid(48, 4.25),
    epoch_end(2, 48, 1800),
]


def make_run(out, arch, seed, errors=0.5, chrf=50.0, tests=("test_a",), lowercase=False):
    """A folder as the stages train and evaluate leave it."""
    folder = out / arch / f"seed{seed}"
    for test in tests:
        reference = write_lines(out / "reference" / f"{test}.de", sentences())
        hypotheses = sentences(errors, seed)
        if lowercase:
            hypotheses = [line.lower() for line in hypotheses]
        write_lines(folder / test / "hypotheses.txt", hypotheses)
        bleu = sacrebleu.corpus_bleu(hypotheses, [sentences()], lowercase=lowercase).score
        signature = BLEU.format("lc" if lowercase else "mixed")
        scores = {
            "test": test,
            "sentences": SENTENCES,
            "reference": str(reference),
            "reference_sha256": hashlib.sha256(reference.read_bytes()).hexdigest(),
            "generated_sha256": "0",
            "scores": [
                {"metric": "BLEU", "score": bleu, "signature": signature, "detail": ""},
                {"metric": "chrF", "score": chrf, "signature": CHRF, "detail": ""},
            ],
        }
        (folder / test / "scores.json").write_text(json.dumps(scores))
    described = {
        "arch": arch,
        "seed": seed,
        "flags": ["data-bin", "--save-dir", str(folder), "--arch", arch, "--seed", str(seed)]
        + FLAGS,
        "data": {
            "fingerprint": "f00d",
            "source": "en",
            "target": "de",
            "tests": list(tests),
            "sha256": {"train.en-de.en.bin": "1", "dict.en.txt": "2"},
        },
        "starts": [START],
    }
    (folder / "manifest.json").write_text(json.dumps(described))
    write_lines(folder / "train.log", LOG)
    return folder


def print_generated(path, generated, joins_bpe=False):
    """Write what fairseq-generate prints of pairs of source and hypothesis, by sentence number."""
    lines = []
    for i, pair in generated.items():
        source, found = ((x + " ").replace("@@ ", "").strip() if joins_bpe else x for x in pair)
        lines += [f"S-{i}\t{source}", f"T-{i}\t{found}", f"H-{i}\t-0.1\t{found}"]
        lines += [f"D-{i}\t-0.1\t{found}", f"P-{i}\t" + " -0.1" * (len(pair[1].split()) + 1)]
    return write_lines(path, lines)
