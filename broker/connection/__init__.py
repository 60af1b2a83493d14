"""How connections come in, what they speak, and how they move to another worker."""
