"""What an adversary may do: balls of perturbations with their geometry."""
