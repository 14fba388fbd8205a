"""Values to text: terminal, plain and JSON. Pure: returns values and strings, prints nothing."""
