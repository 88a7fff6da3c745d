"""Run a command of this environment as its script would, and write down how much memory it took.

python child.py PEAKS.json fairseq-train data-bin --arch ...
"""

import json
import resource
import sys
from importlib.metadata import entry_points
from pathlib import Path


def main() -> None:
    """Run the command in this process, whose memory is then the command's."""
    peaks, name, *words = sys.argv[1:]
    sys.argv = [name, *words]
    folder = str(Path(__file__).parent)
    sys.path = [path for path in sys.path if path != folder]  # as it is for a script elsewhere
    (command,) = entry_points(group="console_scripts", name=name)
    try:
        command.load()()
    finally:
        found = {"peak_memory_mib": peak_memory(), "peak_gpu_memory_mib": peak_gpu_memory()}
        Path(peaks).write_text(json.dumps(found), "utf-8")


def peak_memory() -> float:
    """The most that this process had resident, in MiB.

    Linux counts in `ru_maxrss` what the parent held when it started the process; VmHWM does not.
    """
    try:
        for line in Path("/proc/self/status").read_text("utf-8", errors="replace").split("\n"):
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 2**10
    except OSError:
        pass
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)


def peak_gpu_memory() -> float | None:
    """The most that PyTorch took of the GPU, in MiB; None if it used none.

    What its allocator holds, since fairseq resets PyTorch's own record at every update.
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    return torch.cuda.max_memory_reserved() / 2**20


if __name__ == "__main__":
    main()
