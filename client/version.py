"""The version of this distribution, known without asking the installer's metadata, which costs time."""

VERSION = "0.1.0"
