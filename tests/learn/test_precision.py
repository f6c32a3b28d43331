"""dtype = "auto": settled once in the life of a run, by what is faster on the machine that begins it."""

import json

import pytest
import tomli_w

from sorl.learn import networks
from sorl.learn.networks import PAYS, with_measured_precision
from sorl.learn.run import PRECISION, settings_of
from sorl.spec import ComputeSettings, EngineSettings, RunSettings

AUTO = RunSettings(compute=ComputeSettings(dtype="auto", device="cpu"), engine=EngineSettings(dtype="auto"))


@pytest.mark.parametrize(("speed_up", "dtype"), [(PAYS, "bfloat16"), (0.9 * PAYS, "float32")])
def test_auto_is_bfloat16_where_that_is_faster(monkeypatch, speed_up, dtype):
    monkeypatch.setattr(networks, "bfloat16_speed_up", lambda: speed_up)
    found = with_measured_precision(AUTO)
    assert (found.compute.dtype, found.engine.dtype) == (dtype, dtype)
    plain = RunSettings()
    assert with_measured_precision(plain) is plain


def test_the_speed_up_is_a_ratio_of_measured_times():
    assert 0.01 < networks.bfloat16_speed_up() < 100


def test_a_run_goes_on_in_the_precision_that_it_began_in(tmp_path):
    told = {"compute": {"dtype": "auto", "device": "cpu"}, "engine": {"dtype": "auto"}}
    (tmp_path / "config.toml").write_text(tomli_w.dumps(told))
    assert settings_of(tmp_path).compute.dtype == "auto"
    (tmp_path / PRECISION).write_text(json.dumps({"compute": "bfloat16", "engine": "float32"}))
    found = settings_of(tmp_path)
    assert (found.compute.dtype, found.engine.dtype) == ("bfloat16", "float32")
    assert found.compute.device == "cpu"
