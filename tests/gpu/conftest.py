"""What a GPU is asked for in these tests: kernels that give the same bits each time."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


@pytest.fixture(scope="session")
def gpu() -> Iterator[torch.device]:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device here")
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield torch.device("cuda", 0)
    torch.use_deterministic_algorithms(False)
