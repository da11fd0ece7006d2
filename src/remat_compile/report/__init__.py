"""Reports on a plan, for eyes and for other tools: a page, reasons, differences, traces, graphs.

Everything is read off the simulator (`ir/semantics`); nothing here decides or proves.
"""

from __future__ import annotations
