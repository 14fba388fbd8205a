"""The pool of servers that a request goes to: policies, routes and what live traffic teaches. Pure."""
