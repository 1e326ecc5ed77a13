"""What is proved: exact robust error of small models, and what training is sure to reach."""
