"""The notebook runs, in its own kernel, on the models that come with the package."""

from importlib.util import find_spec

import pytest
from helpers.paths import ROOT, USER_DIR

pytestmark = pytest.mark.slow

NOTEBOOK = ROOT / "examples" / "notebooks" / "first-steps.ipynb"
DEMO = USER_DIR / "demo"
SHORTER = {"[:10]": "[:2]", "jacobian_sentences=2": "jacobian_sentences=1"}


@pytest.fixture(scope="module")
def cells():
    """Its code cells, executed."""
    for package in ("nbclient", "nbformat", "ipykernel", "pandas", "matplotlib", "scipy"):
        if find_spec(package) is None:
            pytest.skip(f"no {package}: install the extra [notebook]")
    if not DEMO.is_dir():
        pytest.skip("the package has no trained pair")
    import nbclient
    import nbformat

    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "it is stored without outputs"
    text = "".join(cell.source for cell in notebook.cells)
    assert [x for x in SHORTER if x not in text] == []
    for cell in notebook.cells:  # fewer sentences, of which each takes seconds
        for long, short in SHORTER.items():
            cell.source = cell.source.replace(long, short)
    client = nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3")
    client.execute(cwd=str(ROOT))
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def output_of(cell, kind):
    return [output.data[kind] for output in cell.outputs if kind in output.get("data", {})]


def test_every_result_is_shown_and_nothing_is_said(cells):
    assert not cells[0].outputs
    (formulas,) = output_of(cells[2], "text/markdown")
    assert "x <- x + 1/2 FFN1(LN x)" in formulas
    assert all(output_of(cells[i], "text/html") for i in (1, 3, 4))
    assert output_of(cells[5], "image/png") and output_of(cells[6], "text/markdown")
    said = [x.text for cell in cells[:5] for x in cell.outputs if x.output_type == "stream"]
    assert not said


def test_translations_are_good(cells):
    """The pair was trained on phrases of this kind."""
    (table,) = output_of(cells[4], "text/plain")
    scores = [float(line.split()[3]) for line in table.splitlines() if " BLEU " in line]
    assert len(scores) == 2 and min(scores) > 50
