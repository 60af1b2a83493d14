"""MQTT 3.1.1 and 5: bytes in, packets out, and back. No socket, no clock, no session."""
