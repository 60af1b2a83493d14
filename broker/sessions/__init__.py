"""The durable sessions of MQTT clients, kept by the owner of their log."""
