"""Cases that need reboots of the machine under test: huge pages asked for through its own boot loader and sysctl.d."""
