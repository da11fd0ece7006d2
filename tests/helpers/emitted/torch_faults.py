"""Faults of an emitter, put into generated PyTorch code by changing its syntax tree.

Each takes the module and changes it at the first place where it can; it says whether it did.
"""

from __future__ import annotations

from helpers.emitted import torch_call_faults, torch_flow_faults, torch_storage_faults
from helpers.emitted.torch_code import Fault

FAULTS: dict[str, Fault] = {
    name: function
    for module in (torch_call_faults, torch_storage_faults, torch_flow_faults)
    for name, function in module.FAULTS.items()
}
