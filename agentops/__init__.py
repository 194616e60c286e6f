"""agentops: deploy a governed multi-tool agent, record it, retrain its small models, release them behind a canary."""

__version__ = "0.1.0"
