"""benchgate: measures a baseline and a candidate deployment of an LLM and decides whether to promote."""

__version__ = "0.1.0"
