"""Faults of an emitter, put into generated JAX code as changes of its text.

Each is a pattern, searched for in `forward` and `backward`, and what stands there instead.
"""

from __future__ import annotations

import re

NAME = r"[a-zA-Z]\w*"
RUN = r'(    with jax\.named_scope\("[^"]+"\):\n        .+\n)'

FAULTS: dict[str, tuple[str, str]] = {
    "wrong_operand": (rf"( = aten_mm_default\(){NAME}, ({NAME})\)", r"\1\2, \2)"),
    "swapped_operands": (rf"( = aten_mm_default\()({NAME}), ({NAME})\)", r"\1\3, \2)"),
    "wrong_constant": (r"(aten_native_dropout_default\(\w+, )0\.3", r"\g<1>0.4"),
    "wrong_flag": (r"(aten_native_dropout_default\(.+)True", r"\1False"),
    "dtype_changed": (r"jnp\.float32", "jnp.float64"),
    "argument_left_out": (r"(aten_native_dropout_default\(\w+, 0\.3), True", r"\1"),
    "extra_keyword": (r"(aten_add_Tensor\([^)]*)\)", r"\1, alpha=2)"),
    "wrong_operator": (r"= aten_relu_default\(", "= aten_tanh_default("),
    "execution_left_out": (RUN, ""),
    "execution_doubled": (RUN, r"\1\1"),
    "executions_swapped": (RUN + r"((?:    #.*\n)*)" + RUN, r"\3\2\1"),
    "recompute_left_out": (r'    with jax\.named_scope\("[^"]+#2"\):\n        .+\n', ""),
    "execution_misnamed": (r'named_scope\("F2#1"\)', 'named_scope("F2#2")'),
    "other_computation_in_its_name": (r'named_scope\("F4#1"\)', 'named_scope("F3#1")'),
    "result_slots_swapped": (
        rf"({NAME}), ({NAME})\) = aten__native_batch_norm_legit_functional_default",
        r"\2, \1) = aten__native_batch_norm_legit_functional_default",
    ),
    "parts_swapped": (
        rf"\(({NAME}), ({NAME})\) = aten_split_Tensor",
        r"(\2, \1) = aten_split_Tensor",
    ),
    "part_left_out": (r"\)\[:2\]", ")[:1]"),
    "another_view": (r"= aten_t_default\(", "= aten_detach_default("),
    "view_of_another_base": (r"= aten_t_default\(\w+\)", "= aten_t_default(arg0)"),
    "draw_of_another_operator": (r"fold_in\(key, 0\)", "fold_in(key, 1)"),
    "drawn_without_its_number": (r"key=jax\.random\.fold_in\(key, \d+\)", "key=key"),
    "sum_of_something_else": (rf"(        {NAME} = {NAME}) \+ {NAME}\n", r"\1 + arg0\n"),
    "sum_in_other_order": (rf"(        {NAME} = )({NAME}) \+ ({NAME})\n", r"\1\3 + \2\n"),
    "sum_is_a_difference": (rf"(        {NAME} = {NAME}) \+ ", r"\1 - "),
    "barrier_permutes": (
        rf"    \(({NAME}), ({NAME})(.*)\) = lax\.opt",
        r"    (\2, \1\3) = lax.opt",
    ),
    "outputs_swapped": (
        r"return \(\((\w+), (\w+)\), new_buffers\)",
        r"return ((\2, \1), new_buffers)",
    ),
    "buffers_swapped": (r"('norm.running_mean': )(\w+)(, 'norm.running_var': )(\w+)", r"\1\4\3\2"),
    "buffer_left_out": (r"'norm.running_mean': \w+, ", ""),
    "saved_swapped": (r"(new_buffers\), \()(\w+), (\w+)", r"\1\3, \2"),
    "saved_left_out": (r"(new_buffers\), \()\w+, ", r"\1"),
    "gradient_of_another": (r"('conv.weight': )\w+,\n(    +'conv.bias': )(\w+)", r"\1\3,\n\2\3"),
    "gradient_left_out": (r"('conv.weight': )\w+", r"\1None"),
    "tangents_swapped": (r"\(\((\w+), (\w+)\), _\) = tangents", r"((\2, \1), _) = tangents"),
    "parameter_of_another_name": (r"params\['conv.bias'\]", "params['norm.bias']"),
    "copy_of_another": (
        rf"= jax\.device_put\({NAME}, jax\.memory\.Space\.Host",
        "= jax.device_put(arg0, jax.memory.Space.Host",
    ),
    "copy_to_the_wrong_side": (r"Space\.Host", "Space.Device"),
    "copy_left_out": (r"    \w+ = jax\.device_put\(\w+, jax\.memory\.Space\.Device\)\n", ""),
    "lowering_shadowed": (
        r"(def backward\(saved, tangents\):\n)",
        r"\1    aten_mm_default = saved\n",
    ),
    "step_permutes": (
        r"return outputs, new_buffers, grads, input_grads",
        "return outputs, grads, new_buffers, input_grads",
    ),
    "lowering_twice": (r"\nNEEDS_X64 = ", "\naten_mm_default = None\nNEEDS_X64 = "),
}


def faulty(name: str, source: str) -> str | None:
    """The module with a fault at the first place that has room for it; None where none has."""
    head, separator, rest = source.partition("\nNEEDS_X64 = ")
    pattern, new = FAULTS[name]
    changed, count = re.subn(pattern, new, separator + rest, count=1)
    return head + changed if count and changed != separator + rest else None
