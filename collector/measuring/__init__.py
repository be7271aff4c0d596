"""The one loop that measures: session after session, until every case has its answer.

It knows neither stores nor trees. Whoever uses it says where answers go: the worker's come into a
store, those of `opmeter microbench` into a tree.
"""
