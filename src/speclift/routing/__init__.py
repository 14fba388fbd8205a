"""Which pool of servers a request goes to: policies, routes and what live traffic teaches. Pure."""
