"""Two ways to compute the gradients of a small CNN faster than its module does, and the same."""
