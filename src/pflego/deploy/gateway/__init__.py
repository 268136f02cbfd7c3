"""A door for clients in browsers: they take part in the same server loop as sites on Flower do.

settings    what a deployment says of it; off by default
tokens      who may come in: one token per client, given out by the operator, of which the server keeps digests alone
lobby       who is there, what they are asked, and what they have answered
grid        visitors and Flower's nodes as one grid, which the server loop asks and hears
door        HTTP: the page, the kit, and the conversation
page/       what the browser runs
"""
