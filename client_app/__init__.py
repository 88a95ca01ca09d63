"""The ClientApp: private state store and local training loop."""
