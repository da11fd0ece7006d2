"""Helpers on PyTorch that the frontends, the cost sources and the torch backend share.

This package imports nothing by itself; its modules need torch.
"""
