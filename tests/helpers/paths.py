"""Where things are."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
USER_DIR = ROOT / "macaron_fairseq"
FIXTURES = ROOT / "tests" / "fixtures"
