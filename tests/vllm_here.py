"""The mark of tests that need vLLM, which has an environment of its own."""

from importlib.util import find_spec

import pytest

NEEDS_VLLM = pytest.mark.skipif(
    find_spec("vllm") is None, reason="vLLM is not installed here; `make test-vllm` does"
)
