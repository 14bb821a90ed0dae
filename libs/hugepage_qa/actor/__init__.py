"""An actor: a process that makes system calls and touches memory on request, and tells which signal it got."""
