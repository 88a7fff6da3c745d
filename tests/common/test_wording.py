"""Numbers in sentences."""

import pytest

from macaron_fairseq.common import wording


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.9996, "0.9996"),
        (-0.99963, "-0.99963"),
        (0.999963, "0.999963"),
        (0.98765, "0.988"),
        (1, "1"),
        (0.9999999, "1"),
        (1.0004, "1"),
        (0.5, "0.5"),
        (0, "0"),
        (1234, "1230"),
        (12345, "12300"),
        (0.00012345, "0.000123"),
        (0.000012345, "0.0000123"),
        (1234567, "1230000"),
        (10, "10"),
        (9.996, "10"),
        (-2.5, "-2.5"),
    ],
)
def test_three_digits_and_near_one_three_of_what_is_missing(value, shown):
    assert wording.number(value) == shown
