"""The Kubernetes client layer: requests, errors, leases. Only it uses the package `kubernetes`."""
