"""Compiled kernels: `rows` updates factor rows, `table` fills the rows of tables."""
