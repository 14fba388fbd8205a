"""The command line: a thin skin over the verbs. stdout carries data, stderr the narrative."""
