"""States: every kind of field is kept, and a damaged or foreign file is refused."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from models import InputShape, SplitModel, build_model
from strategies.base import state as state_module
from strategies.base.files import NotWrittenError
from strategies.base.state import (
    StateError,
    load_state,
    move_state,
    non_finite_entries,
    read_about,
    save_state,
)

SHAPE = InputShape(1, 32, 10)


def empty() -> Any:
    return dataclasses.field(default=None)


@dataclasses.dataclass
class Everything:
    module: nn.Module = empty()
    tensor: Tensor = empty()
    scalar_tensor: Tensor = empty()
    mapping: dict[Any, Tensor] = empty()
    flag: bool = empty()
    count: int = empty()
    rate: float = empty()
    text: str = empty()
    nothing: None = None
    numbers: list[Any] = empty()


def everything() -> Everything:
    return Everything(
        module=nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)),
        tensor=torch.tensor([[1.5, -2.0]]),
        scalar_tensor=torch.tensor(7),
        mapping={"a/b": torch.ones(2, dtype=torch.float64), "c": torch.zeros(0)},
        flag=True,
        count=2**60,
        rate=0.1,
        text="läuft",
        numbers=[1, 2.5, None, "x", False],
    )


def test_every_kind_of_field_comes_back(tmp_path: Path) -> None:
    saved = everything()
    path = tmp_path / "deep" / "er" / "state.safetensors"
    save_state(path, saved, {"round": 3})
    skeleton = Everything(module=nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)))
    loaded = load_state(path, skeleton)
    assert loaded is skeleton
    assert read_about(path) == {"round": 3}
    for name, item in saved.module.state_dict().items():
        assert torch.equal(loaded.module.state_dict()[name], item)
    assert torch.equal(loaded.tensor, saved.tensor)
    assert loaded.scalar_tensor.shape == ()
    assert int(loaded.scalar_tensor) == 7
    assert list(loaded.mapping) == ["a/b", "c"]
    assert loaded.mapping["a/b"].dtype == torch.float64
    assert loaded.mapping["c"].shape == (0,)
    for name in ("flag", "count", "rate", "text", "nothing", "numbers"):
        value = getattr(loaded, name)
        assert value == getattr(saved, name), name
        assert type(value) is type(getattr(saved, name)), name


def test_none_and_empty_fields_come_back(tmp_path: Path) -> None:
    path = tmp_path / "s.safetensors"
    save_state(path, Everything(mapping={}, numbers=[]), {})
    loaded = load_state(path, everything())
    assert loaded.mapping == {}
    assert loaded.numbers == []
    assert loaded.module is None
    assert loaded.tensor is None


@pytest.mark.parametrize(
    "dtype",
    [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32,
     torch.int16, torch.int8, torch.uint8, torch.bool],
)  # fmt: skip
def test_every_dtype_comes_back(dtype: torch.dtype, tmp_path: Path) -> None:
    tensor = torch.tensor([[0, 1], [2, 3]]).to(dtype)
    save_state(tmp_path / "s", Everything(tensor=tensor, scalar_tensor=tensor[1, 1]), {})
    loaded = load_state(tmp_path / "s", Everything())
    assert loaded.tensor.dtype == dtype
    assert torch.equal(loaded.tensor, tensor)
    assert torch.equal(loaded.scalar_tensor, tensor[1, 1])


def test_integer_names_of_a_mapping_stay_integers(tmp_path: Path) -> None:
    save_state(tmp_path / "s", Everything(mapping={3: torch.ones(1), 1: torch.zeros(1)}), {})
    assert list(load_state(tmp_path / "s", Everything()).mapping) == [3, 1]


@pytest.mark.parametrize("value", [(1, 2), {"a": 1}, {1, 2}, [torch.ones(1)], object(), 1j, b"x"])
def test_what_cannot_be_kept_is_named(value: Any, tmp_path: Path) -> None:
    with pytest.raises(StateError, match=r"Everything\.numbers: a \w+ cannot be kept"):
        save_state(tmp_path / "s", Everything(numbers=value), {})
    assert list(tmp_path.iterdir()) == []


def test_changing_a_loaded_state_leaves_the_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "s"
    save_state(path, everything(), {})
    before = path.read_bytes()
    loaded = load_state(path, everything())
    with torch.no_grad():
        loaded.tensor.fill_(9)
        loaded.mapping["a/b"].add_(1)
        for parameter in loaded.module.parameters():
            parameter.zero_()
    assert path.read_bytes() == before
    assert load_state(path, everything()).tensor.tolist() == [[1.5, -2.0]]


def test_replacing_a_file_leaves_a_loaded_state_alone(tmp_path: Path) -> None:
    path = tmp_path / "s"
    save_state(path, Everything(tensor=torch.ones(1000)), {})
    loaded = load_state(path, Everything())
    save_state(path, Everything(tensor=torch.zeros(1000)), {})
    assert loaded.tensor.sum() == 1000


def test_a_loaded_state_can_be_saved_over_its_own_file(tmp_path: Path) -> None:
    path = tmp_path / "s"
    save_state(path, everything(), {"round": 1})
    loaded = load_state(path, everything())
    loaded.tensor += 1
    save_state(path, loaded, {"round": 2})
    assert load_state(path, everything()).tensor.tolist() == [[2.5, -1.0]]


def test_training_after_saving_does_not_change_the_record(tmp_path: Path) -> None:
    model = nn.Linear(2, 1)
    first = model.weight.detach().clone()
    save_state(tmp_path / "a", Everything(module=model), {})
    model(torch.ones(4, 2)).sum().backward()
    torch.optim.SGD(model.parameters(), lr=1.0).step()
    save_state(tmp_path / "b", Everything(module=model), {})
    a = load_state(tmp_path / "a", Everything(module=nn.Linear(2, 1)))
    b = load_state(tmp_path / "b", Everything(module=nn.Linear(2, 1)))
    assert torch.equal(a.module.weight, first)
    assert torch.allclose(b.module.weight, first - 4)


def test_tensors_that_share_memory_are_kept_apart(tmp_path: Path) -> None:
    whole = torch.arange(6.0)
    shared = Everything(
        tensor=whole,
        scalar_tensor=whole[3],
        mapping={"head": whole[:2], "tail": whole[2:], "t": whole},
    )
    save_state(tmp_path / "s", shared, {})
    loaded = load_state(tmp_path / "s", Everything())
    loaded.tensor.zero_()
    assert loaded.mapping["tail"].tolist() == [2, 3, 4, 5]
    assert loaded.mapping["head"].tolist() == [0, 1]
    assert float(loaded.scalar_tensor) == 3


def test_strided_tensors_come_back(tmp_path: Path) -> None:
    images = torch.arange(16.0).reshape(1, 2, 2, 4).to(memory_format=torch.channels_last)
    save_state(tmp_path / "s", Everything(tensor=images, scalar_tensor=images.mT), {})
    loaded = load_state(tmp_path / "s", Everything())
    assert torch.equal(loaded.tensor, images)
    assert torch.equal(loaded.scalar_tensor, images.mT)


@pytest.mark.parametrize("name", ["cnn5", "resnet10-w4"])
def test_a_skeleton_on_the_meta_device_is_filled(name: str, tmp_path: Path) -> None:
    model = build_model(name, SHAPE, seed=1)
    model.train()(torch.randn(4, 1, 32, 32))
    save_state(tmp_path / "s", Everything(module=model), {})
    with torch.device("meta"):
        skeleton = Everything(module=build_model(name, SHAPE))
    loaded = load_state(tmp_path / "s", skeleton).module
    assert isinstance(loaded, SplitModel)
    assert all(isinstance(p, nn.Parameter) and p.requires_grad for p in loaded.parameters())
    for key, item in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[key], item), key
    images = torch.randn(2, 1, 32, 32)
    assert torch.equal(loaded.eval()(images), model.eval()(images))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(2, 2, bias=False)
        self.decode = nn.Linear(2, 2, bias=False)
        self.decode.weight = self.encode.weight


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_tied_weights_stay_tied(device: str, tmp_path: Path) -> None:
    model = Tied()
    save_state(tmp_path / "s", Everything(module=model), {})
    with torch.device(device):
        skeleton = Everything(module=Tied())
    loaded = load_state(tmp_path / "s", skeleton).module
    assert isinstance(loaded, Tied)
    assert loaded.decode.weight is loaded.encode.weight
    assert torch.equal(loaded.encode.weight, model.encode.weight)
    assert len(list(loaded.parameters())) == 1


class Hidden(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.ones(2), persistent=False)


def test_buffers_that_are_not_saved_are_named(tmp_path: Path) -> None:
    save_state(tmp_path / "s", Everything(module=Hidden()), {})
    with torch.device("meta"):
        skeleton = Everything(module=Hidden())
    with pytest.raises(StateError, match=r"module \['mask'\].*persistent"):
        load_state(tmp_path / "s", skeleton)


@pytest.mark.parametrize("keep", [0, 1, 7, 8, 60, -1])
def test_a_truncated_file_is_named(keep: int, tmp_path: Path) -> None:
    path = tmp_path / "round-00003.safetensors"
    save_state(path, everything(), {})
    path.write_bytes(path.read_bytes()[:keep])
    for action in (lambda: load_state(path, everything()), lambda: read_about(path)):
        with pytest.raises(StateError, match=r"round-00003\.safetensors: damaged"):
            action()


def test_random_damage_never_escapes_as_another_error(tmp_path: Path) -> None:
    path = tmp_path / "s"
    save_state(path, everything(), {})
    whole = path.read_bytes()
    generator = torch.Generator().manual_seed(0)
    for place in torch.randint(0, 400, (120,), generator=generator).tolist():
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x15]) + whole[place + 1 :])
        try:
            load_state(path, everything())
        except StateError as error:
            text = str(error)
            assert str(path) in text


def test_a_missing_file_or_a_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="nowhere: no such state file"):
        load_state(tmp_path / "nowhere", Everything())
    with pytest.raises(StateError, match=str(tmp_path)):
        load_state(tmp_path, Everything())


def test_a_foreign_file_is_named(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    save_file({"a": torch.ones(1)}, tmp_path / "s")
    with pytest.raises(StateError, match="not a Wildflower state file"):
        load_state(tmp_path / "s", Everything())


@dataclasses.dataclass
class Other:
    tensor: Tensor = empty()
    bias: Tensor = empty()


def test_fields_of_another_class_are_refused(tmp_path: Path) -> None:
    save_state(tmp_path / "s", everything(), {})
    with pytest.raises(
        StateError, match=r"holds the fields .*'flag'.*Other has \['tensor', 'bias'\]"
    ):
        load_state(tmp_path / "s", Other())


@pytest.mark.parametrize(
    "other", [nn.Linear(3, 3), nn.Linear(2, 3), nn.Sequential(nn.Linear(2, 3))]
)
def test_another_model_is_refused(other: nn.Module, tmp_path: Path) -> None:
    save_state(tmp_path / "s", everything(), {})
    with pytest.raises(StateError, match=r"/s: field module does not fit the model"):
        load_state(tmp_path / "s", Everything(module=other))


def test_a_failed_save_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "s"
    save_state(path, Everything(tensor=torch.ones(1)), {})
    before = path.read_bytes()

    def half(tensors: Any, target: Path, metadata: Any) -> None:
        target.write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(state_module, "save_file", half)
    room = r"s: cannot be written, where [\d.]+ MB are free \(disk full\); make room there"
    with pytest.raises(NotWrittenError, match=room):
        save_state(path, Everything(tensor=torch.zeros(1)), {}, durable=True)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["s"]


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(NotWrittenError, match=r"below/s: cannot be written .*another output-dir"):
        save_state(tmp_path / "file" / "below" / "s", Everything(), {})


def test_a_durable_file_is_read_alike(tmp_path: Path) -> None:
    save_state(tmp_path / "a", Everything(tensor=torch.ones(3)), {"x": 1}, durable=True)
    assert read_about(tmp_path / "a") == {"x": 1}
    assert load_state(tmp_path / "a", Everything()).tensor.tolist() == [1, 1, 1]


def test_moving_a_state_moves_every_tensor() -> None:
    moved = move_state(everything(), torch.device("meta"))
    assert moved.tensor.is_meta
    assert moved.mapping["c"].is_meta
    assert all(p.is_meta for p in moved.module.parameters())
    assert moved.numbers == [1, 2.5, None, "x", False]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_one_value_that_is_not_finite_is_found(dtype: torch.dtype) -> None:
    """Also infinities that cancel; values whose sum overflows are finite all the same."""
    largest = torch.finfo(dtype).max
    for number in (math.nan, math.inf, -math.inf):
        spoiled = torch.full((3, 4), largest, dtype=dtype)
        spoiled[1, 2] = number
        assert non_finite_entries(Everything(tensor=spoiled)) == ["tensor"]
    both = torch.tensor([math.inf, -math.inf], dtype=dtype)
    assert non_finite_entries(Everything(mapping={"a": both})) == ["mapping/a"]
    assert non_finite_entries(Everything(tensor=torch.full((3, 4), largest, dtype=dtype))) == []
    assert non_finite_entries(Everything(tensor=torch.zeros(0, dtype=dtype))) == []
    assert non_finite_entries(everything()) == []
