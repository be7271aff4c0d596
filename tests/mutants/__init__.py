"""The strength of the tests: small faults planted in the product, and which of them tests
detect."""
