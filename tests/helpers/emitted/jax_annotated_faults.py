"""Faults of an emitter, put into generated modules with `jax.checkpoint` as changes of text."""

from __future__ import annotations

import re

NAME = r"[a-zA-Z]\w*"
RUN = r'(        with jax\.named_scope\("[^"]+"\):\n            .+\n)'
NAMING = rf"        {NAME} = checkpoint_name\(.+\)\n"

FAULTS: dict[str, tuple[str, str]] = {
    "kept_left_out": (r"(KEPT = \[.*)'mul'", r"\1"),
    "kept_one_more": (r"KEPT = \[", "KEPT = ['cat', "),
    "kept_and_offloaded_swapped": (
        r"KEPT = (.*)\nOFFLOADED = (.*)\n",
        r"KEPT = \2\nOFFLOADED = \1\n",
    ),
    "offloaded_left_out": (r"(OFFLOADED = \[.*)'relu', ", r"\1"),
    "offloaded_is_kept": (r"OFFLOADED = \[", "OFFLOADED = ['mul', "),
    "policy_of_nothing": (r"names_which_can_be_saved=KEPT", "names_which_can_be_saved=[]"),
    "policy_elsewhere": (r'offload_dst="pinned_host"', 'offload_dst="device"'),
    "no_policy": (r", policy=KEEP\)", ")"),
    "no_checkpoint": (r"jax\.checkpoint\(segment_1, policy=KEEP\)", "segment_1"),
    "checkpoint_of_another": (r"jax\.checkpoint\(segment_2,", "jax.checkpoint(segment_1,"),
    "name_left_out": (NAMING, ""),
    "name_of_another": (r"checkpoint_name\(mul, 'mul'\)", "checkpoint_name(mul, 'cat')"),
    "named_and_not_bound": (r"mul = checkpoint_name\(mul,", "cat = checkpoint_name(mul,"),
    "another_value_named": (r"checkpoint_name\(mul,", "checkpoint_name(split_0,"),
    "named_twice": (rf"({NAMING})", r"\1\1"),
    "named_too_late": (rf"({NAMING})((?:        #.*\n)*){RUN}", r"\2\3\1"),
    "one_more_named": (
        r"(            cat = .+\n)",
        r"\1        cat = checkpoint_name(cat, 'cat')\n",
    ),
    "execution_left_out": (RUN, ""),
    "execution_doubled": (RUN, r"\1\1"),
    "executions_swapped": (RUN + r"((?:        #.*\n)+)" + RUN, r"\3\2\1"),
    "execution_misnamed": (r'named_scope\("F2#1"\)', 'named_scope("F2#2")'),
    "execution_outside": (
        r"(\n    def segment_2)",
        '\n    with jax.named_scope("F10#1"):\n        x = aten_tanh_default(tanh)\n\\1',
    ),
    "wrong_operator": (r"= aten_relu_default\(", "= aten_tanh_default("),
    "wrong_operand": (r"aten_mul_Tensor\(split_0, split_1\)", "aten_mul_Tensor(split_0, split_0)"),
    "wrong_constant": (r"(aten_native_dropout_default\(\w+, )0\.3", r"\g<1>0.4"),
    "draw_of_another_operator": (r"fold_in\(key, 0\)", "fold_in(key, 1)"),
    "parts_swapped": (r"\(split_0, split_1\) =", "(split_1, split_0) ="),
    "unread_results_swapped": (
        r"native_layer_norm_1, native_layer_norm_2\) =",
        "native_layer_norm_2, native_layer_norm_1) =",
    ),
    "view_of_another_base": (r"t = aten_t_default\(\w+\)", "t = aten_t_default(arg0)"),
    "segment_not_called": (r"    \(.+\) = jax\.checkpoint\(segment_2.+\n", ""),
    "segment_left_out": (r"    def segment_2(.*\n)+?    \(.+\) = jax\.checkpoint\(.+\n", ""),
    "segment_numbered_wrong": (r"segment_2", "segment_3"),
    "segment_ends_early": (
        r"(        # .*\n        with jax\.named_scope\(\"F16#1\"\):\n.+\n)"
        r"(        return .*\n)",
        r"\2",
    ),
    "argument_not_passed": (r"def segment_2\(tanh\)", "def segment_2()"),
    "value_closed_over": (
        r"def segment_2\(tanh\)((?:.*\n)+?.*policy=KEEP\))\(tanh\)",
        r"def segment_2()\1()",
    ),
    "another_value_passed": (r"policy=KEEP\)\(tanh\)", "policy=KEEP)(add)"),
    "segment_results_swapped": (
        r"return \(log_softmax, sigmoid\)\n\n",
        "return (sigmoid, log_softmax)\n\n",
    ),
    "results_taken_swapped": (
        r"\(log_softmax, sigmoid\) = jax",
        "(sigmoid, log_softmax) = jax",
    ),
    "outputs_swapped": (
        r"return \(log_softmax, sigmoid\), ",
        "return (sigmoid, log_softmax), ",
    ),
    "buffers_swapped": (r"('norm.running_mean': )(\w+)(, 'norm.running_var': )(\w+)", r"\1\4\3\2"),
    "buffer_left_out": (r"'norm.running_mean': \w+, ", ""),
    "parameter_of_another_name": (r"params\['conv.bias'\]", "params['norm.bias']"),
    "lowering_shadowed": (r"(def segment_1\(\):\n)", r"\1        aten_mm_default = arg0\n"),
    "lowering_twice": (r"\nNEEDS_X64 = ", "\naten_mm_default = None\nNEEDS_X64 = "),
    "step_permutes": (
        r"return outputs, new_buffers, grads, tuple",
        "return outputs, grads, new_buffers, tuple",
    ),
    "step_without_gradient": (
        r"places, without = \(\), \(\)",
        "places, without = (), ('conv.bias',)",
    ),
}


def faulty(name: str, source: str) -> str | None:
    """The module with a fault at the first place that has room for it; None where none has."""
    head, separator, rest = source.partition("\nNEEDS_X64 = ")
    pattern, new = FAULTS[name]
    changed, count = re.subn(pattern, new, separator + rest, count=1)
    return head + changed if count and changed != separator + rest else None
