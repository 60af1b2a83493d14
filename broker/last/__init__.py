"""The last value of each topic of a stream, kept by the stream's owner."""
