"""Regions compiled by XLA alone and measured, to choose those that it fuses."""

from .price import RegionBytes, XlaPrice
from .shapes import Shapes

__all__ = ["RegionBytes", "Shapes", "XlaPrice"]
