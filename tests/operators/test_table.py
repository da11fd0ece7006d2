"""What operators do: the table is PyTorch's, and where PyTorch says too little, so is the table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
import torch

from remat_compile.operators import Effects, effects
from remat_compile.operators.schema import effects_of
from runners import make_operators


def test_the_tables_are_those_of_the_installed_pytorch() -> None:
    """`python tests/runners/make_operators.py` writes both again."""
    known = make_operators.table()
    assert make_operators.sections(known) == make_operators.TABLE.read_text().partition("\n\n")[2]
    assert make_operators.of_checker(known) == make_operators.OF_CHECKER.read_text()
    assert {name: effects(name) for name in known} == {n: Effects(own) for n, own in known.items()}


@pytest.mark.parametrize(
    ("operator", "args", "kwargs", "draws"),
    [
        ("aten.bernoulli.default", ("x",), {}, True),
        ("aten.add.Tensor", ("x", "y"), {}, False),
        ("aten._scaled_dot_product_flash_attention_for_cpu.default", ("q", "k", "v"), {}, False),
        (
            "aten._scaled_dot_product_flash_attention_for_cpu.default",
            ("q", "k", "v", 0.0),
            {},
            False,
        ),
        (
            "aten._scaled_dot_product_flash_attention_for_cpu.default",
            ("q", "k", "v", 0.1),
            {},
            True,
        ),
        ("aten.scaled_dot_product_attention.default", ("q", "k", "v"), {"dropout_p": 0.5}, True),
    ],
)
def test_what_draws(
    operator: str, args: Sequence[object], kwargs: Mapping[str, object], *, draws: bool
) -> None:
    known = effects(operator)
    assert known is not None
    assert known.draws(args, kwargs) is draws


def test_a_batch_norm_writes_where_its_schema_says_nothing() -> None:
    """The kernels of the CPU, run: with running statistics and training they write, else not."""
    x, mean, var = torch.rand(3, 2), torch.zeros(2), torch.ones(2)
    operators = (
        torch.ops.aten.native_batch_norm.default,
        torch.ops.aten._native_batch_norm_legit_functional.default,
        torch.ops.aten._native_batch_norm_legit_no_training.default,
    )
    for op in operators:
        trains = (True,) if "training" in [a.name for a in op._schema.arguments] else ()
        for training in ((True,), (False,)) if trains else ((),):
            args = (x, None, None, mean.clone(), var.clone(), *training, 0.1, 1e-5)
            before = args[3].clone()
            op(*args)
            writes = not torch.equal(args[3], before)
            assert effects_of(op).writes(args, {}) is writes, (op, training)
            assert not effects_of(op).writes((x, None, None, None, None, *training, 0.1, 1e-5), {})


def test_what_lies_in_the_storage_of_an_argument_is_a_view() -> None:
    """On `meta`: these return their argument's storage, and their schemas do not say so."""
    x = torch.ones(2, 2, device="meta")
    aten = torch.ops.aten
    for op, args in (
        (aten._unsafe_view.default, (x, [4])),
        (aten.unsafe_split.Tensor, (x, 1)),
        (aten.lift.default, (x,)),
        (aten.atleast_1d.default, (x,)),
    ):
        made = op(*args)
        first = made[0] if isinstance(made, tuple | list) else made
        assert first.untyped_storage()._cdata == x.untyped_storage()._cdata, op
        assert effects_of(op).is_view, op
        assert not any(r.alias_info for r in op._schema.returns), op


@pytest.mark.parametrize(
    ("operator", "why"),
    [
        ("aten.from_file.default", "text and no tensor"),
        ("aten.resize.default", "reads beyond"),
        ("aten.no_such.default", "no such operator"),
        ("aten.relu", "no such operator"),
        ("c10d.broadcast_.default", "do more than compute"),
        ("higher_order.run_and_save_rng_state", "do more than compute"),
        ("aten._assert_async.default", "for an effect"),
    ],
)
def test_what_may_not_be_called(operator: str, why: str) -> None:
    known = effects(operator)
    assert known is not None
    assert why in (known.refusal or "")


def test_of_other_libraries_nothing_is_known_but_their_schemas() -> None:
    assert effects("mylib.smooth.default") is None
    library = torch.library.Library("remat_table", "DEF")  # type: ignore[no-untyped-call]
    library.define("noise(Tensor x) -> Tensor", tags=(torch.Tag.nondeterministic_seeded,))
    library.define("window(Tensor(a) x) -> Tensor(a)")
    library.define("fill(Tensor(a!) x) -> ()")
    ops = torch.ops.remat_table
    assert effects_of(ops.noise.default) == Effects("r")
    assert effects_of(ops.window.default) == Effects("v")
    assert effects_of(ops.fill.default) == Effects("ew")
