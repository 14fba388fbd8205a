"""The command line: a thin skin over the pipeline. stdout carries data, stderr the narrative."""
