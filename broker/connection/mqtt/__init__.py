"""The MQTT door: connections that speak MQTT 3.1.1 or 5."""
