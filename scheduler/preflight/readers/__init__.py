"""What the hardware tells: GPUs by NVML, network ports by sysfs, faults by the log of the kernel."""
