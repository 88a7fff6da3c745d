"""Records of trained and scored runs, as many tasks have them."""

from macaron_fairseq.evaluation.evidence.records import Items, Run


def record(task="t", scheme="lie-trotter", seed=1, edits="0120", **changed):
    """A record; WER 50 and PER 3 of 8 unless other edits are given."""
    wrong = sum(digit != "0" for digit in edits)
    scores = {"WER": 100 * wrong / len(edits), "PER": 100 * sum(map(int, edits)) / 2 / len(edits)}
    values = {
        **dict(task=task, scheme=scheme, seed=seed, metric="WER", test="test", items=edits),
        **dict(kinds=Items("edits", len(edits), "abc", "2" * len(edits)), scores={"test": scores}),
        **dict(signatures={"WER": "s", "PER": "s"}, settings="x", data="d", updates=5, seconds=9.5),
        **dict(parameters=7, environment={"cpu": "c", "gpus": [], "threads": 1}),
        **dict(
            command=f"reproduce.sh --tasks {task} --schemes {scheme} --seeds {seed} --cpu",
            date="2026-01-01",
        ),
    }
    return Run(**{**values, **changed})
