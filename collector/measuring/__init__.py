"""The measuring loop: session after session, until every case has a result.

It depends on neither stores nor trees. Its caller decides where results go: those of a worker into
a store, those of `opmeter tree microbench` into a tree.
"""
