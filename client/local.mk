# client/: libcommd, what is written with it, and the two programs.
include client/lib/local.mk
include client/ctl/local.mk
include client/perf/local.mk
include client/examples/local.mk
include client/python/local.mk
include client/man/local.mk
