"""Numbers and words as the app writes them."""

import pytest

from sorl.app.text import number


@pytest.mark.parametrize(
    ("value", "written"),
    [(None, "–"), (1234, "1,234"), (-0.0, "0"), (-1e-9, "-1e-09"), (0.12345, "0.123"), (float("nan"), "NaN")],
)
def test_a_number_has_three_figures_and_zero_no_sign(value: float | None, written: str) -> None:
    assert number(value) == written
