"""What clients and server say to each other in a round, and how it is combined.

client_update gives a contribution: named tensors that are differences or gradients, never weights. Transforms change it
on the client, weights say how much it counts, an aggregation combines it with the others', and the server steps.
None of these knows a method, and no method knows any of them.
"""
