"""Which code, libraries and machine this runs on."""

import os
import platform
import re
import subprocess
from collections.abc import Mapping
from importlib import metadata
from math import ceil
from pathlib import Path
from typing import Any

from macaron_fairseq.version import __version__

PACKAGE = Path(__file__).parent.parent
# Packages that give the module fairseq: the first that is installed is named.
FAIRSEQ = ("ve-fairseq", "fairseq-fixed", "fairseq")
CGROUP = Path("/sys/fs/cgroup")  # of the container
LIBRARIES = (
    "torch",
    *FAIRSEQ,
    "sacrebleu",
    "sacremoses",
    "subword-nmt",
    "numpy",
    "numba",
    "scipy",
    "matplotlib",
    "ctranslate2",
)


def code(folder: Path = PACKAGE) -> dict[str, Any] | None:
    """Revision of the git checkout that holds the package, and whether its code is modified.

    That is the package and the recipes next to it; results and pages may change.

    None where there is no git, no checkout, or one that does not track the package. The last is a
    project in whose virtual environment the package is installed.
    """

    def git(*words: str) -> str:
        command = ["git", "-C", str(folder), "--no-optional-locks", *words]
        return subprocess.run(command, capture_output=True, check=True, text=True).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", "__init__.py")
        recipes = ["../examples"] if (folder.parent / "examples").is_dir() else []
        modified = git("status", "--porcelain", "--untracked-files=no", "--", ".", *recipes)
        return {"revision": git("rev-parse", "HEAD"), "modified": bool(modified)}
    except (OSError, subprocess.CalledProcessError):
        return None


def versions() -> dict[str, str]:
    """Versions of what takes part, by name."""
    found = {
        "python": platform.python_version(),
        "macaron_fairseq": __version__,
    }
    for name in LIBRARIES:
        if name in FAIRSEQ and found.keys() & FAIRSEQ:
            continue
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def summary() -> dict[str, Any]:
    """Hardware, versions and revision, as small records have them."""
    machine, state = hardware(), code()
    return {
        "cpu": machine["cpu"],
        "gpus": machine["gpus"],
        "threads": wanted_threads(),
        "versions": versions(),
        "revision": revision(state) if state else None,
    }


def revision(code: Mapping[str, Any]) -> str:
    """A state of the code in short; "+": with changes that were not committed."""
    return code["revision"][:12] + "+" * code["modified"]


def hardware() -> dict[str, Any]:
    """The machine: CPU, cores this process may use, memory in GiB, GPUs, operating system."""
    import torch  # takes a second, which those who only read manifests need not wait

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0  # some cannot be used
    return {
        "cpu": cpu_model(),
        "cores": available_cores(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "gpus": [torch.cuda.get_device_name(i) for i in range(gpus)],
        "system": platform.platform(),
    }


def visible_cores() -> int:
    """As many cores as PyTorch takes by itself: those that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def available_cores() -> int:
    """As many cores as this process may use; a container may have a share of the machine's."""
    cores = visible_cores()
    # The time that all of its processes may take together, in each period, by both versions.
    for names in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        try:
            quota, period = map(int, " ".join((CGROUP / x).read_text() for x in names).split())
        except (OSError, ValueError):  # without a limit it is "max"
            continue
        if quota > 0:  # without a limit it is -1
            return max(1, min(cores, ceil(quota / period)))
    return cores


def hides_gpus() -> bool:
    """Whether GPUs are hidden on purpose. Slurm names those of a job, which hides none of them."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return named is not None and not re.match(r"\d|GPU-|MIG-", named)


def wanted_threads() -> int:
    """As many as OpenMP is told to use, or else as there are cores."""
    wanted = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return int(wanted) if wanted.isdecimal() and int(wanted) else available_cores()


def cpu_model() -> str:
    """The CPU's name, or its kind where the system does not tell."""
    return of_first_cpu("model name") or platform.processor() or platform.machine()


def cpu_lacks_vnni() -> bool:
    """Whether this is an x86 CPU without VNNI, whose instructions add products of int8 exactly.

    False where the system does not tell.
    """
    flags = of_first_cpu("flags")  # Linux on x86
    return bool(flags) and "vnni" not in flags


def of_first_cpu(name: str) -> str:
    """What Linux says of the first core under that name, or nothing."""
    try:
        for line in Path("/proc/cpuinfo").read_text("utf-8", errors="replace").split("\n"):
            key, _, value = line.partition(":")
            if key.strip() == name:
                return value.strip()
    except OSError:
        pass
    return ""
