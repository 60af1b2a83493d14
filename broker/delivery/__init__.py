"""What subscribers get: fan-out, cursors, and the chunks they share."""
