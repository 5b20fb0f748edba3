"""The incident page: a history, and the decision about it, as one file that answers while one clicks."""
