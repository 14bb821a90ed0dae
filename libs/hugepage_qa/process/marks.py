"""The marks by which all that a run makes is known as ours, and can be removed after a crash."""

#: the environment variable that every process of a run carries; its value is the run id
RUN = "HUGEPAGE_QA_RUN"

#: the group of a run's processes, and so of the files that they make: that of the overflow id (nogroup, or nobody).
#: It needs a name: libvirt refuses a client whose group has none (virIdentityGetSystem(), virGetGroupName())
GROUP = 65534

#: begins the names of directories for mounts and files (in /run, /tmp) and of cgroups
PREFIX = "hugepage-qa-"

#: the upper half of the keys of System V segments: "HQ"
KEY_PREFIX = 0x4851

#: where runs mount
RUN_DIRECTORY = "run"
