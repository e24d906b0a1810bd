"""Layouts: boxes of tensors, splits over a mesh, DTensor placements, other sizes of a mesh, the overlap of two layouts.
Imports torch's types and `elastic_core.domain`, nothing of `state`; `format`, `reshard`, `train` and `view` import it.
"""
