"""Sphinx makes the site of these Markdown files: `make docs`, into build/docs."""

import logging
import sys
from pathlib import Path

DOCS = Path(__file__).parent
sys.path[:0] = [str(DOCS / "_sphinx"), str(DOCS.parent)]

from macaron_fairseq import plugin  # noqa: E402, F401 - fairseq's first words are over
from macaron_fairseq.version import __version__ as release  # noqa: E402

for library in ("fairseq", "markdown_it"):  # fairseq's import makes every logger talk
    logging.getLogger(library).setLevel(logging.WARNING)

project = "macaron_fairseq"
author = "The macaron_fairseq authors"
copyright = author
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "reference_pages"]
exclude_patterns = ["_sphinx"]
nitpicky = True
# Types of other packages, and those that a signature spells in short, have no page here.
nitpick_ignore_regex = [("py:.*", ".*")]

# A heading's anchor is what GitHub makes of it, so that links work there too.
myst_heading_anchors = 4
myst_enable_extensions = ["deflist"]

autodoc_typehints = "description"
autodoc_member_order = "bysource"
smartquotes = False  # in x' = F(x) + G(x) it is a prime
default_role = "code"  # docstrings put names between single backticks

html_theme = "furo"
html_title = f"macaron_fairseq {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_copy_source = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0860ca", "color-brand-content": "#0860ca"},
    "dark_css_variables": {"color-brand-primary": "#6ea8fe", "color-brand-content": "#6ea8fe"},
}
