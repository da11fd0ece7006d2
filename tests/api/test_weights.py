"""`compile(weights=)`: a model on `meta` gets the values of a checkpoint, or nothing at all."""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.optim import AdamW

import remat_compile
from remat_compile import FBError
from remat_compile.backends.torch import TrainingStep, measure_step
from remat_compile.capture.weights import load_weights
from remat_compile.verifier import ProvenPlan, verify

BATCH = torch.randint(0, 50, (2, 8), generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    """A tied head, a buffer of the checkpoint, and one that is made by the model."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.layers = nn.Sequential(*(nn.Linear(16, 16) for _ in range(30)))
        self.norm, self.head = nn.BatchNorm1d(8), nn.Linear(16, 50)
        self.head.weight = self.embed.weight
        self.register_buffer("scale", torch.full((1,), 0.5, device="cpu"), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.head(self.norm(torch.tanh(self.layers(self.embed(x)))) * self.scale)
        return nn.functional.cross_entropy(y.flatten(0, 1), x.flatten())


def on_meta() -> Net:
    with torch.device("meta"):
        return Net()


def values(seed: int = 0) -> dict[str, Tensor]:
    """The tensors of a checkpoint, which names tied ones once."""
    torch.manual_seed(seed)
    return {name: t.clone() for name, t in Net().state_dict().items() if name != "head.weight"}


def saved(tensors: dict[str, Tensor], path: Path) -> Path:
    save_file(tensors, path)
    return path


def test_a_model_on_meta_trains_with_all_parameters_on_the_host(tmp_path: Path) -> None:
    """The optimizer was made of it before. The device never has all parameters, to the byte."""
    model, path = on_meta(), saved(values(), tmp_path / "net.safetensors")
    model.embed.weight.is_known = True  # type: ignore[attr-defined]
    parameters = list(model.parameters())
    optimizer = AdamW(parameters, lr=1e-2, fused=True)
    step = remat_compile.compile(
        model,
        (BATCH,),
        optimizer=optimizer,
        weights=path,
        planner="zero-infinity",
        link="10GB/s",
        budget="30KiB",
    )
    assert isinstance(step, TrainingStep)
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))
    assert model.head.weight is model.embed.weight
    assert model.embed.weight.is_known  # type: ignore[attr-defined]
    torch.manual_seed(0)
    other = Net()
    stepper = AdamW(other.parameters(), lr=1e-2, fused=True)
    for _ in range(3):
        loss = step(BATCH)
        expected = other(BATCH)
        expected.backward()
        stepper.step()
        stepper.zero_grad()
        assert torch.equal(loss, expected)
    assert all(map(torch.equal, model.state_dict().values(), other.state_dict().values()))
    plan = step.module.planned_step
    proven = verify(plan.program, plan.schedule)
    assert isinstance(proven, ProvenPlan)
    use = measure_step(step.module, (BATCH,))
    assert use.measured_bytes == proven.proven.device_bytes < sum(p.nbytes for p in parameters)
    assert use.host_measured_bytes == proven.proven.host_bytes
    assert {a.name for a in plan.program.graph.anodes if a.kind == "param"} <= plan.schedule.homes


def test_an_index_of_several_files(tmp_path: Path) -> None:
    """Into a model that has values; narrower numbers are widened."""
    parts = [{}, {}]
    for at, (name, tensor) in enumerate(values().items()):
        is_float = tensor.is_floating_point()
        parts[at % 2][name] = tensor.bfloat16() if is_float else tensor
    names = ["a.safetensors", "b.safetensors"]
    for name, part in zip(names, parts, strict=True):
        saved(part, tmp_path / name)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(
        json.dumps({"weight_map": {key: names[at] for at in (0, 1) for key in parts[at]}})
    )
    model = Net()
    load_weights(model, index)
    state = model.state_dict()
    for name, tensor in (parts[0] | parts[1]).items():
        assert torch.equal(state[name], tensor.to(state[name].dtype))
    index.write_text('{"weight_map": {"embed.weight": "../a.safetensors"}}')
    with pytest.raises(FBError, match=r"FB0553.*not a file beside it"):
        load_weights(model, index)


def without(name: str) -> dict[str, Tensor]:
    return {key: tensor for key, tensor in values().items() if key != name}


WRONG: dict[str, tuple[str, Callable[[], dict[str, Tensor]]]] = {
    "no values for embed.weight, head.weight of the model": (
        "FB0554",
        lambda: without("embed.weight"),
    ),
    "the model has no tail.bias": ("FB0554", lambda: values() | {"tail.bias": torch.ones(3)}),
    "layers.0.bias is torch.float32 [17] there and torch.float32 [16] in the model": (
        "FB0554",
        lambda: values() | {"layers.0.bias": torch.ones(17)},
    ),
    "layers.0.bias is torch.float64 [16] there and torch.float32 [16] in the model": (
        "FB0554",
        lambda: values() | {"layers.0.bias": torch.ones(16, dtype=torch.float64)},
    ),
    "head.weight is tied in the model and has other values there": (
        "FB0554",
        lambda: values() | {"head.weight": torch.ones(50, 16)},
    ),
}


@pytest.mark.parametrize(("message", "wrong"), WRONG.items(), ids=range(len(WRONG)))
def test_a_checkpoint_of_another_model(
    tmp_path: Path, message: str, wrong: tuple[str, Callable[[], dict[str, Tensor]]]
) -> None:
    code, tensors = wrong
    refused(saved(tensors(), tmp_path / "net.safetensors"), code, message)


def refused(path: Path, code: str, message: str, model: Net | None = None) -> None:
    """One message, with a way out; not a tensor of either model is changed."""
    model, filled = model or on_meta(), Net()
    before = {name: t.clone() for name, t in filled.state_dict().items()}
    for each in (model, filled):
        optimizer = AdamW(each.parameters())
        with pytest.raises(FBError) as error:
            remat_compile.compile(each, (BATCH,), optimizer=optimizer, weights=path)
        (diagnostic,) = error.value.diagnostics
        assert (diagnostic.code, diagnostic.hint is None) == (code, False)
        assert message in diagnostic.message
    assert all(p.is_meta for p in model.parameters())
    assert all(torch.equal(t, before[name]) for name, t in filled.state_dict().items())


def test_files_that_are_no_checkpoint(tmp_path: Path) -> None:
    whole = saved(values(), tmp_path / "net.safetensors").read_bytes()
    cut, index = tmp_path / "cut.safetensors", tmp_path / "model.safetensors.index.json"
    for length in (0, 7, 40, len(whole) - 1):
        cut.write_bytes(whole[:length])
        refused(cut, "FB0553", "is not a whole safetensors file")
    cut.write_bytes(b"PK\3\4" * 64)
    refused(cut, "FB0553", "is not a whole safetensors file")
    refused(tmp_path / "gone.safetensors", "FB0553", "gone.safetensors")
    refused(tmp_path, "FB0553", "is not a whole safetensors file")
    for text in ("[]", "{", '{"weight_map": 3}'):
        index.write_text(text)
        refused(index, "FB0553", "is not an index")


def test_tensors_that_no_checkpoint_can_fill(tmp_path: Path) -> None:
    path = saved(values(), tmp_path / "net.safetensors")
    cases: dict[str, Callable[[Net], Any]] = {
        "buffer scale is on meta": lambda m: setattr(m, "scale", m.scale.to("meta")),
        "weak references to head.bias": lambda m: weakref.ref(m.head.bias),
    }
    for message, change in cases.items():
        model = on_meta()
        held = change(model)
        with pytest.raises(FBError, match=rf"FB0554.*{message}"):
            load_weights(model, path)
        assert all(p.is_meta for p in model.parameters()), held
