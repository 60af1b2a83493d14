"""Storage: frames, the two files of a stream, its log and its readers, recovery, checking and mending."""
