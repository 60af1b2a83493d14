"""The rollups: what a day's messages come to, by stream and minute, hour and day."""
