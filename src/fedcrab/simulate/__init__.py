"""Every client in one machine: data sets, partitions, models, and a fleet that trains them fast."""
