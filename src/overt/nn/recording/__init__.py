"""One way to look into a network: a forward pass, seen operation by operation as it runs."""
