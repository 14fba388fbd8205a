"""Send requests and write down what happened. Knows endpoints, never arms' worth or verdicts."""
