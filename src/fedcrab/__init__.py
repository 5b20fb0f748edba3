"""fedcrab recovers a federated-learning model after poisoning."""

__version__ = "0.1.0"
