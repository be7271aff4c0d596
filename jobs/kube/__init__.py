"""The only room that knows the package `kubernetes`: requests, their budget, errors and leases."""
