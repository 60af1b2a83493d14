"""The files that an installation copies to their places. `tailrace deploy` shows them, README.md says where they go."""
