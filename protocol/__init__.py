"""Sans-IO codecs: bytes in, commands out; answers as bytes. No socket, no clock, no file."""
