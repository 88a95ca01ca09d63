"""A fleet of real devices: its description, keys and certificates, and starting it."""
