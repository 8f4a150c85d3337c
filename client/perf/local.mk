# commd-perf: how fast are the collectives, and are they right?
bin_PROGRAMS += client/perf/commd-perf
dist_man_MANS += client/perf/commd-perf.1
client_perf_commd_perf_SOURCES = client/perf/commd-perf.c client/perf/commd_perf.h \
	client/perf/commd_perf_coll.c client/perf/commd_perf_data.c client/perf/commd_perf_launch.c \
	client/perf/commd_perf_gpu.c client/perf/commd_perf_loop.c \
	client/perf/commd_perf_options.c \
	client/perf/commd_perf_report.c client/perf/commd_perf_run.c client/perf/commd_perf_stats.c \
	client/perf/commd_perf_turns.c
client_perf_commd_perf_LDADD = client/lib/libcommd.la libcommd-shm.la
