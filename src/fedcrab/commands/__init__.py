"""The commands, by what a user is doing: parse, call, print."""
