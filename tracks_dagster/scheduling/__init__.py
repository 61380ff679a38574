"""Who gets which devices, and when: workload classes, the rules of the queue, leases."""
