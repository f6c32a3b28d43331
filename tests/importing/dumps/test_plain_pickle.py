"""Files of torch.save: read fast, the same as torch reads them, and nothing in them runs."""

import io
import math
import pickle
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sorl.importing.dumps import files, plain_pickle
from sorl.spec import InputError

NUMBERS = st.one_of(st.integers(), st.integers(-3, 300), st.floats(), st.booleans(), st.none())
VALUES = st.recursive(
    st.one_of(NUMBERS, st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(NUMBERS, max_size=40),
        st.lists(inner, max_size=4),
        st.dictionaries(st.text(max_size=3), inner, max_size=3),
        st.tuples(inner, inner),
    ),
    max_leaves=12,
)


def is_same(read: Any, written: Any) -> bool:
    """Equality of type and value, in which NaN equals NaN."""
    if type(read) is not type(written):
        return False
    if isinstance(read, dict):
        return read.keys() == written.keys() and all(is_same(read[key], written[key]) for key in read)
    if isinstance(read, list | tuple):
        return len(read) == len(written) and all(map(is_same, read, written))
    if isinstance(read, float) and math.isnan(read):
        return math.isnan(written)
    return bool(read == written)


def read_fast(file: Path) -> Any:
    return torch.load(file, pickle_module=plain_pickle, weights_only=False)


def with_pickle(file: Path, program: bytes) -> Path:
    """A file of torch.save with another pickle in it."""
    torch.save([1], file)
    with zipfile.ZipFile(file) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in contents.items():
            archive.writestr(name, program if name.endswith("data.pkl") else content)
    return file


@settings(max_examples=200, deadline=None)
@given(VALUES)
def test_plain_values_are_read_as_they_were_written(tmp_path_factory: Any, written: Any) -> None:
    file = tmp_path_factory.getbasetemp() / "values.pt"
    torch.save({"value": written}, file)
    assert is_same(read_fast(file)["value"], written)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_tensors_are_read_as_they_were_written(tmp_path: Path, dtype: torch.dtype) -> None:
    tensor = torch.arange(12).reshape(3, 4).to(dtype)
    torch.save([tensor, tensor[:, 1:3]], tmp_path / "tensors.pt")
    whole, part = read_fast(tmp_path / "tensors.pt")
    assert torch.equal(whole, tensor)
    assert torch.equal(part, tensor[:, 1:3])
    assert part.dtype == dtype


def test_a_stream_is_read_as_a_file_is() -> None:
    stream = io.BytesIO()
    torch.save(torch.tensor([1.5, 2.5]), stream)
    stream.seek(0)
    assert files.load_tensors(Path("part of a file"), stream).tolist() == [1.5, 2.5]


@pytest.mark.parametrize(
    "name", ["os.system", "builtins.eval", "torch._utils._rebuild_parameter", "numpy.load"]
)
def test_a_name_outside_the_table_is_refused(name: str) -> None:
    module, function = name.rsplit(".", 1)
    program = f"c{module}\n{function}\n.".encode()
    with pytest.raises(pickle.UnpicklingError, match="not allowed"):
        plain_pickle.Unpickler(io.BytesIO(program)).load()


def test_code_in_a_file_does_not_run(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    program = f"cos\nsystem\n(S'touch {mark}'\ntR.".encode()
    with pytest.raises(InputError, match=r"os\.system|posix\.system"):
        files.load_tensors(with_pickle(tmp_path / "hostile.pt", program))
    assert not mark.exists()


def test_a_pickle_cannot_change_what_it_names() -> None:
    rebuild = b"ctorch._utils\n_rebuild_tensor_v2\n"
    state = b"(NU\x08__call__K\x01\x85t"  # set __call__
    for program in (rebuild + b"}U\x01xK\x01sb.", rebuild + state + b"b."):
        with pytest.raises((AttributeError, TypeError, ValueError, pickle.UnpicklingError)):
            plain_pickle.Unpickler(io.BytesIO(b"\x80\x02" + program)).load()


def test_an_index_of_billions_takes_no_memory(tmp_path: Path) -> None:
    program = b"\x80\x02]r\xff\xff\xff\x0f(K\x01K\x02e."
    file = with_pickle(tmp_path / "indexed.pt", program)
    tracemalloc.start()
    assert files.load_tensors(file) == [1, 2]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 50e6


@pytest.mark.filterwarnings("ignore")
def test_a_program_of_torchscript_is_not_loaded(tmp_path: Path) -> None:
    file = tmp_path / "program.pt"
    torch.jit.save(torch.jit.trace(torch.nn.Linear(2, 2), torch.zeros(1, 2)), file)
    with pytest.raises(InputError, match="TorchScript"):
        files.load_tensors(file)
