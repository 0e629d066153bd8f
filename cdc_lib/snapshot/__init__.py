"""Snapshots while changes flow: which pieces are left, what is read in a window, and which rows of it stay.

The engine's part is small: read one piece in a view of its own (``source.IncrementalSession``). Everything
else is the same for every engine and stands here (DESIGN section 6).
"""
