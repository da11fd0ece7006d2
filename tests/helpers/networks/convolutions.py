"""Convolutional models: a ResNet and a U-Net."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class ResBlock(nn.Module):
    """Two 3×3 convolutions with BatchNorm and a shortcut."""

    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outer)
        self.conv2 = nn.Conv2d(outer, outer, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outer)
        self.relu = nn.ReLU(inplace=True)
        self.short: nn.Module = nn.Identity()
        if inner != outer or stride != 1:
            self.short = nn.Sequential(
                nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer)
            )

    def forward(self, x: Tensor) -> Tensor:
        h = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        h += self.short(x)
        out: Tensor = self.relu(h)
        return out


class ResNet(nn.Module):
    """A small ResNet in train mode: [batch, 3, 32, 32] to [batch, 10]."""

    def __init__(self, width: int = 8, blocks: int = 3) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 3, 1, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1),
        )
        widths = [(width, width, 1), (width, 2 * width, 2), (2 * width, 2 * width, 1)][:blocks]
        self.stages = nn.Sequential(*(ResBlock(*block) for block in widths))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(widths[-1][1], 10)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(torch.flatten(self.pool(self.stages(self.stem(x))), 1))
        return out


def double_conv(inner: int, outer: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inner, outer, 3, padding=1),
        nn.GroupNorm(2, outer),
        nn.SiLU(),
        nn.Conv2d(outer, outer, 3, padding=1),
        nn.GroupNorm(2, outer),
        nn.SiLU(),
    )


class UNet(nn.Module):
    """Two levels down and up, with skip connections: [batch, 3, 16, 16] to [batch, 2, 16, 16]."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.down1, self.down2 = double_conv(3, width), double_conv(width, 2 * width)
        self.middle = double_conv(2 * width, 4 * width)
        self.up2 = nn.ConvTranspose2d(4 * width, 2 * width, 2, 2)
        self.join2 = double_conv(4 * width, 2 * width)
        self.up1 = nn.Upsample(scale_factor=2, mode="nearest")
        self.join1 = double_conv(3 * width, width)
        self.head = nn.Conv2d(width, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        skip1 = self.down1(x)
        skip2 = self.down2(F.max_pool2d(skip1, 2))
        x = self.middle(F.max_pool2d(skip2, 2))
        x = self.join2(torch.cat((self.up2(x), skip2), dim=1))
        x = self.join1(torch.cat((self.up1(x), skip1), dim=1))
        out: Tensor = self.head(x)
        return out
