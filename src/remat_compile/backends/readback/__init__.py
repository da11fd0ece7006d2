"""Generated code is read back and held against the schedule, before it is run or written.

Written from spec/semantics.md and from what Python code means. It shares with the emitters
nothing but the parsed data: where both would have to make the same mistake, none is left.
"""
