"""The Kubernetes client layer, the only user of the package `kubernetes`: requests, errors, leases."""
