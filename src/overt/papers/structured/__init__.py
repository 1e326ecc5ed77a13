"""On the Regularization Properties of Structured Dropout (Pal, Lane, Vidal, Haeffele 2020)."""
