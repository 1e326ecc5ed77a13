"""On the Implicit Bias of Dropout (Mianjy, Arora, Vidal 2018)."""
