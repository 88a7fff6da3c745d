"""From hypotheses to a table: scores, significance, what a training was made from, reports."""
