"""Makes the packaged deployments: recordings of several loads become expressions of the load."""
