"""The tables of an HTML page, as their readers see them."""

from html.parser import HTMLParser


def tables(page):
    """Of each table, by heading and caption: the name of each row, and its cells by head."""
    parser = Tables()
    parser.feed(page)
    return parser.found


def numbers(cell):
    """What a cell says: nothing, a number, or a number and what is after its ±."""
    return [float(x) for x in cell.split("±")] if cell else []


class Tables(HTMLParser):
    def __init__(self):
        super().__init__()
        self.found, self.heading, self.rows, self.cells, self.text = {}, "", [], [], ""

    def handle_starttag(self, tag, attributes):
        if tag == "table":
            self.rows = []
        elif tag == "tr":
            self.cells = []
        if tag in ("h2", "h3", "h4", "caption", "th", "td"):
            self.text = ""

    def handle_data(self, text):
        self.text += text

    def handle_endtag(self, tag):
        if tag in ("h2", "h3", "h4"):
            self.heading = self.text
        elif tag == "caption":
            self.caption = self.text
        elif tag in ("th", "td"):
            self.cells.append(self.text)
        elif tag == "tr":
            self.rows.append(self.cells)
        elif tag == "table":
            (_, *heads), *rows = self.rows
            assert len({*heads}) == len(heads)
            self.found[self.heading, self.caption] = [
                (name, dict(zip(heads, cells, strict=True))) for name, *cells in rows
            ]
