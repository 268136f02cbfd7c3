"""Client work on other machines, by Flower: a ServerApp and a ClientApp around the same two functions of a method.

server.py is the ServerApp's side and client.py the ClientApp's; a Flower app needs one line for each. Only what
facts.py and messages.py pack travels.
"""
