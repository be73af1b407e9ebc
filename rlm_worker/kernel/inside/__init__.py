"""What runs beside user code: the host that forks kernels, and the kernel itself. The worker never imports this."""

HOST_CONTROL_FD = 3
"""The descriptor on which a host finds its control socket."""
