"""`compile_in_place` and `hf.Callback`: a library calls the model, and every bit is eager's."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import remat_compile
from remat_compile.ir.diagnostics import FBError

OPTIONS: Any = {"activation_budget": "80%", "planner": "dtr", "device": "cpu"}


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    layers = [m for _ in range(8) for m in (nn.Linear(16, 16), nn.LayerNorm(16), nn.GELU())]
    return nn.Sequential(*layers, nn.Dropout(0.1), nn.Linear(16, 3))


BATCHES = [torch.randn(n, 16, generator=torch.Generator().manual_seed(n)) for n in (64, 64, 40, 64)]


def trained(model: nn.Module) -> list[Tensor]:
    """Losses and parameters of training with an evaluation in it."""
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = []
    for batch in BATCHES:
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        model.eval()
        with torch.no_grad():
            seen += [loss.detach(), model(batch).sum()]
        model.train()
    return [*seen, *model.parameters()]


def equal(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def planned_calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one at each call of a planned step."""
    from remat_compile.backends.torch.module import PlannedStep

    calls: list[int] = []
    run = PlannedStep.run_on

    def counted(self: PlannedStep, inputs: Any) -> Any:
        calls.append(1)
        return run(self, inputs)

    monkeypatch.setattr(PlannedStep, "run_on", counted)
    return calls


def test_a_model_trains_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch of 40 gets a plan of its own."""
    ours, theirs = mlp(), mlp()
    calls = planned_calls(monkeypatch)
    remat_compile.compile_in_place(ours, **OPTIONS)
    assert equal(trained(ours), trained(theirs))
    assert len(calls) == len(BATCHES)
    assert list(ours.state_dict()) == list(theirs.state_dict())


def test_a_part_of_a_model_trains_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a LightningModule, whose network is an attribute."""

    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = mlp()

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x) * 2

    ours, theirs = Whole(), Whole()
    calls = planned_calls(monkeypatch)
    remat_compile.compile_in_place(ours.net, **OPTIONS)
    assert equal(trained(ours), trained(theirs))
    assert calls


@pytest.mark.parametrize(
    "again", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["copied", "pickled"]
)
def test_a_copy_is_the_model_without_its_plan(again: Callable[[nn.Module], nn.Module]) -> None:
    """As with `nn.Module.compile`."""
    model = mlp()
    remat_compile.compile_in_place(model, **OPTIONS)
    model(BATCHES[0]).sum().backward()
    model.zero_grad()
    assert equal(trained(again(model)), trained(mlp()))


def test_wrong_options_are_refused_at_once() -> None:
    model = mlp()
    with pytest.raises(FBError, match="FB0401"):
        remat_compile.compile_in_place(model, planner="dtrr")
    with pytest.raises(FBError):
        remat_compile.compile_in_place(model, on_change="again")  # type: ignore[arg-type]
    assert equal(trained(model), trained(mlp()))


def test_a_budget_that_cannot_be_met_leaves_the_model() -> None:
    """The refusal names the least that would do, and comes at every training call."""
    model = mlp()
    remat_compile.compile_in_place(model, budget=1, planner="dtr", device="cpu")
    for _ in range(2):
        with pytest.raises(FBError, match="FB0466"):
            model(BATCHES[0])
    with torch.no_grad():
        assert model.eval()(BATCHES[0]).shape == (64, 3)


# -- With the libraries themselves ----------------------------------------------------------------


def lightning_losses(folder: Path, *, planned: bool) -> list[Tensor]:
    L = pytest.importorskip("lightning")

    class Lit(L.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net = mlp()
            if planned:
                remat_compile.compile_in_place(self.net, **OPTIONS)

        def training_step(self, batch: Tensor, index: int) -> Tensor:
            return self.net(batch).square().mean()

        def validation_step(self, batch: Tensor, index: int) -> None:
            self.log("seen", self.net(batch).sum())

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters())

    torch.manual_seed(2)
    model = Lit()
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = L.Trainer(
        max_epochs=2, accelerator="cpu", default_root_dir=folder, gradient_clip_val=0.5, **quiet
    )
    data = torch.randn(160, 16, generator=torch.Generator().manual_seed(3))
    loader = torch.utils.data.DataLoader(data, batch_size=64)  # type: ignore[arg-type]
    trainer.fit(model, loader, loader)
    return [trainer.callback_metrics["seen"], *model.parameters()]


@pytest.mark.slow
def test_lightning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = planned_calls(monkeypatch)
    theirs = lightning_losses(tmp_path, planned=False)
    assert not calls
    assert equal(lightning_losses(tmp_path, planned=True), theirs)
    assert calls


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_accelerate(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    accelerate = pytest.importorskip("accelerate")
    calls = planned_calls(monkeypatch)

    def steps(*, planned: bool) -> list[Tensor]:
        accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
        accelerator = accelerate.Accelerator(
            cpu=True, mixed_precision=precision, gradient_accumulation_steps=2
        )
        torch.manual_seed(1)
        net = mlp()
        model, optimizer = accelerator.prepare(net, torch.optim.AdamW(net.parameters()))
        if planned:
            remat_compile.compile_in_place(model, **OPTIONS)
        losses = []
        for batch in BATCHES:
            with accelerator.accumulate(model):
                loss = model(batch).square().mean()
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
                losses.append(loss.detach())
        return [*losses, *model.parameters()]

    theirs = steps(planned=False)
    assert equal(steps(planned=True), theirs)
    assert len(calls) == len(BATCHES)


class Scales:
    """The state of a weight of 4 bits, beside it as in bitsandbytes: `weight.quant_state`."""

    def __init__(self, levels: Tensor, absmax: Tensor, shape: torch.Size) -> None:
        self.levels, self.absmax, self.shape = levels, absmax, shape


class Linear4bit(nn.Module):
    """A frozen product of QLoRA in plain PyTorch: two indices of 16 levels to the byte, and a scale
    to each block of 16."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        levels = torch.linspace(-1, 1, 16)
        blocks = linear.weight.detach().reshape(-1, 16)
        absmax = blocks.abs().amax(1, keepdim=True)
        index = (blocks / absmax)[..., None].sub(levels).abs().argmin(-1).reshape(-1, 2)
        packed = (index[:, 0] * 16 + index[:, 1]).to(torch.uint8)
        self.weight = nn.Parameter(packed, requires_grad=False)
        self.weight.quant_state = Scales(levels, absmax, linear.weight.shape)
        self.in_features, self.out_features = linear.in_features, linear.out_features

    def forward(self, x: Tensor) -> Tensor:
        state = self.weight.quant_state
        index = torch.stack([self.weight >> 4, self.weight & 15], 1).long()
        weight = state.levels[index].reshape(-1, 16) * state.absmax
        return nn.functional.linear(x, weight.reshape(state.shape))


def with_4_bits(model: nn.Module) -> None:
    """Replaces what each adapter stands on."""
    for module in model.modules():
        if isinstance(base := getattr(module, "base_layer", None), nn.Linear):
            module.base_layer = Linear4bit(base)


@pytest.mark.slow
@pytest.mark.parametrize("quantized", [with_4_bits, None], ids=["4 bits", "plain"])
def test_lora_in_a_trainer(
    quantized: Callable[[nn.Module], None] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Labels, padding to the longest of a batch, other lengths, gradient accumulation."""
    transformers = pytest.importorskip("transformers")
    peft = pytest.importorskip("peft")
    from remat_compile.hf import Callback

    calls = planned_calls(monkeypatch)
    generator = torch.Generator().manual_seed(3)
    rows = [
        {
            "input_ids": torch.randint(1, 61, (length,), generator=generator),
            "attention_mask": torch.ones(length, dtype=torch.int64),
        }
        for length in (24, 24, 20, 24, 17, 24, 24, 24, 12, 9)
    ]
    for row in rows:
        row["labels"] = row["input_ids"].clone()

    def padded(batch: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        filling = {"input_ids": 0, "attention_mask": 0, "labels": -100}
        return {
            key: nn.utils.rnn.pad_sequence([row[key] for row in batch], True, value)
            for key, value in filling.items()
        }

    def run(folder: Path, callbacks: list[Any]) -> list[Tensor]:
        torch.manual_seed(0)
        sizes = {"num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 48}
        config = transformers.LlamaConfig(
            **sizes, num_attention_heads=2, num_key_value_heads=2, vocab_size=61
        )
        adapters = peft.LoraConfig(
            r=4, lora_dropout=0.1, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"
        )
        model = peft.get_peft_model(transformers.LlamaForCausalLM(config), adapters)
        if quantized is not None:
            quantized(model)
        arguments = transformers.TrainingArguments(
            str(folder),
            max_steps=4,
            per_device_train_batch_size=2,
            gradient_accumulation_steps=2,
            learning_rate=1e-2,
            use_cpu=True,
            report_to=[],
            disable_tqdm=True,
            save_strategy="no",
        )
        trainer = transformers.Trainer(
            model, arguments, train_dataset=rows, data_collator=padded, callbacks=callbacks
        )
        trainer.train()
        assert model._compiled_call_impl is None
        return [p.detach() for p in model.parameters() if p.requires_grad]

    theirs = run(tmp_path, [])
    assert not calls
    assert equal(run(tmp_path, [Callback(**OPTIONS)]), theirs)
    assert len(calls) == 7, "two epochs of batches, two to a step"
    with pytest.raises(FBError, match="FB0401"):
        Callback(planner="dtrr")


@pytest.mark.slow
def test_layers_of_bitsandbytes_are_refused_by_name() -> None:
    """Its operators take the kind of quantization as text, which no plan passes on."""
    bnb = pytest.importorskip("bitsandbytes")
    linear = bnb.nn.Linear4bit(32, 32, compute_dtype=torch.float32, compress_statistics=False)
    model, x = nn.Sequential(nn.Linear(32, 32), linear.to("cpu"), nn.Linear(32, 1)), BATCHES[0]
    x = torch.cat([x, x], 1)
    with pytest.raises(FBError, match=r"FB0942(.|\n)*bitsandbytes\.\w+(.|\n)*text") as error:
        remat_compile.compile(model, (x,), activation_budget="100%", planner="store-all")
    assert {d.code for d in error.value.diagnostics} == {"FB0942"}
    model(x).sum().backward()
    assert model[0].weight.grad is not None, "and the model is as it was"
