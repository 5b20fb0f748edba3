"""What recording a training has in common on every engine: named arrays, the history that grows with it."""
