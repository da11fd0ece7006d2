"""What XLA makes of regions by themselves: measured, for the choice of those that it fuses."""

from .price import RegionBytes, XlaPrice
from .shapes import Shapes

__all__ = ["RegionBytes", "Shapes", "XlaPrice"]
