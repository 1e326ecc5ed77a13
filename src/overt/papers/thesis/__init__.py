"""The doctoral thesis of Poorya Mianjy, by chapter."""
