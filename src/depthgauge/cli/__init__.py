"""The command: one file a verb, which parses, calls and prints."""
