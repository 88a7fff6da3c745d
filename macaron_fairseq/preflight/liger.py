"""Where `--loss-kernel liger` would fail at the first update."""

from importlib.util import find_spec

from macaron_fairseq.common.errors import UserError

NEEDED = "liger_kernel", "triton"


def refuse_where_impossible(on_gpu: bool) -> None:
    """Raise a `UserError` where Liger-Kernel is not installed, or has no GPU to run on."""
    if not on_gpu:
        raise UserError("--loss-kernel liger runs on a GPU: drop it, or drop --cpu if there is one")
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        raise UserError(
            f"--loss-kernel liger needs {' and '.join(missing)}: pip install liger-kernel, "
            "or drop it"
        )
