"""What a model's step is known by before it is captured.

Everything that capture looks at, and everything that can change what it finds: code, attributes,
tensors without their numbers, the sample without its numbers, what was asked, versions, machine,
settings and environment. `Unknown` where any of that cannot be described.
"""

from __future__ import annotations

import os
import site
import sysconfig
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as of_modules
from torch.utils._pytree import tree_flatten

from ..._torch.autocast import Autocast
from ..._torch.hooks import KINDS
from ..._torch.wanted import Wanted
from .code import Description, Unknown

__all__ = ["start_key"]

FORMAT = 2
ELSEWHERE = frozenset(
    (
        *("_parameters", "_buffers", "_modules", *KINDS),
        *("_state_dict_hooks", "_state_dict_pre_hooks"),
        *("_load_state_dict_pre_hooks", "_load_state_dict_post_hooks"),
    )
)
"""Attributes of modules that stand elsewhere in the key, or that no step looks at."""
PREFIXES = (
    *("TORCH", "PYTORCH", "ATEN", "MKL", "OMP", "GOMP", "KMP", "ONEDNN", "DNNL", "OPENBLAS"),
    *("CUDA", "CUBLAS", "CUDNN", "NVIDIA", "NCCL", "HSA", "HIP", "ROCM", "REMAT_COMPILE"),
    *("TRANSFORMERS", "HF_", "ACCELERATE"),
)
"""Of the environment variables that PyTorch, its libraries and this package read."""
OF_CACHE = frozenset(("REMAT_COMPILE_CACHE", "TORCHINDUCTOR_CACHE_DIR"))
"""Folders; PyTorch sets its own while it compiles."""


def start_key(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    wanted: Wanted,
    device: torch.device,
    asked: object,
) -> str:
    """A digest; `asked` is what was asked and what planning depends on, as plain values."""
    _check_nothing_around()
    places: dict[int, str] = {}
    for path, module in model.named_modules():
        places[id(module)] = f"module {path}"
    tensors = _tensors(model)
    for path, tensor in tensors:
        places.setdefault(id(tensor), f"tensor {path}")
    description = Description(places)
    description.say(FORMAT, asked, _installed(), _environment(), _settings(device))
    for path, module in model.named_modules(remove_duplicate=False):
        description.say(path, places[id(module)])
        if places[id(module)] == f"module {path}":
            _add_module(description, path, module)
    _add_tensors(description, tensors)
    leaves, spec = tree_flatten((args, kwargs))
    description.say(str(spec))
    _add_tensors(
        description, [(str(at), t) for at, t in enumerate(leaves) if isinstance(t, Tensor)]
    )
    rest = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]
    description.add(rest, "sample")
    description.add(wanted.loss, "loss")
    description.add(wanted.outputs, "outputs")
    return description.digest()


def _add_module(description: Description, path: str, module: nn.Module) -> None:
    where = path or "model"
    description.add(type(module), where)
    attributes = {k: v for k, v in vars(module).items() if k not in ELSEWHERE}
    for name in sorted(attributes):
        description.add(attributes[name], f"{where}.{name}")
    for kind in KINDS:
        description.add([*vars(module)[kind].values()], f"{where}.{kind}")
        for options in ("_with_kwargs", "_always_called"):
            description.say(len(vars(module).get(f"{kind}{options}", ())))
    for held in (module._parameters, module._buffers, module._modules):
        description.say([*held])


def _tensors(model: nn.Module) -> list[tuple[str, Tensor]]:
    return [
        *model.named_parameters(remove_duplicate=False),
        *model.named_buffers(remove_duplicate=False),
    ]


def _add_tensors(description: Description, tensors: list[tuple[str, Tensor]]) -> None:
    """What they are, and which are one, or share memory; not what they hold."""
    same: dict[int, int] = {}
    storages: dict[int, int] = {}
    for path, t in tensors:
        if t.layout is not torch.strided or t.is_meta or t._backward_hooks:
            raise Unknown(f"{path} is a tensor of a kind that the key does not describe")
        if type(t) not in (Tensor, nn.Parameter):
            raise Unknown(f"{path} is a {type(t).__name__}")
        storage = t.untyped_storage()._cdata
        description.say(
            *(path, type(t).__name__, str(t.dtype), str(t.device), tuple(t.shape), t.stride()),
            *(t.storage_offset(), t.requires_grad, t.is_leaf, t.is_conj(), t.is_neg()),
            same.setdefault(id(t), len(same)),
            storages.setdefault(storage, len(storages)),
        )


def _check_nothing_around() -> None:
    """Unknown where something stands around a call that changes what its operators do."""
    if torch._C._len_torch_dispatch_stack() or torch._C._len_torch_function_stack():
        raise Unknown("a mode of PyTorch is active")
    if torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:
        raise Unknown("hooks on saved tensors are active")
    if torch._C._functorch.peek_interpreter_stack() is not None:
        raise Unknown("a transform of functorch is active")
    if any(vars(of_modules)[f"_global{kind}"] for kind in KINDS):
        raise Unknown("hooks of all modules are registered")


@cache
def _installed() -> list[tuple[str, int]]:
    """Which versions of packages are there; an installation leaves a folder with a new time."""
    paths = sysconfig.get_paths()
    folders = {paths["purelib"], paths["platlib"], site.getusersitepackages()}
    installations = []
    for folder in sorted(folders):
        if os.path.isdir(folder):
            with os.scandir(folder) as entries:
                installations += [
                    (entry.path, entry.stat().st_mtime_ns)
                    for entry in entries
                    if entry.name.endswith((".dist-info", ".egg-info", ".pth", ".egg-link"))
                ]
    return sorted(installations)


def _environment() -> list[tuple[str, str]]:
    return sorted(
        (name, value)
        for name, value in os.environ.items()
        if name.startswith(PREFIXES) and name not in OF_CACHE
    )


def _settings(device: torch.device) -> list[object]:
    """Of PyTorch, as far as they are not among those of every plan."""
    cuda: Any = torch.backends.cuda
    cudnn: Any = torch.backends.cudnn
    filled: Any = torch.utils.deterministic
    return [
        str(torch.get_default_dtype()),
        str(torch.get_default_device()),
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        filled.fill_uninitialized_memory,
        torch.is_anomaly_enabled(),
        str(Autocast.now(device.type)),
        [str(Autocast.now(kind)) for kind in ("cpu", "cuda")],
        torch.get_num_interop_threads(),
        torch.backends.mkldnn.deterministic,
        torch.backends.mkldnn.allow_tf32,
        torch.backends.mha.get_fastpath_enabled(),
        *(cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled(), cuda.math_sdp_enabled()),
        *(cuda.cudnn_sdp_enabled(), cuda.fp16_bf16_reduction_math_sdp_allowed()),
        cuda.matmul.allow_tf32,
        *(
            str(getattr(cuda.matmul, n))
            for n in (
                "allow_fp16_reduced_precision_reduction",
                "allow_bf16_reduced_precision_reduction",
            )
        ),
        cudnn.deterministic,
        torch.is_flush_denormal() if hasattr(torch, "is_flush_denormal") else None,
        __debug__,
    ]
