"""The fake engine's server with known truth, simulated studies: for our tests and for yours."""
