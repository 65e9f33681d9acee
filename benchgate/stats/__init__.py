"""Numbers in, estimates with limits out. Positive is harm, alpha is one-sided, and no evidence gives None, never 0."""
