"""The key of a second start: the same for the same model, and another for every change of it."""

from __future__ import annotations

import copy
import importlib.util
import operator
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from remat_compile.driver.plan_cache import VARIABLE
from remat_compile.driver.request import Errors, read_request
from remat_compile.driver.start.start import start_of
from remat_compile.frontends.torch_export import Wanted

HELPER = """
def scaled(x):
    return 2.0 * x
"""
NET = """
import torch
from torch import nn
from functools import partial
import {helper} as helper

GAIN = 1.0
TABLE = {{"a": (1, 2.0)}}
KEPT = []

def bend(x):
    return torch.tanh(x) * GAIN

def made(power):
    def act(x):
        return x ** power
    return act

class Base(nn.Module):
    def bent(self, x):
        return bend(x)

class Net(Base):
    slope = 0.5

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = nn.Linear(4, 4)
        self.drop = nn.Dropout(0.1)
        self.act = made(2)
        self.config = {{"scale": 1.0}}

    def forward(self, x):
        x = self.drop(self.act(self.bent(self.a(x))))
        x = x * self.slope * TABLE["a"][1] * self.config["scale"]
        return helper.scaled(self.b(x)).square().mean()

    def unused(self):
        return open("nothing")

def loss(out):
    return out * 1.0
"""


@contextmanager
def loaded(folder: Path, net: str = NET, helper: str = HELPER) -> Iterator[ModuleType]:
    """The module of a user, of a file at the same place each time."""
    name = "second_start_helper"
    (folder / f"{name}.py").write_text(helper)
    file = folder / "second_start_net.py"
    file.write_text(net.format(helper=name))
    names = [(name, folder / f"{name}.py"), ("second_start_net", file)]
    made = []
    try:
        for known, path in names:
            sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
            spec = importlib.util.spec_from_file_location(known, path)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules[known] = module
            spec.loader.exec_module(module)
            sys.dont_write_bytecode = before
            made.append(module)
        yield made[-1]
    finally:
        for known, _ in names:
            sys.modules.pop(known, None)


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "plans"))


def key(
    model: nn.Module,
    x: Any = None,
    *,
    kwargs: dict[str, Any] | None = None,
    loss: Any = None,
    dynamic_shapes: Any = None,
    **options: Any,
) -> str | None:
    errors = Errors()
    chosen = {"activation_budget": "70%", "planner": "dtr", "costs": "measured", **options}
    request = read_request(errors, **chosen)
    assert request is not None
    x = torch.ones(3, 4) if x is None else x
    start = start_of(model, (x,), kwargs, Wanted(loss), dynamic_shapes, request)
    return None if start is None else start.key


def test_two_models_of_one_class_have_one_key(tmp_path: Path) -> None:
    with loaded(tmp_path) as user:
        first = key(user.Net())
        assert first is not None
        assert first == key(user.Net())
        assert first == key(user.Net(), torch.zeros(3, 4))
    with loaded(tmp_path) as user:  # as another process would import it
        assert first == key(user.Net())


class Generation:
    """As the `GenerationConfig` of `transformers` knows whether it was changed."""

    def __init__(self, temperature: float = 1.0) -> None:
        self.temperature = temperature
        self._original_object_hash = id(self)  # `first` and `second` live side by side


def test_an_attribute_that_no_process_repeats_is_left_out_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def of(generation: Generation) -> str | None:
        model = nn.Linear(4, 4)
        model.generation_config = generation  # type: ignore[assignment]
        return key(model)

    first, second = Generation(), Generation()
    assert of(first) != of(second)
    name = (Generation.__module__, "Generation", "_original_object_hash")
    monkeypatch.setattr("remat_compile.driver.start.code.OF_THE_PROCESS", frozenset({name}))
    assert of(first) == of(second) != of(Generation(temperature=0.5))


def test_a_copy_leaves_the_key_as_it_was() -> None:
    model = nn.Linear(4, 4)
    model.generation_config = Generation()  # type: ignore[assignment]
    before = key(model)
    copy.deepcopy(model.generation_config)
    assert "__slotnames__" in vars(Generation)  # where `copyreg` keeps what it found out
    assert key(model) == before is not None


EDITS = {
    "forward": ("self.slope * TABLE", "2 * self.slope * TABLE"),
    "method of a base": ("return bend(x)", "return bend(x) + 1"),
    "function": ("torch.tanh(x)", "torch.sin(x)"),
    "constant": ("GAIN = 1.0", "GAIN = 1.5"),
    "type of a constant": ("GAIN = 1.0", "GAIN = 1"),
    "in a table": ("(1, 2.0)", "(1, 2.5)"),
    "closure": ("made(2)", "made(3)"),
    "attribute of the class": ("slope = 0.5", "slope = 0.25"),
    "attribute": ('"scale": 1.0', '"scale": 2.0'),
    "default": ("def bend(x):", "def bend(x, y=1):"),
    "p of dropout": ("Dropout(0.1)", "Dropout(0.2)"),
    "line": ("def made(power)", "\n\ndef made(power)"),
}


@pytest.mark.parametrize("name", EDITS)
def test_an_edit_gives_another_key(name: str, tmp_path: Path) -> None:
    old, new = EDITS[name]
    assert old in NET
    with loaded(tmp_path) as user:
        before = key(user.Net())
    with loaded(tmp_path, NET.replace(old, new)) as user:
        after = key(user.Net())
    assert before is not None
    assert after is not None
    assert before != after


def test_an_edit_in_another_file_gives_another_key(tmp_path: Path) -> None:
    with loaded(tmp_path) as user:
        before = key(user.Net())
    with loaded(tmp_path, helper=HELPER.replace("2.0", "3.0")) as user:
        assert before != key(user.Net())


def test_an_edited_loss_gives_another_key(tmp_path: Path) -> None:
    with loaded(tmp_path) as user:
        before = key(user.Net(), loss=user.loss)
        assert before != key(user.Net(), loss="loss")
        assert before != key(user.Net())
    with loaded(tmp_path, NET.replace("out * 1.0", "out * 2.0")) as user:
        assert before != key(user.Net(), loss=user.loss)


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: Tensor, twice: bool = False) -> Tensor:
        return self.norm(self.b(self.a(x))).square().mean()


def _tied(m: Any) -> None:
    m.b.weight = m.a.weight


def _frozen(m: Any) -> None:
    m.a.weight.requires_grad_(False)


def _hooked(m: Any) -> None:
    m.a.register_forward_hook(lambda module, given, made: made * 2)


def _patched(m: Any) -> None:
    m.a.forward = lambda x: x


def _sharing(m: Any) -> None:
    both = torch.zeros(2, 4)
    m.a.bias, m.b.bias = nn.Parameter(both[0]), nn.Parameter(both[1])


CHANGES: dict[str, Callable[[Any], Any]] = {
    "tied": _tied,
    "requires_grad": _frozen,
    "hook": _hooked,
    "instance patched": _patched,
    "memory shared": _sharing,
    "dtype": lambda m: m.double(),
    "eval": lambda m: m.a.eval(),
    "scalar": lambda m: setattr(m.norm, "momentum", 0.5),
    "submodule": lambda m: m.add_module("c", nn.Linear(1, 1)),
    "layout": lambda m: setattr(m.a, "weight", nn.Parameter(m.a.weight.detach().t())),
    "buffer": lambda m: m.register_buffer("more", torch.zeros(1)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_of_the_model_gives_another_key(name: str) -> None:
    before, changed = key(Pair()), Pair()
    CHANGES[name](changed)
    assert before is not None
    after = key(changed)
    assert after is not None
    assert after != before


def test_a_patched_class_gives_another_key(monkeypatch: pytest.MonkeyPatch) -> None:
    before = key(Pair())
    with monkeypatch.context() as patch:
        patch.setattr(Pair, "forward", lambda self, x: self.a(x).mean())
        assert key(Pair()) not in (before, None)
    with monkeypatch.context() as patch:
        patch.setattr(nn.Linear, "forward", lambda self, x: x)  # of a library
        assert key(Pair()) not in (before, None)
    assert key(Pair()) == before


class Kept:
    __slots__ = ("__held",)

    def __init__(self, held: object) -> None:
        self.__held = held


OBJECTS: dict[str, tuple[Any, Any]] = {
    "private slot": (Kept(1), Kept(2)),
    "itemgetter": (operator.itemgetter(0), operator.itemgetter(1)),
    "lru_cache": (lru_cache(lambda: 1), lru_cache(lambda: 2)),
}


@pytest.mark.parametrize("name", OBJECTS)
def test_what_an_object_holds_gives_another_key(name: str) -> None:
    keys = []
    for held in OBJECTS[name]:
        model = Pair()
        model.extra = held
        keys.append(key(model))
    assert None not in keys
    assert keys[0] != keys[1]


class Waved(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.gelu(self.a(x))


def test_a_patched_library_gives_another_key(monkeypatch: pytest.MonkeyPatch) -> None:
    before = key(Waved())
    monkeypatch.setattr(nn.functional, "gelu", lambda x: x)
    assert key(Waved()) not in (before, None)


def test_the_sample_and_what_is_asked_are_part_of_the_key() -> None:
    before = key(Pair())
    others = [
        key(Pair(), torch.ones(5, 4)),
        key(Pair(), torch.ones(3, 4, dtype=torch.float64)),
        key(Pair(), torch.ones(4, 3).t()),
        key(Pair(), torch.ones(3, 4, requires_grad=True)),
        key(Pair(), kwargs={"twice": True}),
        key(Pair(), kwargs={"twice": 1}),
        key(Pair(), activation_budget="71%"),
        key(Pair(), planner="periodic"),
    ]
    assert None not in others
    assert len({before, *others}) == len(others) + 1


def test_settings_of_pytorch_are_part_of_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    before = key(Pair())
    keys = {before}
    with torch.autocast("cpu", torch.bfloat16):
        keys.add(key(Pair()))
    torch.use_deterministic_algorithms(True)
    try:
        keys.add(key(Pair()))
    finally:
        torch.use_deterministic_algorithms(False)
    torch.backends.cuda.enable_flash_sdp(False)
    try:
        keys.add(key(Pair()))
    finally:
        torch.backends.cuda.enable_flash_sdp(True)
    with torch.backends.mkldnn.flags(enabled=False):
        keys.add(key(Pair()))
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "default")
    keys.add(key(Pair()))
    assert None not in keys
    assert len(keys) == 6


HIDDEN = {
    "eval": ("return bend(x)", "return eval('x')"),
    "environment": ("return bend(x)", "import os; return x * len(os.environ)"),
    "writes a global": ("return bend(x)", "global GAIN; GAIN = 2; return x"),
    "tensor that is a global": ("KEPT = []", "KEPT = torch.ones(4)"),
    "object in C": ("KEPT = []", "KEPT = iter([1])"),
    "object in C that looks like Python": ("KEPT = []", "import array; KEPT = array.array('d')"),
    "missing global": ("KEPT = []", ""),
}


@pytest.mark.parametrize("name", HIDDEN)
def test_what_cannot_be_told_has_no_key(name: str, tmp_path: Path) -> None:
    text = NET
    for old, new in [("* GAIN", "* GAIN * len(KEPT)"), HIDDEN[name]]:
        assert old in text
        text = text.replace(old, new)
    with loaded(tmp_path, NET.replace("* GAIN", "* GAIN * len(KEPT)")) as user:
        assert key(user.Net()) is not None
    with loaded(tmp_path, text) as user:
        assert key(user.Net()) is None


def test_other_ways_have_no_key() -> None:
    m = Pair()
    assert key(m, dynamic_shapes={"x": {0: torch.export.Dim("n", min=2, max=8)}}) is None
    assert key(m, fuse="auto") not in (None, key(m))
    assert key(m, fuse="xla") is None
    assert key(m, cache=False) is None
    assert key(m, costs="roofline", device="h200") is None
    with torch.device("meta"):
        assert key(Pair(), torch.ones(3, 4)) is None
    m.extra = torch.ones(3)  # neither a parameter nor a buffer
    assert key(m) is None
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        assert key(Pair()) is None
    finally:
        handle.remove()
