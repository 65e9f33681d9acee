"""Prices into dollars per token. Pure arithmetic; the prices come from the suite."""
