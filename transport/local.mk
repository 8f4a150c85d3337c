# transport/
noinst_LTLIBRARIES += libcommd-schedule.la

# Pure: nothing but mem*() and abort() may be undefined in these objects.
libcommd_schedule_la_SOURCES = transport/schedule.c transport/schedule.h \
	transport/schedule_priv.h transport/schedule_rd.c transport/schedule_ring.c
