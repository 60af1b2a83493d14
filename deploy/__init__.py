"""The files that an installation copies to their places. `tailrace deploy` shows them, README.md lists their
destinations."""
