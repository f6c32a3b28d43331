import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sorl.app.overlay import OVERLAYS, known_overlays, scale_of
from sorl.app.theme import DARK, LIGHT, contrast
from tests.app.conftest import Open

PPO = "ppo-s0-aaaa0000"
figures = st.lists(
    st.none() | st.floats(-20, 20) | st.sampled_from([math.nan, math.inf]), min_size=1, max_size=6
)


@pytest.mark.parametrize("name", OVERLAYS)
@pytest.mark.parametrize("palette", [LIGHT, DARK], ids=["light", "dark"])
@given(values=figures)
def test_every_tint_can_be_read_and_what_was_not_measured_has_none(name, palette, values) -> None:
    overlay = OVERLAYS[name]
    row = {overlay.column: values} | ({overlay.minus: [0.0] * len(values)} if overlay.minus else {})
    scale = scale_of(name, [row], palette)
    for value in overlay.values(row):
        tint = scale.tint(value)
        if value is None or math.isnan(value):
            assert tint is None
        if tint is not None:
            assert contrast(*tint) >= 4.5


@given(st.floats(0.05, 1), st.floats(0.05, 1))
def test_a_larger_value_has_the_stronger_colour(first: float, second: float) -> None:
    scale = scale_of("advantage", [{"advantage": [1.0]}], LIGHT)
    assert (scale.place(first) <= scale.place(second)) == (first <= second)
    assert scale.place(-first) == -scale.place(first)


def test_the_mismatch_is_the_trainer_s_log_prob_minus_the_sampler_s() -> None:
    row = {"log_prob_old": [-1.0, -2.0, None], "log_prob_behaviour": [-1.5, None, -1.0]}
    assert OVERLAYS["mismatch"].values(row) == [0.5, None, None]


def test_only_measured_figures_are_offered() -> None:
    assert list(known_overlays([{"log_ratio": [None, 0.1], "entropy": [None, None]}])) == ["log-ratio"]
    assert list(known_overlays([{"entropy": [1.0]}, {"value": [0.0]}])) == ["entropy", "value"]


def test_the_legend_names_figure_unit_and_epoch() -> None:
    assert OVERLAYS["log-ratio"].title(2) == "log-ratio (nats) in epoch 2"
    assert OVERLAYS["entropy"].title(2) == "entropy (nats) in the last epoch"
    assert OVERLAYS["mask"].title(2) == "trained tokens"
    scale = scale_of("value", [{"value": [-3.0, 1.0]}], LIGHT)
    assert [words for _, words in scale.ticks()] == ["-3", "0", "3"]


@pytest.mark.parametrize("name", ["entropy", "value", "mask", "gradient", "advantage", "mismatch"])
def test_an_episode_is_tinted_by_the_chosen_figure(open_screen: Open, name: str) -> None:
    source = open_screen("episode", run=PPO, step="7", trajectory="0", tint=name).source
    assert f"tokens: {OVERLAYS[name].label}" in source
    assert 'class="sorl-token' in source
